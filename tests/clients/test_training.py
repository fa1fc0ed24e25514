import math

import pytest
import torch
from torch import nn

from clients.config import TrainingConfig
from clients.training import FedProx, linearize, planned_steps, train


def problem(count=5, width=12, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, width), nn.ReLU(), nn.Linear(width, 1)).double()
    images = torch.randn((count, 1, 3, 3), dtype=torch.float64)
    return model, images, torch.randn((count, 1), dtype=torch.float64)


def generator():
    return torch.Generator().manual_seed(0)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def jacobian(model, images):
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(output, list(model.parameters()), retain_graph=True)])
        for output in model(images)[:, 0]
    ]
    return torch.stack(rows)


def test_one_step_of_sgd_is_the_gradient():
    model, images, targets = problem()
    before, jac = flat(model), jacobian(model, images)
    residual = (model(images) - targets).detach()[:, 0]
    train(model, images, targets, TrainingConfig(loss="mse", learning_rate=0.1, steps=1), generator())
    assert torch.allclose(flat(model), before - 0.1 * jac.T @ residual / 5, atol=1e-12)


def test_linearized_training_reaches_the_kernel_solution():
    """Δθ = Jᵀ K⁻¹ (y − f₀), the least-norm solution (Loo et al. 2024, section 3)."""
    model, images, targets = problem()
    before, jac, output = flat(model), jacobian(model, images), model(images).detach()
    config = TrainingConfig(
        loss="mse", learning_rate=0.3, momentum=0.9, steps=20_000, stop_at_loss=1e-24, dynamics="linearized"
    )
    report = train(model, images, targets, config, generator())
    duals = torch.linalg.solve(jac @ jac.T, targets - output)
    assert report.last_loss < 1e-20
    assert torch.allclose(flat(model) - before, (jac.T @ duals)[:, 0], atol=1e-8)


def test_linearized_model_is_exact_at_its_origin_and_linear_in_the_parameters():
    model, images, _ = problem()
    predict, origin = linearize(model), model(images).detach()
    assert torch.allclose(predict(images), origin)
    jac = jacobian(model, images)
    with torch.no_grad():
        steps = [0.1 * torch.randn_like(p) for p in model.parameters()]
        for parameter, step in zip(model.parameters(), steps, strict=True):
            parameter += step
    moved = jac @ torch.cat([s.flatten() for s in steps])
    assert torch.allclose(predict(images)[:, 0], origin[:, 0] + moved, atol=1e-12)


def test_a_weight_that_two_layers_share_counts_twice_in_the_linearized_model():
    """Of f = w² x, the tangent at w = 3 is (9 + 6 (w − 3)) x."""
    first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    second.weight = first.weight
    nn.init.constant_(first.weight, 3.0)
    predict = linearize(nn.Sequential(first, second))
    nn.init.constant_(first.weight, 4.0)
    assert predict(torch.tensor([[2.0]])).item() == pytest.approx((9 + 6) * 2)


def test_minibatches_visit_every_image_once_an_epoch_and_follow_the_generator():
    config = TrainingConfig(loss="mse", learning_rate=0.01, epochs=3, batch_size=2)
    results = []
    for _ in range(2):
        model, images, targets = problem()
        report = train(model, images, targets, config, generator())
        assert report.steps == 3 * 3 == planned_steps(config, 5)
        results.append(flat(model))
    assert torch.equal(*results)


def test_early_stop():
    model, images, targets = problem()
    config = TrainingConfig(loss="mse", learning_rate=0.1, epochs=5000, stop_at_loss=1e-3)
    report = train(model, images, targets, config, generator())
    assert report.steps < 5000 and report.last_loss < 1e-3 < report.first_loss


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_first_step_of_adam_moves_every_parameter_by_the_learning_rate(optimizer):
    model, images, targets = problem()
    before, residual = flat(model), (model(images) - targets).detach()[:, 0]
    gradient = jacobian(model, images).T @ residual / len(images)
    config = TrainingConfig(loss="mse", optimizer=optimizer, learning_rate=1e-3, steps=1)
    train(model, images, targets, config, generator())
    moved = (flat(model) - before).abs()[gradient.abs() > 1e-3]  # far above Adam's ε = 1e-8
    assert torch.allclose(moved, torch.full_like(moved, 1e-3), rtol=1e-4)


def test_weight_decay_of_sgd():
    model, images, targets = problem()
    plain, _, _ = problem()
    common = {"loss": "mse", "learning_rate": 0.1, "steps": 1}
    before = flat(model)
    train(model, images, targets, TrainingConfig(weight_decay=0.5, **common), generator())
    train(plain, images, targets, TrainingConfig(**common), generator())
    assert torch.allclose(flat(model), flat(plain) - 0.1 * 0.5 * before, atol=1e-12)


def test_proximal_term_pulls_back():
    config = TrainingConfig(loss="mse", learning_rate=0.05, steps=200)
    moved = []
    for strength in (0.0, 10.0):
        model, images, targets = problem()
        before = flat(model)
        train(model, images, targets, config, generator(), [FedProx(strength)])
        moved.append(float((flat(model) - before).norm()))
    assert moved[1] < 0.5 * moved[0]


def test_frozen_layers_stay_and_so_do_batch_norm_s_statistics_in_evaluation_mode():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 1))
    model[0].weight.requires_grad_(False)
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    config = TrainingConfig(loss="mse", steps=3, batch_norm="eval")
    train(model, torch.randn(6, 1, 3, 3), torch.randn(6, 1), config, generator())
    after = model.state_dict()
    for name in ("0.weight", "1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(after[name], kept[name])
    assert not torch.equal(after["4.weight"], kept["4.weight"])


def test_divergence_stops_at_once():
    model, images, targets = problem()
    report = train(model, images, targets, TrainingConfig(loss="mse", learning_rate=1e6, steps=10_000), generator())
    assert not math.isfinite(report.last_loss) and report.steps < 200


def test_autocast_multiplies_in_bfloat16_and_keeps_float32_parameters():
    """1 + 2⁻⁹ is 1 in bfloat16, which has 8 bits: the gradient (f − y) x of one weight is 1, and not 1.006."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model[1].weight.fill_(1 + 2**-9)
    image, target = torch.full((1, 1, 1, 1), 1 + 2**-9), torch.zeros(1, 1)
    config = TrainingConfig(loss="mse", learning_rate=0.5, steps=1, autocast="bfloat16")
    report = train(model, image, target, config, generator())
    assert model[1].weight.dtype == torch.float32 and model[1].weight.item() == 0.5 + 2**-9
    assert report.first_loss == 0.5
