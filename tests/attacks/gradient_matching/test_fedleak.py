"""FedLeak (Fan et al. 2025): the part of the update that is matched, and the penalty on the distance's gradient."""

import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge, get_attack
from attacks.gradient_matching.simulation import blended, largest_entries
from tests.attacks.conftest import client, digits, generator, mlp, nearest

TOLD = Knowledge(pixel_mean=(0.3,), learning_rate=0.1, steps=1, num_private=2)


def one_step(images=None, **options):
    images = digits(2) if images is None else images
    return images, client(mlp(**options), images, [range(2)], torch.arange(2), lr=0.1)


def test_the_largest_entries_of_every_tensor_are_matched():
    masks = largest_entries({"w": torch.tensor([[3.0, -5.0], [1.0, 0.0]]), "b": torch.tensor([0.1])}, 0.5)
    assert masks["w"].tolist() == [[1, 1], [0, 0]]
    assert masks["b"].tolist() == [1]  # at least one: no tensor is left out


def test_entries_that_are_not_matched_do_not_count():
    """Σ (g'_i − g_i)² over half of each tensor's entries, over Σ g_i² of the same: by plain autograd."""
    noise = torch.rand(2, 1, 8, 8, generator=generator())  # pixels of one value would share one gradient
    _, observation = one_step(noise, activation=nn.Sigmoid)
    options = {"variant": "fedleak", "matching_ratio": 0.5, "distance": "euclidean", "total_variation": 0.0}
    attack = get_attack("gradient_matching", precision="float64", device="cpu", **options)
    images = torch.rand(2, 1, 8, 8, generator=generator(1), dtype=torch.float64)
    classes = torch.eye(10, dtype=torch.float64)[:2]
    ours = attack.matching(observation, TOLD, generator())[0].objective(images, classes)

    model = observation.model.double()
    model.load_state_dict(observation.initial)
    loss = -(classes * model(images).log_softmax(1)).sum(1).mean()
    error, length = 0.0, 0.0
    for found, moved in zip(
        torch.autograd.grad(loss, list(model.parameters())), observation.delta().values(), strict=True
    ):
        true = -moved.double() / 0.1
        median = true.abs().flatten().sort().values[len(true.flatten()) // 2]
        largest = true.abs() >= median
        error += float(((found - true) ** 2)[largest].sum())
        length += float((true**2)[largest].sum())
    assert float(ours.detach()) == pytest.approx(error / length, rel=1e-9)


def test_the_blend_is_the_gradient_of_the_penalized_distance():
    """Of D + λ ‖∇D‖ with λ = β r, whose gradient double backward has exactly, up to the order of r."""

    def distance(x):
        return (x**4).sum() + x[0] * x[1] ** 2

    def gradients_at(variables):
        return torch.autograd.grad(distance(variables[0]), variables)

    x = torch.tensor([0.7, -0.4, 1.1], dtype=torch.float64, requires_grad=True)
    factor, radius = 0.3, 1e-5
    slope = torch.autograd.grad(distance(x), x, create_graph=True)[0]
    exact = torch.autograd.grad(distance(x) + factor * radius * slope.norm(), x)[0]
    found = blended(gradients_at, [x], factor, radius)[0]
    plain = slope.detach()
    assert torch.allclose(found - plain, exact - plain, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("options", "within"), [({"matching_ratio": 0.1}, 0.3), ({"labels": "soft"}, 0.5)])
def test_images_come_back_from_a_tenth_of_the_update_and_where_labels_are_optimized_too(options, within):
    images, observation = one_step(width=256)
    attack = get_attack("gradient_matching", variant="fedleak", iterations=300, **options)
    found = attack.run(observation, TOLD, generator())
    assert (nearest(images, found) < within).all()  # two different digits are 2.5 to 4 apart


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="lbfgs cannot follow: use adam"):
        get_attack("gradient_matching", variant="fedleak", optimizer="lbfgs")
    with pytest.raises(InputError, match=r"blending is 2, it has to be above 0 and at most 1"):
        get_attack("gradient_matching", variant="fedleak", blending=2)
