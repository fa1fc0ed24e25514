import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge, Observation, get_attack
from attacks.networks.mlp import ACTIVATIONS
from attacks.span.candidates import Candidates
from attacks.span.duals import DualSpace
from attacks.span.search import AffineSpan, FreeProblem, SpanProblem, SpanTest, descend, distinct
from attacks.span.sparse_duals import purified, settled, sparsest
from attacks.update.spectrum import Spectrum, read_spectrum

MEAN = 0.3  # what the federation subtracts


def digits(count):
    from sklearn.datasets import load_digits

    return torch.tensor(load_digits().images[:count] / 16, dtype=torch.float32)[:, None] - MEAN


def mlp(width=256, activation=nn.ReLU):
    torch.manual_seed(0)
    hidden = [nn.Linear(64, width), activation(), nn.Linear(width, width), activation()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, 10))


def client(model, images, optimizer=torch.optim.SGD, lr=0.05, epochs=4, batch=4):
    """A FedAvg client: cross-entropy, minibatches."""
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    step = optimizer(model.parameters(), lr=lr)
    labels = torch.arange(len(images)) % 10
    for _ in range(epochs):
        for i in torch.arange(len(images)).split(batch):
            step.zero_grad()
            nn.functional.cross_entropy(model(images[i]), labels[i]).backward()
            step.step()
    return Observation(model, ((initial, model.state_dict()),), tuple(images.shape[1:]))


def run(observation, knowledge=Knowledge(), seed=0, **options):
    return get_attack("span", **options).run(observation, knowledge, torch.Generator().manual_seed(seed))


def nearest(images, found):
    return torch.cdist(images.flatten(1), found.images.flatten(1)).min(1).values


@pytest.fixture(scope="module")
def federated():
    torch.set_num_threads(1)
    images = digits(8)
    observation = client(mlp(), images)
    return images, observation, run(observation)


def test_digits_are_exact_with_their_number_and_the_mean_removed(federated):
    images, _, found = federated
    assert found.num_inferred == 8 and found.images.shape == (8, 1, 8, 8)
    assert (nearest(images, found) < 1e-2).all()  # two different digits are 2.5 to 4 apart
    assert found.pixel_mean == pytest.approx((MEAN,), abs=1e-3)
    assert (found.residual.diff() >= 0).all() and found.warnings == ()


def test_images_are_exact_on_the_mean_of_two_clients():
    images, model = digits(16), mlp()
    updates = []
    for half in images.split(8):
        fresh = mlp()
        updates.append(client(fresh, half).final)
    final = {name: (updates[0][name] + updates[1][name]) / 2 for name in updates[0]}
    found = run(Observation(model, ((model.state_dict(), final),), (1, 8, 8)))
    assert found.num_inferred == 16
    assert (nearest(images, found) < 1e-2).all()


def parts(observation, count=8):
    """(test, duals) of an observation of `mlp`."""
    before, after = (
        [torch.cat([state[f"{i}.weight"], state[f"{i}.bias"][:, None]], 1).double() for i in (1, 3)]
        for state in observation.pairs[0]
    )
    first, second = Spectrum.of(after[0] - before[0]), Spectrum.of(after[1] - before[1])
    test = SpanTest(before[0].float(), second.vectors[None, : 4 * count].float(), ACTIVATIONS["relu"])
    return test, DualSpace.of(before[0], after[0], first, count)


def test_residual_tells_private_images_from_others(federated):
    images, observation, _ = federated
    test, _ = parts(observation)
    private, others = test.residual(images.flatten(1)), test.residual(digits(100)[8:].flatten(1))
    assert private.max() * 20 < others.min()


def test_gradient_is_that_of_the_deflated_residual(federated):
    images, observation, _ = federated
    test, duals = parts(observation)
    span = AffineSpan.of(duals.rows, torch.Generator().manual_seed(0))
    test = SpanTest(test.first.double(), torch.linalg.qr(test.rows.double().mT)[0].mT, test.activate)
    problem = SpanProblem.of(test, span)
    found = torch.linalg.qr(test.features(images[:3].flatten(1).double()).T)[0].T
    point = torch.randn(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradient = problem.value_and_gradient(point, found)[1]
    for j in range(7):
        shift = torch.zeros(7, dtype=torch.float64)
        shift[j] = 1e-6
        ahead, behind = (problem.value_and_gradient(point + sign * shift, found)[0] for sign in (1, -1))
        torch.testing.assert_close((ahead - behind) / 2e-6, gradient[:, j], rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(problem.value_and_gradient(point)[0], test.residual(span.images(point)))


def test_deflation_keeps_the_search_away_from_what_is_found(federated):
    images, observation, _ = federated
    test, duals = parts(observation)
    span = AffineSpan.of(duals.rows, torch.Generator().manual_seed(0))
    problem = SpanProblem.of(test, span)
    start = torch.randn(40, 7, generator=torch.Generator().manual_seed(1))
    free = span.images(descend(problem, start, 200, 0.05).double()).float()
    hits = torch.cdist(images.flatten(1), free) < 0.5
    attractor = int(hits.sum(1).argmax())
    found = torch.linalg.qr(test.features(images[attractor].flatten(1)).T)[0].T
    deflated = span.images(descend(problem, start, 200, 0.05, found=found).double()).float()
    again = torch.cdist(images[attractor].flatten(1), deflated) < 0.5
    assert int(hits[attractor].sum()) >= 5 and int(again.sum()) == 0


def test_rough_images_become_exact_by_the_zeros_of_their_duals(federated):
    images, observation, _ = federated
    _, duals = parts(observation)
    noise = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) @ duals.rows[:, :-1]
    rough = images.flatten(1) + 0.5 * noise / noise.norm(dim=1, keepdim=True)
    y = duals.coordinates(rough)
    directions = sparsest(duals, y, torch.ones(8, dtype=torch.bool), y[:0])
    kept = duals.certified(directions)
    exact = duals.images(duals.disentangle(y[kept], directions[kept]))
    assert len(kept) == 8
    assert ((exact - images.flatten(1)[kept]).norm(dim=1) < 1e-2).all()
    random = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    random /= random.norm(dim=1, keepdim=True)
    assert len(duals.certified(random)) == 0


def test_a_mixture_that_passes_for_an_image_is_sought_again(federated):
    images, observation, _ = federated
    _, duals = parts(observation)
    y = duals.coordinates(images.flatten(1))
    directions = torch.linalg.inv(y).T  # y_i · c_j = 0 for i ≠ j
    directions /= directions.norm(dim=1, keepdim=True)
    mixed = directions.clone()
    mixed[0] = directions[0] + 0.5 * directions[1]
    mixed[0] /= mixed[0].norm()
    rough = y + 0.02 * y.norm(dim=1, keepdim=True) * torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    wrong = duals.images(duals.disentangle(rough, mixed))
    assert (wrong - images.flatten(1)).norm(dim=1).max() > 0.05  # the other part of the mixture is not exact
    directions = settled(duals, rough, mixed)
    exact = duals.images(duals.disentangle(rough, directions))
    assert ((exact - images.flatten(1)).norm(dim=1) < 1e-2).all()


def with_noise(observation, share):
    generator = torch.Generator().manual_seed(0)
    delta = observation.delta()
    size = sum(float(value.square().sum()) for value in delta.values()) ** 0.5
    deviation = share * size / sum(value.numel() for value in delta.values()) ** 0.5
    final = {
        name: observation.initial[name] + value + deviation * torch.randn(value.shape, generator=generator)
        for name, value in delta.items()
    }
    return Observation(observation.model, ((observation.initial, final),), observation.input_shape)


def test_what_known_duals_mix_into_one_is_taken_out():
    draws = torch.Generator().manual_seed(0)
    units, count = 200, 6
    sparse = torch.randn(units, count, generator=draws, dtype=torch.float64)
    sparse[torch.rand(units, count, generator=draws) < 0.4] = 0
    left, scale = torch.linalg.qr(sparse)  # d_i = L c_i with c_i the columns of R
    true = torch.nn.functional.normalize(scale.T)
    duals = DualSpace(left, torch.eye(count).double(), torch.ones(count).double(), 1e-12, (left[:, :0], left[:, :0]))
    mixed = true.clone()
    mixed[2] += 0.7 * true[4] - 0.3 * true[0]  # both known: taken out one after the other
    pure = purified(duals, torch.nn.functional.normalize(mixed))
    assert torch.allclose((pure * true).sum(1).abs(), torch.ones(count).double(), atol=1e-10)
    assert duals.zeros(pure).tolist() == (sparse == 0).sum(0).tolist()


def test_what_certified_images_leave_free_has_the_gradient_of_the_residual(federated):
    images, observation, _ = federated
    test, _ = parts(observation)
    draws = torch.Generator().manual_seed(0)
    points = torch.nn.functional.pad(images[:3].flatten(1), (0, 1), value=1.0).double()
    free = torch.randn(2, 65, generator=draws, dtype=torch.float64)
    test = SpanTest(test.first.double(), test.rows.double(), test.activate)
    problem = FreeProblem(test, points, free)
    at = 0.1 * torch.randn(3, 2, generator=draws, dtype=torch.float64)
    value, gradient = problem.value_and_gradient(at)
    step = 1e-6 * torch.eye(2).double()
    for k in range(2):
        slope = (problem.value_and_gradient(at + step[k])[0] - problem.value_and_gradient(at - step[k])[0]) / 2e-6
        assert torch.allclose(slope, gradient[:, k], rtol=1e-5, atol=1e-8)
    assert torch.allclose(value, test.residual(problem.images(at)))
    assert torch.allclose(problem.images(torch.zeros(3, 2).double()), images[:3].flatten(1).double())


def test_noise_of_three_percent_leaves_recognizable_images(federated):
    images, observation, _ = federated
    found = run(with_noise(observation, 0.03))
    assert found.num_inferred == 8 and found.images.shape[0] == 8
    assert (nearest(images, found) < 0.5).all() and "it is noisy" in found.warnings[0]
    assert 0.02 < found.facts["fit"] < 0.04


def test_noise_beyond_reach_is_refused_by_what_was_measured(federated):
    _, observation, _ = federated
    found = run(with_noise(observation, 0.3))
    assert len(found.images) == 0 and "of its norm lies outside" in found.warnings[0]


def test_clipping_the_update_changes_nothing(federated):
    images, observation, _ = federated
    clipped = {name: observation.initial[name] + 0.01 * value for name, value in observation.delta().items()}
    found = run(Observation(observation.model, ((observation.initial, clipped),), (1, 8, 8)))
    assert found.num_inferred == 8 and (nearest(images, found) < 1e-2).all()


def test_distinct_keeps_the_best_of_each_cluster():
    points = torch.tensor([[0.0], [10.0], [0.01], [20.0], [10.01]])
    assert distinct(points).tolist() == [0, 1, 3]


def test_the_same_generator_gives_the_same_bits(federated):
    _, observation, found = federated
    again = run(observation)
    assert torch.equal(found.images, again.images) and torch.equal(found.residual, again.residual)


def test_a_known_number_is_used(federated):
    images, observation, _ = federated
    found = run(observation, Knowledge(num_private=8))
    assert found.facts["used_num_private"] == 8 and (nearest(images, found) < 1e-2).all()


def test_more_images_than_directions_are_not_believed(federated):
    images, observation, _ = federated
    found = run(observation, Knowledge(num_private=11))
    assert found.facts["used_num_private"] == 8 and (nearest(images, found) < 1e-2).all()
    assert "11 images were expected" in found.warnings[0] and "8 directions" in found.warnings[0]


def test_nearly_as_many_images_as_pixels_tell_apart_are_exact_with_a_warning():
    images = digits(50)  # 8x8 digits span about 55 dimensions
    found = run(client(mlp(width=512), images))
    assert found.num_inferred == 50 and (nearest(images, found) < 1e-2).sum() >= 48


@pytest.mark.parametrize("told", [None, 8])
def test_gaussian_noise_in_place_of_an_update_gives_nothing(federated, told):
    _, observation, _ = federated
    noise = torch.Generator().manual_seed(0)
    final = {
        name: value + torch.randn(value.shape, generator=noise) * (observation.final[name] - value).std()
        for name, value in observation.initial.items()
    }
    found = run(Observation(observation.model, ((observation.initial, final),), (1, 8, 8)), Knowledge(num_private=told))
    assert len(found.images) == 0 and "of its norm lies outside" in found.warnings[0]


def test_local_adam_gives_nothing():
    observation = client(mlp(), digits(8), torch.optim.Adam, lr=1e-3)
    for told in (None, 8):
        found = run(observation, Knowledge(num_private=told))
        assert len(found.images) == 0 and "nothing returned" in found.warnings[0]


def test_a_second_layer_that_does_not_belong_is_vetoed(federated):
    _, observation, _ = federated
    noise = torch.Generator().manual_seed(0)
    final = dict(observation.final)
    rough = torch.randn(256, 8, generator=noise) @ torch.randn(8, 256, generator=noise)
    final["3.weight"] = observation.initial["3.weight"] + 1e-4 * rough
    model = mlp(activation=nn.Tanh)  # no sparse duals: the explained share of the update has to tell
    found = run(Observation(model, ((observation.initial, final),), (1, 8, 8)))
    assert len(found.images) == 0 and "nothing returned" in found.warnings[0]


def test_tanh_networks_are_attacked_without_certificates():
    images = digits(8)
    found = run(client(mlp(activation=nn.Tanh), images))
    assert found.facts["certified"] == 0
    assert (nearest(images, found) < 0.1).all()


def test_more_images_than_the_width_can_tell_are_refused_by_number():
    found = run(client(mlp(width=64), digits(40)))
    assert len(found.images) == 0 and "nothing returned" in found.warnings[0]


def test_networks_without_linear_pixels_are_refused_by_name():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    with pytest.raises(InputError, match=r"'span' needs linear layers from the pixels on.*'Sequential'.*use 'ntk'"):
        run(client(model, digits(2)))
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32, bias=False), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
    )
    with pytest.raises(InputError, match="lacks a bias"):
        run(client(model, digits(2)))


def test_spectrum_agrees_with_the_singular_value_decomposition(federated):
    _, observation, _ = federated
    update = torch.cat([observation.delta()["1.weight"], observation.delta()["1.bias"][:, None]], 1)
    spectrum = Spectrum.of(update)
    _, values, vectors = torch.linalg.svd(update, full_matrices=False)
    torch.testing.assert_close(spectrum.values[:8], values[:8])
    assert spectrum.count() == read_spectrum(update).count == 8
    overlap = spectrum.vectors[:8] @ vectors[:8].T
    torch.testing.assert_close(overlap @ overlap.T, torch.eye(8, dtype=torch.float64))


def test_noise_is_measured_by_the_median_singular_value():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 120, generator=generator, dtype=torch.float64)
    strong = 100 * torch.outer(*(torch.randn(n, generator=generator, dtype=torch.float64) for n in (200, 120)))
    spectrum = Spectrum.of(noise + strong)
    assert spectrum.above_noise() == 1
    assert spectrum.median_noise() == pytest.approx(float(noise.norm() / (noise + strong).norm()), rel=0.05)


def test_nothing_found_is_said():
    nothing = Candidates.empty(*reversed(parts(client(mlp(), digits(8)))))
    assert "no candidate" in nothing.veto(torch.ones(1, 256, 257), torch.Generator())[0]


def dead_round(observation):
    """(sent, returned) of a round in which nothing but the last layer moved."""
    initial = observation.final
    return initial, {name: value + 0.01 if name.startswith("5.") else value for name, value in initial.items()}


def test_an_update_of_the_last_layer_alone_is_refused(federated):
    _, observation, _ = federated
    with pytest.raises(InputError, match="one of the first two layers is zero"):
        run(Observation(observation.model, (dead_round(observation),), (1, 8, 8)))


def test_a_dead_round_of_a_history_costs_nothing(federated):
    images, observation, alone = federated
    history = Observation(observation.model, (*observation.pairs, dead_round(observation)), (1, 8, 8))
    found = run(history)
    assert found.num_inferred == 8 and (nearest(images, found) < 1e-2).all()
    assert torch.equal(found.images, alone.images)
