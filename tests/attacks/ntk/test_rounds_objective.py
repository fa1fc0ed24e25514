import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge, Observation, get_attack
from attacks.networks.mlp import ACTIVATIONS
from attacks.ntk.objective import StackedObjective, backward_in_batches, make_objective, round_scales
from attacks.span.evidence.layers import informative_rounds
from attacks.span.search.problems import AffineSpan, SpanProblem, SpanTest
from attacks.span.sparse_duals import DualSpace, repeats
from attacks.update.private_set import infer_pixel_mean
from attacks.update.spectrum import infer_image_count
from tests.attacks.conftest import client, digits, generator, minibatches, mlp, nearest

SHAPE = (1, 4, 4)


def network(convolutional=False, outputs=2):
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 3, 3), nn.Flatten()] if convolutional else [nn.Flatten(), nn.Linear(16, 12)]
    return nn.Sequential(*first, nn.Tanh(), nn.Linear(12, outputs)).double()


def random_state(model, size=0.5):
    return {name: size * torch.randn_like(value) for name, value in model.state_dict().items()}


def per_image_sum(model, state, images, duals):
    """Σ_j Σ_k α_jk ∇f_k(x_j), one gradient at a time."""
    sums = {name: torch.zeros_like(value) for name, value in state.items()}
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    for image, dual in zip(images, duals, strict=True):
        outputs = torch.func.functional_call(model, leaves, (image[None],))[0]
        for output, alpha in zip(outputs, dual, strict=True):
            gradients = torch.autograd.grad(output, list(leaves.values()), retain_graph=True)
            for name, gradient in zip(leaves, gradients, strict=True):
                sums[name] += alpha * gradient
    return sums


@pytest.fixture(params=[False, True], ids=["closed form", "autograd"])
def three_rounds(request):
    """(model, Δθ and two kernels' parameters of every round, images, duals) of three random rounds."""
    model = network(request.param)
    deltas = [random_state(model) for _ in range(3)]
    views = [[random_state(model), random_state(model)] for _ in range(3)]
    return model, deltas, views, torch.randn(5, *SHAPE).double(), torch.randn(6, 5, 2).double()


def test_the_loss_is_the_sum_over_rounds_of_the_squared_residuals(three_rounds):
    model, deltas, views, images, duals = three_rounds
    stacked = StackedObjective([make_objective(model, SHAPE, *round) for round in zip(deltas, views, strict=True)])
    expected = 0.0
    for i, (delta, (first, second)) in enumerate(zip(deltas, views, strict=True)):
        sums = [per_image_sum(model, view, images, duals[2 * i + v]) for v, view in enumerate((first, second))]
        expected += sum(float(((delta[n] - sums[0][n] - sums[1][n]) ** 2).sum()) for n in delta)
        found = stacked.gradient_sum(images, duals, None)
        for name in delta:
            torch.testing.assert_close(found[f"{i}:{name}"], sums[0][name] + sums[1][name])
    assert stacked.loss(images, duals, None).item() == pytest.approx(expected, rel=1e-10)


def test_batches_give_the_gradients_of_all_rounds(three_rounds):
    model, deltas, views, images, duals = three_rounds
    stacked = StackedObjective([make_objective(model, SHAPE, *round) for round in zip(deltas, views, strict=True)])
    images, duals = images.requires_grad_(), duals.requires_grad_()
    loss = stacked.loss(images, duals, 20.0)
    expected = torch.autograd.grad(loss, (images, duals))
    found = backward_in_batches(stacked, images, duals, 20.0, 2)
    torch.testing.assert_close(found, loss.detach())
    torch.testing.assert_close((images.grad, duals.grad), expected)


def test_rounds_are_brought_to_one_length_and_a_single_one_is_left_alone():
    deltas = [{"a": torch.tensor([3.0, 4.0])}, {"a": torch.tensor([0.0, 0.05])}]
    assert round_scales(deltas[:1]) == [1.0]
    scales = round_scales(deltas)
    assert scales[0] * 5 == pytest.approx(scales[1] * 0.05)
    assert (scales[0] * 5) ** 2 + (scales[1] * 0.05) ** 2 == pytest.approx((25 + 0.05**2) / 2)
    assert round_scales(deltas[:1], unit_length=True) == [pytest.approx(0.2)]
    scales = round_scales(deltas, unit_length=True)
    assert scales[0] * 5 == pytest.approx(scales[1] * 0.05) == pytest.approx(0.5**0.5)


def seen(model, images, rounds):
    """A client that trains again and again from where it left off, on minibatches of 4."""
    pairs = [client(model, images, minibatches(len(images), 4, epochs=4)).pairs[0] for _ in range(rounds)]
    return Observation(model, tuple(pairs), (1, 8, 8), threat_model="history")


def test_ntk_takes_a_history_and_one_round_of_it_is_the_attack_as_before():
    images = digits(3)
    observation = seen(mlp(), images, 3)
    attack = get_attack("ntk", iterations=60, kernel="hybrid")
    found = attack.run(observation, Knowledge(), generator())
    assert found.duals.shape == (6, 6, 10) and found.num_inferred == 3
    assert found.relative_residual**2 < found.loss_trace[0][1]
    again = attack.run(observation, Knowledge(), generator())
    assert torch.equal(found.images, again.images)


def test_a_round_without_an_update_is_left_out():
    images = digits(3)
    observation = seen(mlp(), images, 1)
    still = (observation.final, observation.final)
    padded = Observation(observation.model, (*observation.pairs, still), observation.input_shape)
    for name, options in (("ntk", {"iterations": 30}), ("span", {})):
        attack = get_attack(name, **options)
        alone, both = (attack.run(o, Knowledge(), generator()) for o in (observation, padded))
        assert torch.equal(alone.images, both.images)
        with pytest.raises(InputError, match="the update is zero"):
            attack.run(Observation(observation.model, (still,), (1, 8, 8)), Knowledge(), generator())


def test_number_and_mean_are_read_off_the_stacked_updates():
    observation = seen(mlp(), digits(5), 3)
    assert infer_image_count(observation).count == 5
    assert infer_pixel_mean(observation) == pytest.approx((0.3,), abs=1e-3)


def test_span_residual_of_a_history_is_the_one_of_all_rounds_by_hand():
    torch.manual_seed(1)
    first, images = torch.randn(2, 5, 4, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    rows = torch.linalg.qr(torch.randn(2, 6, 3, dtype=torch.float64))[0].mT.contiguous()
    missed, whole = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for layer, basis in zip(first, rows, strict=True):
        for i, image in enumerate(images):
            g = torch.cat([(layer[:, :3] @ image + layer[:, 3]).relu(), torch.ones(1, dtype=torch.float64)])
            missed[i] += ((g - basis.T @ (basis @ g)) ** 2).sum()
            whole[i] += (g**2).sum()
    test = SpanTest(first.flatten(0, 1), rows, ACTIVATIONS["relu"])
    torch.testing.assert_close(test.residual(images), missed / whole)


def test_gradient_of_that_residual_is_the_finite_difference():
    torch.manual_seed(2)
    first = torch.randn(10, 7, dtype=torch.float64)
    rows = torch.linalg.qr(torch.randn(2, 6, 3, dtype=torch.float64))[0].mT.contiguous()
    test = SpanTest(first, rows, ACTIVATIONS["tanh"])
    span = AffineSpan.of(torch.randn(4, 7, dtype=torch.float64), generator())
    problem, points = SpanProblem.of(test, span), torch.randn(2, 3, dtype=torch.float64)
    found = torch.linalg.qr(test.features(span.images(torch.randn(2, 3).double())).T)[0].T
    torch.testing.assert_close(problem.value_and_gradient(points)[0], test.residual(span.images(points)))
    gradient = problem.value_and_gradient(points, found)[1]
    for j in range(3):
        shift = 1e-6 * torch.eye(3, dtype=torch.float64)[j]
        ahead, behind = (problem.value_and_gradient(points + sign * shift, found)[0] for sign in (1, -1))
        torch.testing.assert_close((ahead - behind) / 2e-6, gradient[:, j], rtol=1e-5, atol=1e-8)


def test_what_one_round_cannot_tell_two_can():
    """24 images on 64 units: the 25 directions that ρ may use are too few for one round, not for two together."""
    images = digits(24)
    observation = seen(mlp(), images, 2)
    close = []
    for count in (1, 2):
        found = get_attack("span").run(
            Observation(observation.model, observation.pairs[:count], (1, 8, 8)), Knowledge(), generator()
        )
        assert found.num_inferred == 24 and found.facts["tests"] == count
        close.append(int((nearest(images, found) < 0.5).sum()))
    assert close[0] < close[1] == 24, close


def test_clients_that_take_turns_are_attacked_round_by_round():
    images, model = digits(12), mlp(256)
    pairs = tuple(pair for half in images.split(6) for pair in seen(model, half, 1).pairs)
    found = get_attack("span").run(Observation(model, pairs, (1, 8, 8)), Knowledge(), generator())
    assert found.num_inferred == 12 and "12 images together, at most 6 in a round" in found.warnings[0]
    assert len(found.images) == 12 and (nearest(images, found) < 0.01).all()


def test_rounds_that_do_not_show_every_image_test_none():
    torch.manual_seed(3)
    ranks = (6, 3, 8, 0)
    updates = torch.stack([torch.randn(40, r).double() @ torch.randn(r, 31).double() for r in ranks])
    assert list(informative_rounds(updates, 6)) == [0, 2]
    assert list(informative_rounds(updates, 20)) == [2]  # none shows 20: those that show most


def test_zeros_that_every_round_repeats_certify_nothing():
    """Two rounds with the same duals: a mixture that is zero on N − 1 units of choice is zero on 2 (N − 1)."""
    generator = torch.Generator().manual_seed(0)
    left, other = torch.randn(2, 40, 10, dtype=torch.float64, generator=generator)
    mixture = torch.linalg.svd(left[:9])[2][-1:]
    assert (left[:9] @ mixture.T).abs().max() < 1e-12
    assert repeats(torch.stack([left, left, 3 * left]), 1e-9) == 3
    assert repeats(torch.stack([left, other]), 1e-9) == 1
    assert repeats(torch.stack([left, left, other, torch.zeros(40, 10)]), 1e-9) == 1.5
    values, rows = torch.ones(10, dtype=torch.float64), torch.eye(10, 20, dtype=torch.float64)
    for repeated, certified in ((1, 1), (2, 0)):
        stacked = torch.cat([left, left])
        duals = DualSpace(stacked, rows, values, 1e-12, (stacked[:, :0], stacked[:, :0]), repeated)
        assert duals.zeros(mixture).tolist() == [18] and len(duals.passing(mixture)) == certified


ONE_ROUND = {
    "gradient_matching": {"iterations": 3},
    "best_public": {},
    "span": {"rounds": 1, "starts": 20, "steps": 20, "settle": 10, "polish": 10},
}


def two_rounds(model):
    """The pairs of a client that takes a step on three digits in each of two rounds."""
    return tuple(client(model, digits(3), 1, lr=0.1).pairs[0] for _ in range(2))


@pytest.fixture(scope="module")
def pairs_behind_a_convolution():
    """Two rounds of a client with three digits, and one in which nothing moves, of a network behind a convolution."""
    torch.manual_seed(0)
    dense = [nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)]
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), *dense)
    first, second = two_rounds(model)
    return model, first, second, (first[0], first[0])


@pytest.mark.parametrize("name", ONE_ROUND)
def test_attacks_on_one_round_take_the_first_that_moved_and_say_what_they_leave(name, pairs_behind_a_convolution):
    model, first, second, idle = pairs_behind_a_convolution
    told = Knowledge(
        num_private=3, pixel_mean=(0.3,), learning_rate=0.1, steps=1, labels=(0, 1, 2), public_images=digits(20)
    )

    def attack(*pairs):
        generator = torch.Generator().manual_seed(0)
        found = get_attack(name, **ONE_ROUND[name]).run(Observation(model, pairs, (1, 8, 8)), told, generator)
        ignored = [warning for warning in found.warnings if warning.startswith("only round")]
        return (found.images, found.residual, found.relative_residual), ignored

    alone, nothing = attack(second)
    assert nothing == []
    for pairs, said in (((idle, second), []), ((idle, second, first), ["only round 2 of 3 is used"])):
        found, ignored = attack(*pairs)
        assert ignored == said
        torch.testing.assert_close(found, alone, rtol=0, atol=0, equal_nan=True)


def test_kkt_says_that_it_reads_the_last_checkpoint_only(pairs_behind_a_convolution):
    model, first, second, _ = pairs_behind_a_convolution
    observation = Observation(model, (first, second), (1, 8, 8))
    told = Knowledge(num_private=1, pixel_mean=(0.3,))
    found = get_attack("kkt", iterations=1).run(observation, told, torch.Generator().manual_seed(0))
    assert "only the last of 2 returned checkpoints is used" in found.warnings
