import math

import pytest
import torch
from torch import nn

from attacks.gradient_matching.simulation import shuffled_batches
from attacks.update.local_training import START, LocalOptimizer, LocalTraining, one_hot, root, soft_loss, step_weights

OPTIMIZERS = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9, "weight_decay": 0.1}),
    ("adam", {}),
    ("adam", {"betas": (0.5, 0.8), "weight_decay": 0.1}),
    ("adamw", {"betas": (0.8, 0.9), "weight_decay": 0.1}),
]


def network(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def images(count=6):
    return torch.rand((count, 1, 2, 2), generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("outputs", [1, 3])
def test_losses_are_the_usual_ones(outputs):
    """torch's cross-entropy, and half the squared distance to ±1 for one output, to −0.1 and 0.9 for several."""
    labels = torch.tensor([0, 1, 1, 0]) if outputs == 1 else torch.tensor([0, 2, 1, 2])
    predicted = torch.linspace(-2, 3, 4 * outputs, dtype=torch.float64).view(4, outputs)
    if outputs == 1:
        entropy = nn.functional.softplus(-(2 * labels - 1) * predicted[:, 0]).mean()
        squares = (predicted[:, 0] - torch.tensor([-1.0, 1.0, 1.0, -1.0])).square()
    else:
        entropy = nn.functional.cross_entropy(predicted, labels)
        squares = (predicted - torch.eye(3)[labels] + 0.1).square().sum(1)
    classes = one_hot(labels, outputs)
    assert float(soft_loss("cross_entropy", predicted, classes)) == pytest.approx(float(entropy), rel=1e-6)
    assert float(soft_loss("mse", predicted, classes)) == pytest.approx(float(squares.mean() / 2), rel=1e-6)


def test_targets_of_another_coding_by_hand():
    predicted, classes = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0]])
    # ½ ((1 − (−1))² + (2 − 3)²) against −1 and 3
    assert float(soft_loss("mse", predicted, classes, (-1.0, 3.0))) == pytest.approx(2.5)
    assert float(soft_loss("cross_entropy", predicted, classes, (-1.0, 3.0))) == pytest.approx(
        math.log(1 + math.exp(-1))
    )


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS)
def test_unrolled_steps_are_those_of_torch(kind, options):
    model, x, y = network(), images(), torch.tensor([0, 1, 2, 0, 1, 2])
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    batches = shuffled_batches(torch.tensor([[3, 0, 4, 1, 5, 2]]), 4, 5)
    assert [len(batch) for batch in batches] == [4, 2, 4, 2, 4]
    training = LocalTraining(model, initial, tuple(initial), "cross_entropy", LocalOptimizer(kind, 0.3, **options))
    delta = training.update(x, one_hot(y, 3), batches)
    made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    optimizer = made(model.parameters(), lr=0.3, **options)
    for batch in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        assert torch.allclose(delta[name], value - initial[name], atol=1e-14)


@pytest.mark.parametrize(("kind", "options"), [("sgd", {"momentum": 0.5}), ("adam", {"betas": (0.5, 0.8)})])
def test_the_update_is_differentiable_through_every_step(kind, options):
    model, y = network(), one_hot(torch.tensor([0, 2]), 3)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    training = LocalTraining(model, initial, tuple(initial), "cross_entropy", LocalOptimizer(kind, 0.5, **options))
    full = [torch.arange(2)] * 3

    def squared(x, p):
        return sum((value**2).sum() for value in training.update(x, p, full).values())

    assert torch.autograd.gradcheck(squared, (images(2).requires_grad_(), y.requires_grad_()))


def test_weights_of_steps_by_hand():
    assert step_weights(3, 0.0).tolist() == [1, 1, 1]
    assert step_weights(3, 0.5).tolist() == [1.75, 1.5, 1.0]  # 1 + ½ + ¼, 1 + ½, 1


def test_an_entry_without_a_gradient_stays_and_has_a_finite_derivative():
    gradient = torch.tensor([0.0, 2.0], dtype=torch.float64, requires_grad=True)
    added, _ = LocalOptimizer("adam", 0.1).step({"w": torch.zeros(2)}, {"w": gradient}, START)
    assert added["w"].tolist() == pytest.approx([0.0, -0.1])
    assert torch.autograd.grad(added["w"].sum(), gradient)[0].isfinite().all()
    assert torch.autograd.grad(root(gradient).sum(), gradient)[0].tolist() == pytest.approx([0.0, 0.5 / 2**0.5])
