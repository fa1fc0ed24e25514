from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge, Observation, get_attack
from attacks.gradient_matching.simulation import total_variation, update_distance
from attacks.update.local_training import one_hot
from tests.attacks.conftest import client, digits, generator, mlp, nearest

LR = 0.1


def trained(model, images, labels, batches, momentum=0.0):
    return client(model, images, batches, labels, lr=LR, momentum=momentum)


def one_step(count=2, **options):
    images, labels = digits(count), torch.arange(count)
    return images, labels, trained(mlp(**options), images, labels, [range(count)])


def told(**others):
    return Knowledge(**{"pixel_mean": (0.3,), "learning_rate": LR, "steps": 1, **others})


def run(observation, knowledge, seed=0, **options):
    return get_attack("gradient_matching", **options).run(observation, knowledge, generator(seed))


def problem(observation, knowledge, **options):
    attack = get_attack("gradient_matching", precision="float64", device="cpu", **options)
    return attack.matching(observation, replace(knowledge, num_private=2), generator())[0]


def gradient(observation, images, classes):
    """∇ of the cross-entropy with soft labels at the initial parameters, float64, by plain autograd."""
    model = observation.model.double()
    model.load_state_dict(observation.initial)
    loss = -(classes * model(images).log_softmax(1)).sum(1).mean()
    return torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


def test_one_step_is_deep_leakage_from_gradients():
    """‖∇' − ∇‖² of Zhu et al., and its gradients in the images and the label logits, up to the constant ‖∇‖²."""
    _, _, observation = one_step(activation=nn.Sigmoid)
    true = [-value / LR for value in observation.delta().values()]
    attack = problem(observation, told(), distance="euclidean", labels="soft", total_variation=0.0)
    draws = generator(1)
    images = torch.randn(2, 1, 8, 8, generator=draws, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(2, 10, generator=draws, dtype=torch.float64, requires_grad=True)
    ours = attack.objective(images, logits.softmax(1))
    found = gradient(observation, images, logits.softmax(1))
    published = sum(((g - t) ** 2).sum() for g, t in zip(found, true, strict=True))
    published = published / sum((t**2).sum() for t in true)
    assert float(ours.detach()) == pytest.approx(float(published.detach()), rel=1e-9)
    gradients = (torch.autograd.grad(loss, (images, logits)) for loss in (ours, published))
    for mine, theirs in zip(*gradients, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-7, atol=1e-12)


def test_one_step_is_inverting_gradients():
    """1 − cos(∇', ∇) + α TV of Geiping et al."""
    _, labels, observation = one_step()
    true = torch.cat([-value.flatten() / LR for value in observation.delta().values()])
    attack = problem(observation, told(labels=(0, 1)), total_variation=0.01)
    images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = torch.cat([g.flatten() for g in gradient(observation, images, one_hot(labels, 10))])
    variation = (images[:, :, 1:] - images[:, :, :-1]).abs().mean() + images.diff(dim=3).abs().mean()
    published = 1 - nn.functional.cosine_similarity(found, true, dim=0) + 0.01 * variation
    assert float(attack.objective(images, one_hot(labels, 10)).detach()) == pytest.approx(
        float(published.detach()), rel=1e-9
    )


def compressed(observation, compress):
    """The same observation with another update of every parameter."""
    ((initial, final),) = observation.pairs
    changed = {name: value + compress(final[name] - value) for name, value in initial.items()}
    return replace(observation, pairs=((initial, changed),))


def random_tenth(delta):
    """Ten times a random tenth of the entries, as random_k sends them."""
    return 10 * delta * (torch.rand(delta.shape, generator=generator(len(delta))) < 0.1)


@pytest.mark.parametrize(
    ("compress", "fact"),
    [(lambda delta: delta.abs().mean() * (2 * (delta >= 0) - 1), {"quantization_bits": 1}),
     (random_tenth, {"kept_fraction": 0.2})],
)  # fmt: skip
def test_whoever_knows_the_compression_finds_the_true_images_to_fit(compress, fact):
    images, labels, observation = one_step()
    sent = compressed(observation, compress)
    of = images.double(), one_hot(labels, 10)
    naive, adaptive = (problem(sent, told(labels=(0, 1), **facts)).distance(*of) for facts in ({}, fact))
    assert float(naive.detach()) > 0.2 and float(adaptive.detach()) < 1e-6


def test_distances_and_total_variation_by_hand():
    simulated, observed = (
        {"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([0.0])},
        {"w": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.0])},
    )
    assert float(update_distance("cosine", simulated, observed)) == pytest.approx(1 - 9 / 15)
    assert float(update_distance("euclidean", simulated, observed)) == pytest.approx(16 / 25)
    # vertical differences 2, 2, horizontal 1, 1
    assert float(total_variation(torch.tensor([[[[0.0, 1.0], [2.0, 3.0]]]]))) == pytest.approx(3.0)


@pytest.mark.parametrize("count", [1, 3])
def test_one_step_gives_its_images_back(count):
    images, _, observation = one_step(count, width=256)
    found = run(observation, told(), iterations=300)
    assert found.num_inferred == count and len(found.images) == count
    assert (nearest(images, found) < 0.3).all()  # two different digits are 2.5 to 4 apart
    assert "labels were inferred" in " ".join(found.warnings)


def test_soft_labels_are_found_with_the_image():
    images, _, observation = one_step(1, activation=nn.Sigmoid)
    options = {"distance": "euclidean", "labels": "soft", "optimizer": "lbfgs", "learning_rate": 1.0}
    found = run(observation, told(), iterations=30, total_variation=0.0, clamp=False, precision="float64", **options)
    assert (nearest(images, found) < 0.1).all()


@pytest.mark.parametrize("outputs", [1, 10])
def test_minibatches_with_momentum_in_a_known_order(outputs):
    images, labels = digits(4), torch.tensor([0, 1, 0, 1])
    batches = ((2, 0), (1, 3), (3, 2), (0, 1))
    observation = trained(mlp(outputs=outputs, width=128), images, labels, batches, momentum=0.5)
    knowledge = told(labels=(0, 1, 0, 1), batches=batches, steps=None, num_private=4, momentum=0.5)
    found = run(observation, knowledge, iterations=200)
    assert (nearest(images, found) < 0.5).all()


@pytest.mark.parametrize("steps", [1, 3])
def test_local_adam_is_matched(steps):
    images, labels = digits(2), torch.arange(2)
    observation = client(mlp(width=128), images, steps, labels, torch.optim.Adam, lr=1e-3)
    knowledge = told(learning_rate=1e-3, steps=steps, optimizer="adam", batch_size=2, num_private=2)
    found = run(observation, knowledge, iterations=200)
    assert (nearest(images, found) < 0.8).all()  # two different digits are 2.5 to 4 apart
    assert "labels cannot be counted after adam" in " ".join(found.warnings)
    assert "torch's defaults were assumed: weight_decay 0.0, betas (0.9, 0.999)" in " ".join(found.warnings)


def test_targets_are_coded_as_the_adversary_believes():
    images, classes = digits(2), torch.eye(10)[:2]
    model = mlp(width=64)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    loss = 0.5 * ((model(images) - (4 * classes - 1)) ** 2).sum(1).mean()
    for parameter, gradient in zip(
        model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
    ):
        parameter.data -= LR * gradient
    observation = Observation(model, ((initial, model.state_dict()),), (1, 8, 8))
    knowledge = told(labels=(0, 1), num_private=2)
    right, wrong = (problem(observation, knowledge, loss="mse", coding=coding) for coding in ([-1, 3], None))
    assert float(right.distance(images.double(), classes.double()).detach()) < 1e-6
    assert float(wrong.distance(images.double(), classes.double()).detach()) > 1e-3
    with pytest.raises(InputError, match=r"coding is \[1, 1\], it has to be two different targets"):
        get_attack("gradient_matching", coding=[1, 1])


def test_fewer_steps_stand_for_many():
    images, _, _ = one_step(2)
    observation = trained(mlp(width=128), images, torch.arange(2), [range(2)] * 12)
    found = run(observation, told(steps=12, batch_size=2), iterations=150, max_unrolled=3)
    assert found.facts["simulated_steps"] == 3
    assert "3 steps of 4 times the learning rate" in " ".join(found.warnings)
    assert (nearest(images, found) < 1.0).all()


def test_a_simulation_that_diverges_returns_nothing_and_says_so():
    images, labels = digits(2), torch.tensor([0, 1])
    observation = trained(mlp(outputs=1), images, labels, [range(2)] * 2)
    found = run(observation, told(learning_rate=1e30, steps=2, labels=(0, 1), batch_size=2), iterations=3)
    assert len(found.images) == 0 and "diverged" in " ".join(found.warnings)


def test_an_unknown_order_is_said():
    images, labels = digits(4), torch.arange(4)
    observation = trained(mlp(), images, labels, [(0, 1), (2, 3)] * 2)
    for order in ("fixed", "drawn"):
        found = run(observation, told(steps=4, batch_size=2, num_private=4), iterations=5, order=order)
        assert f"the order of the images is unknown: {order}" in " ".join(found.warnings)


def test_lbfgs_needs_batches_that_stay():
    observation = trained(mlp(), digits(4), torch.arange(4), [(0, 1), (2, 3)])
    knowledge = told(steps=2, batch_size=2, num_private=4)
    with pytest.raises(InputError, match="set order to fixed"):
        run(observation, knowledge, optimizer="lbfgs", iterations=1)


def test_same_generator_same_bits_and_images_stay_in_range():
    _, _, observation = one_step()
    first, second = (run(observation, told(), iterations=20, restarts=2) for _ in range(2))
    assert torch.equal(first.images, second.images)
    assert first.images.min() >= -0.3 - 1e-6 and first.images.max() <= 0.7 + 1e-6


def test_a_better_candidate_has_a_smaller_residual():
    _, _, observation = one_step(2)
    found = run(observation, told(), iterations=400)
    assert (found.residual < 0.5).all() and found.residual[0] <= found.residual[1]


def test_what_is_missing_or_wrong_is_refused_by_name():
    _, _, observation = one_step()
    for knowledge, message in [
        (Knowledge(), "learning_rate"),
        (Knowledge(learning_rate=LR), "steps"),
        (told(optimizer="rmsprop"), "optimizer is 'rmsprop': simulated are sgd, adam, adamw"),
        (told(labels=(0,)), "labels has 1 entries for 2"),
        (told(labels=(0, 12)), "labels go up to 12"),
        (told(batches=((0, 7),)), "name image 7: indices go from 0 to 1"),
    ]:
        with pytest.raises(InputError, match=message):
            run(observation, knowledge, iterations=1)
    with pytest.raises(InputError, match="step without images"):
        told(batches=((0,), ()))
    for options, message in [
        ({"iterations": 0}, "iterations is 0"),
        ({"distance": "l1"}, "choose cosine or euclidean"),
        ({"device": "tpu"}, "device is 'tpu'"),
    ]:
        with pytest.raises(InputError, match=message):
            get_attack("gradient_matching", **options)


def test_all_that_is_missing_is_named_at_once_with_how_to_say_it():
    with pytest.raises(InputError, match=r"steps, .*: say --know learning_rate=VALUE --know steps=VALUE$"):
        run(one_step()[2], Knowledge())
