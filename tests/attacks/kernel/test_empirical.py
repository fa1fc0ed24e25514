import pytest
import torch
from torch import nn

from attacks import InputError
from attacks.kernel.empirical import empirical_ntk, empirical_ntk_blocks, kernel_distance, kernel_regression
from attacks.networks.jacobian import Jacobian
from tests.attacks.conftest import NTKLinear, mlp


def jacobian_of(model, images):
    """One gradient per image and output, (N, K, P): the definition."""
    rows = []
    for image in images:
        outputs = model(image[None]).reshape(-1)
        grads = [
            torch.autograd.grad(o, [p for p in model.parameters() if p.requires_grad], retain_graph=True)
            for o in outputs
        ]
        rows.append(torch.stack([torch.cat([g.flatten() for g in grad]) for grad in grads]))
    return torch.stack(rows)


def explicit_ntk(model, images):
    """Trace form, by products of gradients."""
    jacobian = jacobian_of(model, images)
    return torch.einsum("nkp,mkp->nm", jacobian, jacobian)


def images(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("outputs", [1, 3])
def test_closed_form_of_an_mlp(outputs):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, outputs)
    ).double()
    x = images(6, 1, 4, 4)
    assert torch.allclose(empirical_ntk(model, model.state_dict(), x), explicit_ntk(model, x), rtol=1e-12)
    vectors = 2 * outputs * (20 + 20 + outputs) + 16 + 20 + 20  # an image's: of each layer δ, twice, and the input
    assert sum(factors.numel for factors in Jacobian(model, model.state_dict())(x)) == 6 * vectors


def test_general_path_with_frozen_layer_and_small_chunks(monkeypatch):
    monkeypatch.setattr("attacks.kernel.empirical.CHUNK_BYTES", 20_000)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 2)).double()
    model[0].bias.requires_grad_(False)
    x = images(7, 1, 6, 6)
    assert torch.allclose(empirical_ntk(model, model.state_dict(), x), explicit_ntk(model, x), rtol=1e-12)


class Odd(nn.Module):
    """What a linear layer may not be factored for: two calls, a vector per position; and one that is not used."""

    def __init__(self):
        super().__init__()
        self.twice, self.last = nn.Linear(4, 4), nn.Linear(16, 3)
        self.positions, self.unused = nn.Linear(4, 4), nn.Linear(2, 2)

    def forward(self, x):
        x = torch.tanh(self.positions(x[:, 0]))
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        return self.last(x.flatten(1))


def networks():
    convolutional = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)
    )
    scaled = mlp(9, outputs=3, inputs=16, linear=NTKLinear)
    return {"convolutional": convolutional, "ntk parameterization": scaled, "odd layers": Odd()}


@pytest.mark.parametrize("name", list(networks()))
@pytest.mark.parametrize("chunk", [256 * 2**20, 3_000])
def test_every_pair_of_outputs_and_new_images(monkeypatch, name, chunk):
    monkeypatch.setattr("attacks.kernel.empirical.CHUNK_BYTES", chunk)
    torch.manual_seed(0)
    model = networks()[name].double()
    state, x = model.state_dict(), images(6, 1, 4, 4)
    for parameter in getattr(model, "unused", nn.Identity()).parameters():
        parameter.requires_grad_(False)
    jacobian = jacobian_of(model, x)
    expected = torch.einsum("nkp,mlp->nkml", jacobian, jacobian)
    assert torch.allclose(empirical_ntk_blocks(model, state, x), expected, rtol=1e-10, atol=1e-12)
    assert torch.allclose(empirical_ntk_blocks(model, state, x[:2], x), expected[:2], rtol=1e-10, atol=1e-12)
    trace = expected.diagonal(dim1=1, dim2=3).sum(-1)
    assert torch.allclose(empirical_ntk(model, state, x), trace, rtol=1e-10, atol=1e-12)
    assert torch.allclose(empirical_ntk(model, state, x[2:], x[:2]), trace[2:, :2], rtol=1e-10, atol=1e-12)


def test_a_layer_that_the_output_does_not_depend_on_adds_nothing():
    torch.manual_seed(0)
    model = Odd().double()
    x = images(3, 1, 4, 4)
    with_unused = empirical_ntk(model, model.state_dict(), x)
    model.unused.requires_grad_(False)
    assert torch.allclose(with_unused, empirical_ntk(model, model.state_dict(), x), rtol=1e-12)


def test_regression_with_ridge_by_hand():
    kernel = torch.tensor([[2.0, 0.0], [0.0, 4.0]])  # mean diagonal 3: ridge 1/3 adds 1
    targets = torch.tensor([[3.0], [10.0]])
    cross = torch.tensor([[1.0, 1.0]])
    assert kernel_regression(kernel, targets, cross, ridge=1 / 3).item() == pytest.approx(3 / 3 + 10 / 5)
    assert kernel_regression(kernel, targets, cross).item() == pytest.approx(3 / 2 + 10 / 4)
    with pytest.raises(InputError, match="singular"):
        kernel_regression(torch.ones(2, 2), targets, cross)


def test_kernel_distance_ignores_scale_and_is_one_for_orthogonal_kernels():
    a = torch.diag(torch.tensor([1.0, 0.0]))
    b = torch.diag(torch.tensor([0.0, 1.0]))
    assert kernel_distance(a, 7 * a) == pytest.approx(0.0, abs=1e-7)
    assert kernel_distance(a, b) == pytest.approx(1.0)
    assert kernel_distance(torch.eye(2), a) == pytest.approx(1 - 1 / 2**0.5)


class Tied(nn.Module):
    """Uses the weight of its only layer a second time, outside that layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4).double()

    def forward(self, images):
        x = images.flatten(1)
        return self.layer(x) + (x @ self.layer.weight.T).tanh()


def test_parameters_used_outside_their_layer_count_in_full():
    torch.manual_seed(0)
    model, x = Tied(), torch.randn(3, 1, 2, 2, dtype=torch.float64)
    expected = explicit_ntk(model, x)
    state = {name: value.detach() for name, value in model.state_dict().items()}
    assert torch.allclose(empirical_ntk(model, state, x), expected, rtol=1e-10)


class SometimesTied(nn.Module):
    """The weight works twice; the second time only where its unit is active, which the first image never is."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16, bias=False)

    def forward(self, x):
        x = x.flatten(1)
        return (self.layer(x) + torch.relu(x @ self.layer.weight.T)).sum(1, keepdim=True)


def test_a_tied_weight_counts_in_full_even_where_the_first_image_keeps_its_second_use_inactive():
    torch.manual_seed(0)
    model = SometimesTied().double()
    x = torch.cat([torch.zeros(1, 1, 4, 4, dtype=torch.float64), images(3, 1, 4, 4)])
    assert torch.allclose(empirical_ntk(model, model.state_dict(), x), explicit_ntk(model, x), rtol=1e-12)


def test_an_image_of_zeros_beside_others_in_ntk_parameterization():
    model = mlp(8, outputs=2, inputs=16, linear=NTKLinear).double()
    x, zero = images(3, 1, 4, 4), torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    whole = explicit_ntk(model, torch.cat([zero, x]))
    assert torch.allclose(empirical_ntk(model, model.state_dict(), zero, x), whole[:1, 1:], rtol=1e-12)
