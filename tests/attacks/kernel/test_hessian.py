import math

import pytest
import torch
from torch import nn

from attacks.kernel.hessian import hessian_norms
from tests.attacks.conftest import NTKLinear, mlp


def images(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def generator():
    return torch.Generator().manual_seed(1)


def dense_norms(model, x):
    """‖H‖₂ of every image and output from the dense Hessian, (N, K): the definition."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    sizes = [value.numel() for value in trained.values()]

    def outputs(flat, image):
        parts = zip(trained.items(), flat.split(sizes), strict=True)
        state = {name: part.view(value.shape) for (name, value), part in parts}
        return torch.func.functional_call(model, state, (image[None],)).reshape(-1)

    flat = torch.cat([value.flatten() for value in trained.values()])
    return torch.stack([torch.linalg.matrix_norm(torch.func.hessian(outputs)(flat, image), 2) for image in x])


class Twice(nn.Module):
    """A linear layer that is called twice, which no factor form describes."""

    def __init__(self):
        super().__init__()
        self.twice, self.last = nn.Linear(9, 9), nn.Linear(9, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.twice(torch.tanh(self.twice(x.flatten(1))))))


def networks():
    frozen = mlp(6, nn.Softplus, 2, inputs=9)
    frozen[3].weight.requires_grad_(False)
    frozen[5].bias.requires_grad_(False)
    scaled = {"inputs": 9, "linear": NTKLinear}
    return {
        "relu": mlp(8, outputs=3, inputs=9),
        "tanh, NTK parameterization": mlp(7, nn.Tanh, 1, **scaled),
        "sigmoid output": mlp(7, outputs=1, output=[nn.Sigmoid()], **scaled),
        "softmax output": mlp(7, outputs=3, output=[nn.Softmax(-1)], **scaled),
        "no bias": mlp(8, nn.GELU, 2, inputs=9, bias=False),
        "frozen parts": frozen,
        "convolution": nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)),
        "a layer called twice": Twice(),
    }


@pytest.mark.parametrize("name", list(networks()))
@pytest.mark.parametrize("chunk", [256 * 2**20, 2_000])
def test_equal_to_the_dense_hessian(monkeypatch, name, chunk):
    monkeypatch.setattr("attacks.kernel.hessian.CHUNK_BYTES", chunk)
    torch.manual_seed(0)
    model = networks()[name].double()
    x = images(4, 1, 3, 3)
    found = hessian_norms(model, model.state_dict(), x, generator(), iterations=500, tolerance=1e-9)
    assert found.shape == (4, model(x).shape[1])
    shares = found / dense_norms(model, x)  # from below, and slowly where two eigenvalues are nearly equal
    assert (shares < 1 + 1e-9).all() and (shares > 0.99).all()


def test_one_hidden_unit_by_hand():
    """f = v·σ(w·x): its Hessian in (w, v) is [[v σ'' xxᵀ, σ' x], [σ' xᵀ, 0]], of which two eigenvalues are not 0."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 1, bias=False), nn.Tanh(), nn.Linear(1, 1, bias=False)).double()
    x, v, z = torch.tensor([0.6, 0.8], dtype=torch.float64), 1.5, 0.5
    with torch.no_grad():
        model[1].weight.copy_(z * x)  # ‖x‖ = 1, so w·x = z
        model[3].weight.fill_(v)
    slope = 1 - math.tanh(z) ** 2
    curvature = v * -2 * math.tanh(z) * slope
    largest = max(abs(curvature / 2 + sign * math.hypot(curvature / 2, slope)) for sign in (1, -1))
    found = hessian_norms(model, model.state_dict(), x.view(1, 1, 1, 2), generator(), 1000, 1e-12)
    assert found.item() == pytest.approx(largest, rel=1e-6)


def test_a_model_that_is_linear_in_its_parameters_has_none():
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 2)).double()
    found = hessian_norms(model, model.state_dict(), images(3, 1, 3, 3), generator())
    assert found.shape == (3, 2) and not found.any()


def test_one_hidden_relu_layer_in_closed_form():
    """f = vᵀσ(Wx)/√(md), ReLU: H couples row w_i with v_i by σ'(z_i) x/√(md) alone, so ‖H‖₂ = ‖x‖/√(md)."""
    model = mlp(50, outputs=1, inputs=9, depth=1, bias=False, linear=NTKLinear).double()
    x = images(3, 1, 3, 3)
    found = hessian_norms(model, model.state_dict(), x, generator(), 200, 1e-10)
    assert torch.allclose(found[:, 0], x.flatten(1).norm(dim=1) / math.sqrt(50 * 9), rtol=1e-6)


def test_too_few_iterations_stay_below():
    model = networks()["tanh, NTK parameterization"].double()
    x = images(3, 1, 3, 3)
    one, two = (hessian_norms(model, model.state_dict(), x, generator(), count, tolerance=1e-9) for count in (1, 2))
    assert (one < two).all() and (two <= dense_norms(model, x) * (1 + 1e-9)).all()
