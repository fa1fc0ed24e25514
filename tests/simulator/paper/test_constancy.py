"""Constancy of the kernel against width, on small networks and hand-made tables."""

import json
import math
from copy import deepcopy

import pandas as pd
import pytest
import torch
from rich.console import Console

from attacks.kernel.empirical import empirical_ntk
from simulator.paper import constancy
from simulator.paper.against_width import HessianSettings, fitted, hessian_statistics
from simulator.paper.command import load_file, run_experiment
from simulator.paper.constancy import (
    ConstancyData,
    Network,
    descend,
    learning_rate,
    measure,
    measure_loss,
    measure_training,
    scale_change,
)


def test_inputs_lie_on_the_sphere_and_seeds_differ():
    data = ConstancyData.of(0)
    assert torch.allclose(data.inputs.flatten(1).norm(dim=1), torch.full((32,), 8.0))
    assert not torch.equal(data.inputs, ConstancyData.of(1).inputs) and torch.equal(
        data.inputs, ConstancyData.of(0).inputs
    )
    assert set(data.targets("sigmoid").unique().tolist()) == {0.0, 1.0}
    assert data.targets("softmax").sum(1).tolist() == [1.0] * 32


def test_the_offset_is_added_and_not_trained():
    model = Network(16, "linear", "tanh", 0).build()
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert frozen == ["5.bias"] and model[5].bias.item() == 1.0


def test_one_hidden_layer_of_kernel_by_hand():
    """A step of gradient descent on squared loss moves by rate/8 · ‖Σ (f − y) ∇f‖, rate = share · 8 / λ_max(K)."""
    network, data = Network(32, "linear", "tanh", 0), ConstancyData.of(0)
    model = network.build()
    kernel = empirical_ntk(model, model.state_dict(), data.inputs)
    own = kernel[:8, :8].double()
    targets = data.targets("linear")
    with torch.no_grad():
        residual = (model(data.inputs[:8]) - targets[:8]).double()
    expected = 0.5 / float(torch.linalg.eigvalsh(own)[-1]) * math.sqrt(float(residual.T @ own @ residual))
    loss = data.loss(model, targets, "mse")
    steps, length = descend(model, loss, learning_rate(kernel, 0.5), lambda steps, length: True)
    assert steps == 1 and length == pytest.approx(expected, rel=1e-3)


def test_the_update_ends_on_the_radius():
    model = Network(16, "linear", "relu", 0).build()
    start = deepcopy(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    before = {name: parameter - start[name] for name, parameter in model.named_parameters()}
    scale_change(model, start, 0.25)
    assert all(torch.allclose(p - start[n], 0.25 * before[n], atol=1e-6) for n, p in model.named_parameters())


def test_narrow_against_wide_and_linear_against_sigmoid():
    """The rebuttal's main point at widths where it shows clearly."""
    found = {
        (output, width): measure(Network(width, output, "tanh", 0), 1.0, bound=True)
        for output in ("linear", "sigmoid")
        for width in (32, 512)
    }
    assert found["linear", 512]["kernel_change"] < 0.2 * found["linear", 32]["kernel_change"]
    assert found["sigmoid", 512]["kernel_change"] > 5 * found["linear", 512]["kernel_change"]
    for row in found.values():
        assert row["remainder"] <= 0.5 * row["sup_hessian"] and row["hessian_norm"] <= row["sup_hessian"]


def test_training_brings_the_loss_down_and_says_where_it_cannot(monkeypatch):
    row = measure_training(Network(64, "linear", "gelu", 0), "hinge", 0.5)
    assert row["steps"] % 5 == 0 and row["delta_linf"] < row["delta_l2"]
    monkeypatch.setattr(constancy, "MAX_STEPS", 2)
    failed = measure_training(Network(64, "linear", "gelu", 0), "hinge", 0.5)
    assert failed["steps"] == 2 and math.isnan(failed["delta_l2"]) and math.isnan(failed["delta_linf"])


def test_the_output_bias_is_trained_where_asked_and_then_moves_the_most():
    """Its gradient is 1 and that of every other parameter of order 1 / √width."""
    moved = {}
    for output_bias in (False, True):
        model = Network(256, "linear", "gelu", 0, output_bias).build()
        before = model.state_dict()
        model(torch.ones(1, 1, 8, 8)).sum().backward()
        steps = {name: p.grad.abs().max() for name, p in model.named_parameters() if p.requires_grad}
        moved[output_bias] = max(steps, key=steps.get)
        assert before.keys() == dict(model.named_parameters()).keys()
    last = [name for name in before if name.endswith("bias")][-1]
    assert moved[True] == last != moved[False]


def test_a_slope_by_hand():
    frame = pd.DataFrame({"width": [100, 100, 400, 400], "x": [3.0, 5.0, 1.0, 3.0]})  # means 4 and 2
    assert fitted(frame, "x") == pytest.approx({"slope": -0.5, "narrowest": 4, "widest": 2})


def table(linear, sigmoid, linf=-0.5, hinge=0.0, by_loss=-0.5):
    """Quantities that follow exact power laws with these slopes."""
    rows = []

    def add(part, width, output, activation, **values):
        same = {"seed": 0, "radius": 1.0, "output_bias": False}
        rows.append(same | {"part": part, "width": width, "output": output, "activation": activation} | values)

    for width in (256, 1024):
        for output, power in (("linear", linear), ("sigmoid", sigmoid), *((o, 0.0) for o in ("tanh", "softmax"))):
            for activation in ("tanh", "relu"):
                value = {"hessian_norm": width**power, "kernel_change": width**power, "remainder": 0.4 * width**power}
                add("bound", width, output, activation, **value, sup_hessian=width**power)
        cut = {"hessian_norm": width**-0.5, "kernel_change": width**hinge, "kernel_change_within": 1 / width}
        add("bound", width, "relu", "tanh", crossed=0.1, **cut)
        for loss in ("mse", "cross_entropy", "hinge"):
            add("norms", width, "linear", "tanh", loss=loss, delta_l2=1.0, delta_linf=width**linf)
            add("losses", width, "linear", "tanh", loss=loss, kernel_change=width**by_loss)
        add("norms", width, "sigmoid", "tanh", loss="mse", delta_l2=1.0, delta_linf=width**linf)
        add("norms", width, "linear", "tanh", loss="mse", output_bias=True, delta_l2=1.0, delta_linf=1.0)
        for activation in ("softmax", "maxout"):
            add("open", width, "linear", activation, hessian_norm=1.0, kernel_change=width**-0.5)
    return pd.DataFrame(rows)


@pytest.fixture
def claims_of(judged):
    """The claims of `hessian` on a table."""
    return lambda data: list(judged("hessian", hessian_statistics(data)).values())


def test_claims_are_judged_by_their_slopes(claims_of):
    assert [c.met for c in claims_of(table(-0.5, 0.0))][:6] == [True] * 6
    falling = {c.claim.split(" ")[0]: c.met for c in claims_of(table(-0.5, -0.5))[:5]}
    assert falling == {"behind": False, "nor": True, "the": True, "it": False}
    assert not claims_of(table(-0.1, 0.0))[0].met
    claims = {c.claim: c.met for c in claims_of(table(-0.5, 0.0, linf=0.0))}
    assert not claims["under mse ‖Δθ‖₂ stays of order 1 while ‖Δθ‖_∞ falls"]
    measured = next(c.measured for c in claims_of(table(-0.5, 0.0)) if c.claim.startswith("under mse ‖"))
    assert "slopes 0.00 and -0.50" in measured and "gradient is 1 at any width, the second is 0.00" in measured
    assert claims["maxout as a hidden non-linearity: the kernel becomes constant with width"]


def test_claims_about_the_hinge_and_the_loss(claims_of):
    def met(**slopes):
        return {c.claim.split(",")[0]: c.met for c in claims_of(table(-0.5, 0.0, **slopes))}

    names = "behind a hinge-like output the kernel is not constant", "constancy is a matter of the model"
    assert [met()[name] for name in names] == [True, True]
    assert [met(hinge=-0.5, by_loss=0.0)[name] for name in names] == [False, False]


def test_an_output_that_is_cut_off_moves_the_kernel_where_its_sign_changes():
    """At a width where the kernel of the network before the cut hardly moves any more."""
    found = measure(Network(512, "relu", "tanh", 0), 0.5)
    assert found["crossed"] > 0 and found["kernel_change"] > 5 * found["kernel_change_within"]
    assert found["kernel_change_within"] < 0.05


def test_the_kernel_under_cross_entropy_by_hand():
    """One step of gradient descent on the logits of three classes, as long as the radius, with autograd's gradient."""
    network, data = Network(32, "linear", "tanh", 0), ConstancyData.of(0)
    model = network.build(3)
    before = empirical_ntk(model, model.state_dict(), data.inputs)
    loss = torch.nn.functional.cross_entropy(model(data.inputs[:8]), data.labels[:8])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, trained)
    length = torch.stack([g.norm() for g in gradients]).norm()
    with torch.no_grad():
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter -= 1e-3 * gradient / length
    change = float((empirical_ntk(model, model.state_dict(), data.inputs) - before).norm() / before.norm())
    found = measure_loss(network, "cross_entropy", 1e-3)
    assert found["steps"] == 1 and found["kernel_change"] == pytest.approx(change, rel=0.02)


def test_where_nothing_was_narrow_enough_for_the_bound_it_is_not_judged(claims_of):
    claims = claims_of(table(-0.5, 0.0).drop(columns=["remainder", "sup_hessian"]))
    assert next(claim.met for claim in claims if claim.claim.startswith("|f")) is None


def test_every_profile_trains_with_an_activation_that_brings_the_loss_down():
    """A sigmoid within did not, at the end of a long list of networks."""
    for profile in ("quick", "full"):
        settings = HessianSettings.model_validate(load_file("hessian", profile, []).data["settings"])
        network = Network(min(settings.training_widths), "linear", settings.training_activation, 0)
        for loss in ("mse", "cross_entropy", "hinge"):
            assert not math.isnan(measure_training(network, loss, 0.2)["delta_l2"])


@pytest.mark.slow
def test_the_experiment_writes_its_tables(tmp_path):
    small = [f"settings.{key}=[16, 64]" for key in ("widths", "open_widths", "training_widths")]
    said = [*small, "settings.seeds=[0]", "settings.activations=[relu, tanh]"]
    run_experiment("hessian", "quick", said, tmp_path / "out", Console(quiet=True))
    data = pd.read_csv(tmp_path / "out" / "data.csv")
    assert set(data.part) == {"bound", "open", "norms", "losses"}
    bound, norms = data[data.part == "bound"], data[data.part == "norms"]
    assert (bound.hessian_norm > 0).all() and (bound.kernel_change > 0).all()
    assert bound.groupby("output").size().to_dict() == {
        "linear": 4, "sigmoid": 4, "tanh": 2, "softmax": 2, "bottleneck": 2, "relu": 2
    }  # fmt: skip
    assert (norms.delta_linf < norms.delta_l2).all()
    assert len(json.loads((tmp_path / "out" / "claims.json").read_text())) == 17
    assert (tmp_path / "out" / "figure.png").stat().st_size > 10_000
