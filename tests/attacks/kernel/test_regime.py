import math

import pytest
import torch
from torch import nn

from attacks import InputError
from attacks.kernel.linearization import has_linear_output, linearization_error, share_left_by, unexplained_share
from attacks.kernel.regime import KERNEL_REGIME, LARGE_STEP, NO_RANK, NONLINEAR_OUTPUT, UNMOVED, ZERO, Linearity
from attacks.update.layer_ranks import layer_updates
from clients.config import ModelConfig, TrainingConfig
from clients.models import build_model
from clients.training import train


def images(count, size=6):
    return torch.randn(count, 1, size, size, generator=torch.Generator().manual_seed(0))


def generator():
    return torch.Generator().manual_seed(1)


def copied(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def trained(inputs, optimizer="sgd", rate=0.05, epochs=5, **config):
    """(model, initial, final) of a client that has these images, three outputs, mean squared error."""
    model = build_model(ModelConfig(**config), tuple(inputs.shape[1:]), 3, seed=0)
    initial = copied(model)
    targets = torch.nn.functional.one_hot(torch.arange(len(inputs)) % 3, 3).float()
    setting = TrainingConfig(loss="mse", optimizer=optimizer, learning_rate=rate, epochs=epochs)
    train(model, inputs, targets, setting, generator())
    return model, initial, copied(model)


def test_a_quadratic_by_hand():
    """f = v w x, both 1 → 3, x = 2: f_lin = 2 + 2·2 + 2·2 = 10, f = 18. H = [[0, x], [x, 0]], and ½·2·(2² + 2²) = 8 is
    the remainder: the bound is met."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    x = torch.full((1, 1, 1, 1), 2.0)
    states = [dict.fromkeys(("1.weight", "2.weight"), torch.full((1, 1), value)) for value in (1.0, 3.0)]
    found = Linearity.of(model, *states, x, generator(), complete=True)
    assert found.linearization_error == pytest.approx(8 / 16) and found.remainder == pytest.approx(8)
    assert found.hessian_norm == pytest.approx(2) and found.bound == pytest.approx(8)
    assert (
        found.delta_l2 == pytest.approx(8**0.5)
        and found.delta_linf == 2
        and found.unexplained == pytest.approx(0, abs=1e-6)
    )


@pytest.mark.parametrize("activation", ["tanh", "softplus", "gelu"])
def test_the_remainder_keeps_to_the_bound(activation):
    inputs = images(8)
    model, initial, final = trained(inputs, width=64, activation=activation, rate=0.2, epochs=20)
    found = Linearity.of(model, initial, final, inputs, generator())
    assert 0 < found.remainder <= found.bound


def test_a_wide_network_after_a_small_step_is_in_the_kernel_regime():
    inputs = images(6)
    model, initial, final = trained(inputs, width=1024, rate=0.005, epochs=2)
    found = Linearity.of(model, initial, final, inputs, generator(), complete=True)
    assert found.verdict == KERNEL_REGIME and found.linearization_error < 0.1 and found.unexplained < 0.2
    assert found.layers[0].rank == 6 and found.layers[0].clear and found.layers[0].gap > 100
    assert Linearity.of(model, initial, final, images(3), generator()).verdict == KERNEL_REGIME  # of an adversary


def test_a_narrow_network_that_drifts_leaves_the_span_attack_only():
    inputs = images(6)
    model, initial, final = trained(inputs, width=64, rate=0.3, epochs=300)
    found = Linearity.of(model, initial, final, inputs, generator(), complete=True)
    assert found.verdict == LARGE_STEP and found.linearization_error > 0.3 and found.layers[0].rank == 6


@pytest.mark.parametrize("output", ["sigmoid", "tanh", "softmax"])
def test_a_non_linear_output_is_said_whatever_the_step(output):
    inputs = images(6)
    model, initial, final = trained(inputs, width=256, output_activation=output, epochs=1)
    assert Linearity.of(model, initial, final, inputs, generator()).verdict == NONLINEAR_OUTPUT


def test_adam_leaves_no_rank_and_little_in_the_images_gradients():
    inputs = images(6)
    model, initial, final = trained(inputs, "adam", rate=1e-3, width=256, epochs=5)
    found = Linearity.of(model, initial, final, inputs, generator(), complete=True)
    assert found.verdict == NO_RANK and found.unexplained > 0.5 and not found.has_rank


def test_one_sgd_step_is_explained_by_the_images_gradients_and_by_no_others():
    inputs = images(6)
    model, initial, final = trained(inputs, width=64, epochs=1)
    double = [{name: value.double() for name, value in state.items()} for state in (initial, final)]
    delta = {name: double[1][name] - double[0][name] for name in initial}
    assert unexplained_share(model, double[0], delta, inputs.double()) < 1e-4
    others = images(12)[6:].double()
    assert unexplained_share(model, double[0], delta, others) > 0.5


def test_an_update_of_zero():
    model = build_model(ModelConfig(width=8), (1, 6, 6), 3, seed=0)
    found = Linearity.of(model, model.state_dict(), model.state_dict(), images(2), generator())
    assert found.verdict == ZERO and math.isnan(found.linearization_error) and found.layers[0].rank == 0
    with pytest.raises(InputError, match="at least one image"):
        Linearity.of(model, model.state_dict(), model.state_dict(), images(0), generator())


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
    basis = torch.linalg.qr(torch.randn(40, 2, generator=generator(), dtype=torch.float64)).Q
    rows = torch.linalg.qr(torch.randn(30, 2, generator=generator(), dtype=torch.float64)).Q
    noise = 1e-4 * torch.randn(30, 40, generator=generator(), dtype=torch.float64)
    delta = {"0.weight": rows @ torch.diag(torch.tensor([8.0, 4.0]).double()) @ basis.T + noise}
    delta |= {"1.weight": torch.ones(1, 30).double(), "1.bias": torch.ones(1).double()}
    first, last = layer_updates(model, delta, generator())
    assert (
        first.rank == 2
        and first.clear
        and first.gap == pytest.approx(4 / float(torch.linalg.svdvals(noise)[0]), rel=0.2)
    )
    assert (last.rows, last.columns, last.rank, last.l2) == (1, 31, 1, pytest.approx(31**0.5)) and math.isnan(last.gap)


def test_large_layers_are_sketched_without_losing_their_rank(monkeypatch):
    monkeypatch.setattr("attacks.update.layer_ranks.SKETCH", 60)
    left, right = (torch.randn(200, 7, generator=generator(), dtype=torch.float64) for _ in range(2))
    noise = 1e-5 * torch.randn(200, 200, generator=generator(), dtype=torch.float64)
    (layer,) = layer_updates(nn.Sequential(nn.Linear(200, 200)), {"0.weight": left @ right.T + noise}, generator())
    assert layer.rank == 7 and layer.clear and (layer.rows, layer.columns) == (200, 200)


def test_images_on_which_no_output_moves_say_nothing():
    """The update lies in the weights of a pixel that is 0 in the images looked at."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2))
    initial = copied(model)
    final = {**initial, "1.weight": initial["1.weight"].clone()}
    final["1.weight"][:, 0] += 1.0
    inputs = torch.rand(4, 1, 4, 4)
    inputs[:, 0, 0, 0] = 0.0
    found = Linearity.of(model, initial, final, inputs, generator())
    assert found.verdict == UNMOVED


def test_the_adversary_s_version_looks_at_its_own_images_only():
    """Measured on other images, every number is what it is where those are the only ones ever seen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))
    initial = copied(model)
    final = {name: value + 0.1 * torch.randn(value.shape) for name, value in initial.items()}
    private, own = torch.rand(6, 1, 4, 4), torch.rand(3, 1, 4, 4)

    seen = Linearity.of(model, initial, final, private, generator(), complete=True)
    guessed = seen.on(model, initial, final, own, generator()).facts()
    alone = Linearity.of(model, initial, final, own, generator()).facts()
    exact = {name: value for name, value in alone.items() if name not in ("hessian_norm", "bound", "unexplained")}
    assert {name: guessed[name] for name in exact} == exact
    assert guessed["hessian_norm"] == pytest.approx(alone["hessian_norm"], rel=0.02)
    assert guessed["hessian_norm"] != seen.hessian_norm


def test_what_given_duals_leave_over_by_hand():
    """f(x) = w·x: Δw = (3, 4), the image (1, 0) with dual 3 explains its first entry and leaves 4 of a length of 5."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 1, bias=False)).double()
    state, delta = model.state_dict(), {"1.weight": torch.tensor([[3.0, 4.0]], dtype=torch.float64)}
    image = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64)
    duals = torch.tensor([[3.0]], dtype=torch.float64)
    assert share_left_by(model, state, delta, image, duals) == pytest.approx(0.8)
    assert unexplained_share(model, state, delta, image) == pytest.approx(0.8)  # 3 is the best dual, too
