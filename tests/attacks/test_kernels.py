import pytest
import torch
from torch import nn

from attacks.kernels import empirical_ntk, kernel_distance


def explicit_ntk(model, images):
    """One gradient per image and output, and their products: the definition."""
    rows = []
    for image in images:
        outputs = model(image[None]).reshape(-1)
        grads = [
            torch.autograd.grad(o, [p for p in model.parameters() if p.requires_grad], retain_graph=True)
            for o in outputs
        ]
        rows.append(torch.stack([torch.cat([g.flatten() for g in grad]) for grad in grads]))
    jacobian = torch.stack(rows)  # (N, K, P)
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


def test_general_path_with_frozen_layer_and_small_chunks(monkeypatch):
    monkeypatch.setattr("attacks.kernels.CHUNK_BYTES", 20_000)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 2)).double()
    model[0].bias.requires_grad_(False)
    x = images(7, 1, 6, 6)
    assert torch.allclose(empirical_ntk(model, model.state_dict(), x), explicit_ntk(model, x), rtol=1e-12)


def test_kernel_distance_ignores_scale_and_is_one_for_orthogonal_kernels():
    a = torch.diag(torch.tensor([1.0, 0.0]))
    b = torch.diag(torch.tensor([0.0, 1.0]))
    assert kernel_distance(a, 7 * a) == pytest.approx(0.0, abs=1e-7)
    assert kernel_distance(a, b) == pytest.approx(1.0)
    assert kernel_distance(torch.eye(2), a) == pytest.approx(1 - 1 / 2**0.5)
