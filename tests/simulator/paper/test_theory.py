"""The mathematics of the paper's theorems as the experiments compute them, against closed forms and by hand."""

import math

import pytest
import torch
from torch import nn

from attacks.kernel.empirical import empirical_ntk, kernel_duals
from attacks.kernel.infinite import InfiniteNTK
from attacks.ntk.objective import make_objective
from attacks.scoring.images import matched_l2
from simulator.paper.command import load_file
from simulator.paper.experiment import ExperimentRun
from simulator.paper.predicted_points import (
    Centered,
    PredictedSettings,
    both_losses,
    leave_one_out,
    one_point,
    rkip,
)
from simulator.paper.reconstruction.duals import fit, weak_and_strong
from simulator.paper.reconstruction.gradient_sums import image_memory, largest_error
from simulator.paper.sphere import Embedding, SphereSettings, minimize, on_sphere
from simulator.run.display import Display
from simulator.tools.distillation import Owner


def cell_of(name, tmp_path, *overrides):
    source = load_file(name, "quick", ["data.public=50", "data.test=20", "seed=0", *overrides])
    return ExperimentRun(name, "quick", source, tmp_path, Display(), lambda *_: None, lambda _: None).scenario.cells()[
        0
    ]


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mlp(inputs=9, width=12, outputs=1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs)).double()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_accumulated_residuals_are_the_duals_of_linearized_training(tmp_path, momentum):
    said = ["partition.images=6", "model.width=32", "training.dynamics=linearized"]
    cell = cell_of("figure11", tmp_path, *said)
    training = cell.scenario.training.model_copy(update={"momentum": momentum, "steps": 30})
    owner = Owner.of(cell.scenario)
    trained = fit(cell, owner, training, torch.float64)
    assert trained.report.steps == 30
    model, delta = trained.model, trained.delta
    objective = make_objective(model, owner.data.shape, delta, [trained.initial])
    sums = objective.gradient_sum(owner.images.double(), trained.duals[None], None)
    for name, value in delta.items():
        assert torch.allclose(sums[name], value, rtol=1e-9, atol=1e-14)


def test_accumulated_residuals_converge_to_kernel_regression(tmp_path):
    said = ["partition.images=4", "model.width=64", "training.dynamics=linearized"]
    cell = cell_of("figure11", tmp_path, *said)
    update = {"steps": 4000, "stop_at_loss": 1e-14, "learning_rate": 0.02}
    owner = Owner.of(cell.scenario)
    trained = fit(cell, owner, cell.scenario.training.model_copy(update=update), torch.float64)
    images = owner.images.double()
    with torch.no_grad():
        residual = owner.targets.double() - torch.func.functional_call(trained.model, trained.initial, (images,))
    expected = kernel_duals(empirical_ntk(trained.model, trained.initial, images), residual)
    assert torch.allclose(trained.duals, expected, rtol=1e-4)


def test_quarters_of_the_duals():
    import pandas as pd

    frame = pd.DataFrame({"alpha": [1.0, 2, 3, 4, 5], "l2": [9.0, 7, 5, 3, 1]})  # quartiles at 2 and 4
    frame = frame.assign(floor_l2=[10.0, 12, 0, 0, 0], mean_image_l2=[8.0, 10, 0, 0, 0])
    assert weak_and_strong(frame) == {"weak": 8.0, "strong": 2.0, "floor": 9.0}


def test_the_discrepancy_is_a_least_squares_distance():
    # in explicit features the embedding is a point, and the nearest measure on other images its projection
    kernel, images, others = InfiniteNTK(1, parameterization="ntk"), on_sphere(random(3, 1, 2, 2)), random(4, 1, 2, 2)
    others, duals = on_sphere(others), random(3, 1, seed=1)
    features = torch.linalg.cholesky(kernel(torch.cat([images, others])))
    point = features[:3].T @ duals
    projected = features[3:].T @ torch.linalg.lstsq(features[3:].T, point).solution
    target = Embedding(kernel, images, duals)
    assert target.squared_norm().item() == pytest.approx(point.square().sum().item())
    assert target.discrepancy(others).item() == pytest.approx((point - projected).square().sum().item(), rel=1e-6)
    assert target.discrepancy(images).item() == pytest.approx(0, abs=1e-7)
    assert target.discrepancy(torch.cat([images.flip(0), others[:1]])).item() == pytest.approx(0, abs=1e-7)


def test_three_points_on_the_sphere_are_recovered():
    images = on_sphere(random(3, 1, 2, 2))
    kernel = InfiniteNTK(2, parameterization="ntk")
    duals = kernel_duals(kernel(images), torch.tensor([[1.0], [-1.0], [1.0]], dtype=torch.float64))
    settings = SphereSettings(iterations=1500, candidates=4.0)
    trace, found = minimize(Embedding(kernel, images, duals), settings, torch.Generator().manual_seed(0))
    assert found.flatten(1).norm(dim=1).tolist() == pytest.approx([1] * 12)
    assert trace.mmd.iloc[-1] < 1e-3 and matched_l2(images, found)[0].max() < 0.1 < trace.worst_l2.iloc[0]


def test_rkip_by_hand():
    # features φ_T = (1, 1) and φ_S = (1, 0): α_T = 2/2 = 1, α_S = 1, and ‖(1, 1) − (1, 0)‖² = 1
    one = torch.ones((1, 1), dtype=torch.float64)
    assert rkip(2 * one, one, one, 2 * one, one) == pytest.approx(1)
    assert rkip(2 * one, 2 * one, 2 * one, 3 * one, 3 * one) == pytest.approx(0)  # the training set itself


def test_rkip_is_the_reconstruction_loss_of_residuals_only(tmp_path):
    cell = cell_of("theorem2", tmp_path, "model.width=64", "partition.images=8")
    owner = Owner.of(cell.scenario)
    labels = torch.tensor([[1.0], [-1.0], [1.0]], dtype=torch.float64)
    images, model = random(3, *owner.data.shape), owner.network("test").double()
    losses = both_losses(model, owner, images, labels)
    assert losses["rkip_residual"] == pytest.approx(losses["reconstruction"], rel=1e-8)
    assert losses["rkip_class"] == pytest.approx(losses["reconstruction"], rel=1e-8)
    assert losses["rkip_label"] != pytest.approx(losses["reconstruction"], rel=1e-3)
    zero = both_losses(Centered(model), owner, images, labels)
    assert zero["rkip_label"] == pytest.approx(zero["reconstruction"], rel=1e-8)


def test_a_centered_network_is_0_and_has_the_same_kernel():
    model, images = mlp(), random(4, 1, 3, 3)
    centered = Centered(model)
    assert centered(images).abs().max() == 0
    assert torch.allclose(
        empirical_ntk(centered, centered.state_dict(), images), empirical_ntk(model, model.state_dict(), images)
    )


def test_leaving_one_out_is_least_norm_regression():
    # a linear model without bias: features are the images, the prediction that of the pseudoinverse
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 1, bias=False)).double()
    nn.init.zeros_(model[1].weight)
    images, targets = random(4, 1, 3, 3), random(4, 1, seed=1)
    rest = [0, 1, 3]
    weights = torch.linalg.pinv(images[rest].flatten(1)) @ targets[rest]
    kernel = empirical_ntk(model, model.state_dict(), images)  # outputs are 0: the residual is the target
    prediction, variance = leave_one_out(kernel, targets[:, 0], torch.arange(4) != 2)
    assert prediction == pytest.approx((images[2].flatten() @ weights).item())
    basis = torch.linalg.qr(images[rest].flatten(1).T)[0]
    outside = images[2].flatten() - basis @ (basis.T @ images[2].flatten())
    assert variance == pytest.approx(outside.square().sum().item())


@pytest.mark.parametrize("gap", [0.0, 0.5])
def test_the_dual_of_a_point_is_its_gap_over_its_variance(tmp_path, gap):
    cell = cell_of("appendix_c", tmp_path, "model.width=64", "partition.images=5")
    row = one_point(cell, 2, gap, PredictedSettings(iterations=2))
    assert row["dual"] == pytest.approx(row["predicted_dual"], rel=1e-6, abs=1e-9 * row["others_dual"])
    assert (row["dual"] == pytest.approx(0, abs=1e-9 * row["others_dual"])) == (gap == 0)


def test_minibatches_are_exact_and_images_weigh_what_they_weigh():
    assert max(largest_error(7, batch, double) for batch in (1, 3) for double in (False, True)) < 1e-12
    assert image_memory(2**20 // 4) == math.prod((1, 28, 28))
