import math

import pytest
import torch
from torch import nn

from attacks import InputError, Observation
from attacks.interface.torch_tools import cast_state
from attacks.kernel.empirical import has_linear_output, linearization_error, relative_residual
from attacks.kernel.regime import (
    KERNEL_REGIME,
    LARGE_STEP,
    NO_RANK,
    NONLINEAR_OUTPUT,
    UNMOVED,
    ZERO,
    Linearity,
    OnImages,
    UpdateFacts,
    layer_ranks,
)
from tests.attacks.conftest import generator, mlp, state_of


def images(count, size=6):
    return torch.randn(count, 1, size, size, generator=torch.Generator().manual_seed(0))


def linearity(observation, inputs, **options):
    draws = generator(1)
    on_images = OnImages.of(observation, inputs, draws, **options)
    return Linearity(UpdateFacts.of(observation, draws), on_images)


def observed(model, initial, final, shape):
    return Observation(model, ((initial, final),), shape)


def trained(inputs, network=None, steps=5, optimizer=torch.optim.SGD, rate=0.05, **options):
    """What is seen of a client that has these images, three outputs, mean squared error, full batches."""
    model = network or mlp(outputs=3, inputs=36, **options)
    initial, step = state_of(model), optimizer(model.parameters(), lr=rate)
    targets = nn.functional.one_hot(torch.arange(len(inputs)) % 3, 3) - 0.1
    for _ in range(steps):
        step.zero_grad()
        (0.5 * (model(inputs) - targets).square().sum(1).mean()).backward()
        step.step()
    return observed(model, initial, state_of(model), (1, 6, 6))


def test_a_quadratic_by_hand():
    """f = v w x, both 1 → 3, x = 2: f_lin = 2 + 2·2 + 2·2 = 10, f = 18. H = [[0, x], [x, 0]], and ½·2·(2² + 2²) = 8 is
    the remainder: the bound is met."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    x = torch.full((1, 1, 1, 1), 2.0)
    states = [dict.fromkeys(("1.weight", "2.weight"), torch.full((1, 1), value)) for value in (1.0, 3.0)]
    found = linearity(observed(model, *states, (1, 1, 1)), x, complete=True)
    update, found = found.update, found.on_images
    assert found.linearization_error == pytest.approx(8 / 16) and found.remainder == pytest.approx(8)
    assert found.hessian_norm == pytest.approx(2) and found.bound == pytest.approx(8)
    assert update.delta_l2 == pytest.approx(8**0.5) and update.delta_linf == 2
    assert found.unexplained == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Softplus, nn.GELU])
def test_the_remainder_keeps_to_the_bound(activation):
    inputs = images(8)
    found = OnImages.of(trained(inputs, steps=20, rate=0.2, activation=activation), inputs, generator(1))
    assert 0 < found.remainder <= found.bound


def test_a_wide_network_after_a_small_step_is_in_the_kernel_regime():
    inputs = images(6)
    observation = trained(inputs, steps=2, rate=0.005, width=1024)
    found = linearity(observation, inputs, complete=True)
    assert found.verdict == KERNEL_REGIME
    assert found.on_images.linearization_error < 0.1 and found.on_images.unexplained < 0.2
    first = found.update.layers[0]
    assert first.rank == 6 and first.has_spectral_gap and first.gap > 100
    assert linearity(observation, images(3)).verdict == KERNEL_REGIME  # of an adversary


def test_a_narrow_network_that_drifts_leaves_the_span_attack_only():
    inputs = images(6)
    found = linearity(trained(inputs, steps=300, rate=0.3), inputs, complete=True)
    assert found.verdict == LARGE_STEP
    assert found.on_images.linearization_error > 0.3 and found.update.layers[0].rank == 6


@pytest.mark.parametrize("output", [nn.Sigmoid(), nn.Tanh(), nn.Softmax(-1)])
def test_a_non_linear_output_is_said_whatever_the_step(output):
    inputs = images(6)
    assert linearity(trained(inputs, steps=1, width=256, output=[output]), inputs).verdict == NONLINEAR_OUTPUT


def test_adam_leaves_no_rank_and_little_in_the_images_gradients():
    inputs = images(6)
    found = linearity(trained(inputs, optimizer=torch.optim.Adam, rate=1e-3, width=256), inputs, complete=True)
    assert found.verdict == NO_RANK and found.on_images.unexplained > 0.5 and not found.update.has_rank


def test_one_sgd_step_is_explained_by_the_images_gradients_and_by_no_others():
    inputs = images(6)
    observation = trained(inputs, steps=1)
    start = cast_state(observation.initial, torch.device("cpu"), torch.float64)
    assert relative_residual(observation.model, start, observation.delta(), inputs.double()) < 1e-4
    assert relative_residual(observation.model, start, observation.delta(), images(12)[6:].double()) > 0.5


def test_an_update_of_zero():
    observation = trained(images(2), steps=0, width=8)
    found = linearity(observation, images(2))
    assert found.verdict == ZERO and math.isnan(found.on_images.linearization_error)
    assert found.update.layers[0].rank == 0
    with pytest.raises(InputError, match="at least one image"):
        linearity(observation, images(0))


def test_a_linear_model_is_its_own_linearization():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double()
    final = {name: value + torch.randn_like(value) for name, value in model.state_dict().items()}
    error, remainder = linearization_error(model, model.state_dict(), final, images(4).double())
    assert error < 1e-12 and remainder < 1e-12


def outputs(*tail, hidden=36, scale=1.0, bias=0.0):
    torch.manual_seed(0)
    last = nn.Linear(hidden, 3)
    with torch.no_grad():
        last.weight.mul_(scale)
        last.bias.add_(bias)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, hidden), nn.ReLU(), last, *tail).double()


@pytest.mark.parametrize(
    ("model", "linear"),
    [
        (outputs(), True),
        (outputs(nn.Sigmoid()), False),
        (outputs(nn.Sigmoid(), bias=40.0), False),  # saturated: its values do not change at all nearby
        (outputs(nn.Tanh(), scale=0.0), False),  # odd about its point
        (outputs(nn.Softmax(dim=1)), False),
        (outputs(nn.ReLU6()), False),  # linear but for distant kinks
        (outputs(nn.BatchNorm1d(3)).eval(), True),  # affine
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 4, 4), nn.Flatten()).double(), True),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 4, 4), nn.Flatten(), nn.Softplus()).double(), False),
    ],
)
def test_the_output_layer_is_told_by_what_it_does(model, linear):
    assert has_linear_output(model, model.state_dict(), images(3).double()) is linear


def test_rank_and_gap_by_hand():
    """Singular values 8, 4 and noise of 1e-3: rank 2; and one row, which has no gap."""
    model = nn.Sequential(nn.Linear(40, 30, bias=False), nn.Linear(30, 1))
    basis = torch.linalg.qr(torch.randn(40, 2, generator=generator(1), dtype=torch.float64)).Q
    rows = torch.linalg.qr(torch.randn(30, 2, generator=generator(1), dtype=torch.float64)).Q
    noise = 1e-4 * torch.randn(30, 40, generator=generator(1), dtype=torch.float64)
    delta = {"0.weight": rows @ torch.diag(torch.tensor([8.0, 4.0]).double()) @ basis.T + noise}
    delta |= {"1.weight": torch.ones(1, 30).double(), "1.bias": torch.ones(1).double()}
    first, last = layer_ranks(model, delta, generator(1))
    assert first.rank == 2 and first.has_spectral_gap
    assert first.gap == pytest.approx(4 / float(torch.linalg.svdvals(noise)[0]), rel=0.2)
    assert (last.rows, last.columns, last.rank, last.l2) == (1, 31, 1, pytest.approx(31**0.5)) and math.isnan(last.gap)


def test_large_layers_are_sketched_without_losing_their_rank(monkeypatch):
    monkeypatch.setattr("attacks.kernel.regime.SKETCH", 60)
    left, right = (torch.randn(200, 7, generator=generator(1), dtype=torch.float64) for _ in range(2))
    noise = 1e-5 * torch.randn(200, 200, generator=generator(1), dtype=torch.float64)
    (layer,) = layer_ranks(nn.Sequential(nn.Linear(200, 200)), {"0.weight": left @ right.T + noise}, generator(1))
    assert layer.rank == 7 and layer.has_spectral_gap and (layer.rows, layer.columns) == (200, 200)


def test_images_on_which_no_output_moves_say_nothing():
    """The update lies in the weights of a pixel that is 0 in the images looked at."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2))
    initial = state_of(model)
    final = {**initial, "1.weight": initial["1.weight"].clone()}
    final["1.weight"][:, 0] += 1.0
    inputs = torch.rand(4, 1, 4, 4)
    inputs[:, 0, 0, 0] = 0.0
    assert linearity(observed(model, initial, final, (1, 4, 4)), inputs).verdict == UNMOVED


def test_the_adversary_s_version_looks_at_its_own_images_only():
    """Measured on other images, every number is what it is where those are the only ones ever seen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))
    initial = state_of(model)
    final = {name: value + 0.1 * torch.randn(value.shape) for name, value in initial.items()}
    private, own = torch.rand(6, 1, 4, 4), torch.rand(3, 1, 4, 4)

    observation = observed(model, initial, final, (1, 4, 4))
    seen = linearity(observation, private, complete=True)
    guessed = Linearity(seen.update, OnImages.of(observation, own, generator(1))).facts()
    assert guessed == pytest.approx(linearity(observation, own).facts(), nan_ok=True)
    assert guessed["hessian_norm"] != seen.on_images.hessian_norm and math.isnan(guessed["unexplained"])


def test_what_given_duals_leave_over_by_hand():
    """f(x) = w·x: Δw = (3, 4), the image (1, 0) with dual 3 explains its first entry and leaves 4 of a length of 5."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 1, bias=False)).double()
    state, delta = model.state_dict(), {"1.weight": torch.tensor([[3.0, 4.0]], dtype=torch.float64)}
    image = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64)
    duals = torch.tensor([[3.0]], dtype=torch.float64)
    assert relative_residual(model, state, delta, image, duals) == pytest.approx(0.8)
    assert relative_residual(model, state, delta, image) == pytest.approx(0.8)  # 3 is the best dual, too
