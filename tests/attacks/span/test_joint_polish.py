import torch
from torch import nn

from attacks import Knowledge, Observation, get_attack
from attacks.ntk.objective import make_objective
from attacks.span.joint_polish import explain, fit_duals


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
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(3, 1, 6, 6, generator=generator)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    labels = torch.arange(3)
    expected = 0.1 / 3 * (torch.eye(3) - model(images).detach().softmax(1))
    nn.functional.cross_entropy(model(images), labels).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    observation = Observation(model, ((initial, model.state_dict()),), (1, 6, 6))
    _, duals, residual = explain(observation, images, 5, torch.device("cpu"))
    assert duals.shape == (2, 3, 3) and residual < 1e-2
    # the parameters hardly moved, so both kernels are nearly one and share the duals
    torch.testing.assert_close(duals.sum(0), expected, rtol=0.1, atol=2e-3)


def test_the_span_attack_returns_duals_on_demand():
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    images = torch.tensor(load_digits().images[:4] / 16, dtype=torch.float32)[:, None] - 0.3
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), torch.arange(4)).backward()
        optimizer.step()
    observation = Observation(model, ((initial, model.state_dict()),), (1, 8, 8))
    found = get_attack("span", joint_polish=20).run(observation, Knowledge(), torch.Generator().manual_seed(0))
    assert found.duals.shape == (2, 4, 10) and found.relative_residual < 0.1
    assert (torch.cdist(images.flatten(1), found.images.flatten(1)).min(1).values < 0.1).all()
