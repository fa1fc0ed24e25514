from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge, Observation, get_attack
from attacks.kkt import margin_directions
from attacks.ntk.objective import AutogradObjective, make_objective
from tests.attacks.conftest import digits, generator, mlp, nearest, state_of


def network(outputs):
    torch.manual_seed(0)
    hidden = [nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(32, outputs))


def observe(model, initial=None):
    """The model's parameters as what a client returned."""
    state = state_of(model)
    initial = initial or {name: torch.zeros_like(value) for name, value in state.items()}
    return Observation(model, ((initial, state),), (1, 4, 4))


TOLD = Knowledge(num_private=2, pixel_mean=(0.5,))


def run(observation, knowledge=TOLD, seed=0, **options):
    return get_attack("kkt", **options).run(observation, knowledge, generator(seed))


def test_margins_by_hand():
    outputs = torch.tensor([[1.0, 5.0, 3.0], [2.0, 0.0, 1.0]])
    # image 0 is of class 1, its rival is 2; image 1 of class 1, its rival 0
    assert margin_directions(outputs, torch.tensor([1, 1])).tolist() == [[0, 1, -1], [-1, 1, 0]]
    assert margin_directions(torch.zeros(2, 1), torch.tensor([0, 1])).tolist() == [[-1], [1]]


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_objective_is_the_stationarity_of_haim(outputs):
    """‖θ − Σ λ y ∇f‖², written out with one gradient of the margin per image."""
    model = network(outputs).double()
    images = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels, multipliers = torch.tensor([0, 1, 1]), torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    rest = [parameter.detach().clone() for parameter in model.parameters()]
    for image, label, multiplier in zip(images, labels, multipliers, strict=True):
        out = model(image[None])[0]
        if outputs == 1:
            margin = (2 * label - 1) * out[0]
        else:
            margin = out[label] - max(out[k] for k in range(outputs) if k != label)
        for r, gradient in zip(rest, torch.autograd.grad(margin, list(model.parameters())), strict=True):
            r -= multiplier * gradient
    state = {name: value.detach() for name, value in model.state_dict().items()}
    duals = multipliers[:, None] * margin_directions(model(images).detach(), labels)
    objective = AutogradObjective(model, state, [state])
    expected = sum(float((r**2).sum()) for r in rest)
    assert float(objective.loss(images, duals[None], None).detach()) == pytest.approx(expected, rel=1e-10)


def stationary(outputs=1):
    """Parameters that satisfy the KKT condition for two images exactly: weight w = Σ λ y x of a linear network."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, outputs, bias=False))
    images = torch.zeros(2, 1, 4, 4)
    images[0, 0, :2], images[1, 0, 2:] = 0.4, -0.3
    with torch.no_grad():
        model[1].weight.copy_((1.5 * images[1] - images[0]).reshape(1, 16))
    return model, images


def test_a_stationary_network_is_explained():
    model, _ = stationary()
    found = run(observe(model), Knowledge(num_private=2, labels=(0, 1), pixel_mean=(0.5,)), iterations=400)
    assert found.relative_residual < 0.02
    assert (found.duals[0, :, 0].sign().unique().tolist()) == [-1, 1]


def test_images_come_back_where_the_parameters_are_such_a_sum():
    """The solver alone: a target that satisfies the condition exactly, which trained networks only approach."""
    images, model = digits(3), mlp(256, outputs=1)
    state = state_of(model)
    observation = Observation(model, ((state, state),), (1, 8, 8))
    knowledge = Knowledge(num_private=3, labels=(0, 1, 1), pixel_mean=(0.3,))
    attack = get_attack("kkt", iterations=800, learning_rate=0.05, candidates=1.0, device="cpu")
    problem = attack.optimization(observation, knowledge)
    sums = problem.objective.gradient_sum(images, torch.tensor([[[-0.5], [1.0], [0.7]]]), None)
    problem = replace(problem, objective=make_objective(model, (1, 8, 8), sums, [state]))
    found = problem.solve(generator(), lambda done, loss: None)
    assert nearest(images, found).max() < 0.5
    assert (found.duals[0, :, 0].sign() == torch.tensor([-1, 1, 1])).all()


def test_the_initial_parameters_are_not_read():
    model = network(1)
    other = {name: -value for name, value in model.state_dict().items()}
    first, second = run(observe(model), iterations=30), run(observe(model, other), iterations=30)
    assert torch.equal(first.images, second.images)


def test_several_classes_lower_their_residual_and_labels_are_used():
    found = run(observe(network(3)), Knowledge(num_private=2, labels=(2, 2), pixel_mean=(0.5,)), iterations=150)
    assert len(found.images) == 4 and found.loss_trace[-1][1] < found.loss_trace[0][1]
    assert (found.duals[0, :, 2].abs() >= found.duals[0, :, :2].abs().max(1).values - 1e-6).all()


def test_what_is_missing_or_wrong_is_refused_by_name():
    convolutional = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 1))
    with pytest.raises(InputError, match="num_private"):
        run(observe(convolutional), Knowledge())
    with pytest.raises(InputError, match="labels go up to 5"):
        run(observe(network(3)), Knowledge(num_private=2, labels=(0, 5)), iterations=1)
    with pytest.raises(InputError, match="candidates is 0"):
        get_attack("kkt", candidates=0)
    with pytest.raises(InputError, match="dual_floor is -1"):
        get_attack("kkt", dual_floor=-1)
