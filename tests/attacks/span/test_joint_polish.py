import torch
from torch import nn

from attacks import Observation, Reconstruction
from attacks.ntk.objective import make_objective
from attacks.span.joining import fit_duals, polish_jointly
from tests.attacks.conftest import digits, nearest
from tests.attacks.span.conftest import client, mlp, run


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).double()


def gradients(model, images):
    """∇f_k(x_j), one row each, (M · K, P), by ordinary backward passes."""
    rows = []
    for output in model(images).flatten():
        rows.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(output, model.parameters(), retain_graph=True)])
        )
    return torch.stack(rows)


def test_duals_are_the_least_squares_solution():
    model = network()
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2, 1, 6, 6, generator=generator, dtype=torch.float64)
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    delta = {name: torch.randn(v.shape, generator=generator, dtype=torch.float64) for name, v in state.items()}
    objective = make_objective(model, (1, 6, 6), delta, [state])
    duals = fit_duals(objective, images, torch.zeros(1, 2, 3, dtype=torch.float64), iterations=12)
    target = torch.cat([delta[name].flatten() for name, _ in model.named_parameters()])
    expected = torch.linalg.lstsq(gradients(model, images).T, target[:, None]).solution.view(1, 2, 3)
    torch.testing.assert_close(duals, expected)


def test_one_step_of_gradient_descent_is_explained_by_its_loss_gradient():
    model = network().float()
    images = torch.randn(3, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    labels = torch.arange(3)
    expected = 0.1 / 3 * (torch.eye(3) - model(images).detach().softmax(1))
    nn.functional.cross_entropy(model(images), labels).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    observation = Observation(model, ((initial, model.state_dict()),), (1, 6, 6))
    found = polish_jointly(observation, Reconstruction(images, torch.zeros(3), (0.0,)), 5)
    assert found.duals.shape == (2, 3, 3) and found.relative_residual < 1e-2
    # the parameters hardly moved, so both kernels are nearly one and share the duals
    torch.testing.assert_close(found.duals.sum(0), expected, rtol=0.1, atol=2e-3)


def test_the_span_attack_returns_duals_on_demand():
    images = digits(4)
    found = run(client(mlp(width=128), images, batch=4, epochs=10), joint_polish=20)
    assert found.duals.shape == (2, 4, 10) and found.relative_residual < 0.1
    assert (nearest(images, found) < 0.1).all()


def test_rounds_attacked_apart_are_polished_apart():
    """Every image's duals explain the round it was used in: η Σ_t (y − softmax) / N over the steps of that round."""
    model, images, expected = mlp(width=128), digits(8), []
    pairs = []
    for own in images.split(4):
        expected.append(0.02 / 4 * 3 * (torch.eye(10)[:4] - model(own).detach().softmax(1)))
        pairs += client(model, own, batch=4, epochs=3, lr=0.02).pairs
    found = run(Observation(model, tuple(pairs), (1, 8, 8)), joint_polish=5)
    assert found.duals.shape == (2, 8, 10) and found.relative_residual < 0.1
    order = torch.cdist(images.flatten(1), found.images.flatten(1)).argmin(1)
    assert sorted(order.tolist()) == list(range(8))
    torch.testing.assert_close(found.duals.sum(0)[order], torch.cat(expected), rtol=0.1, atol=1e-3)
    assert not any("joint_polish" in warning for warning in found.warnings)
