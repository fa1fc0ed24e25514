import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.span.maps.patches import PatchSpan

LAYERS = [
    nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False),
    nn.Conv2d(4, 6, 3, padding=1),
    nn.Conv2d(4, 6, 1, stride=2),
    nn.Conv2d(4, 6, 5),
    nn.Conv2d(4, 6, (3, 2), stride=(1, 2), dilation=(2, 1), padding=(2, 0)),
]


def patches_of(layer, maps):
    """(M, P, D), by unfolding."""
    return F.unfold(maps, layer.kernel_size, layer.dilation, layer.padding, layer.stride).transpose(1, 2)


@pytest.mark.parametrize("differences", [False, True])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_what_lies_outside_is_that_of_the_patches_written_down(layer, differences):
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(3, 4, 7, 8, generator=generator, dtype=torch.float64)
    patches = patches_of(layer, maps)
    rows = torch.linalg.qr(torch.randn(patches.shape[2], 3, generator=generator, dtype=torch.float64))[0].T
    if differences:
        patches = patches - patches.mean(1, keepdim=True)
    outside = patches - patches @ rows.T @ rows
    span = PatchSpan.of(layer, rows[None], (7, 8), differences)
    share = outside.square().sum((1, 2)) / patches.square().sum((1, 2))
    assert torch.allclose(span.share_outside(maps), share, atol=1e-12)
    folded = F.fold(outside.transpose(1, 2), (7, 8), layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    assert torch.allclose(span.outside(maps), folded, atol=1e-12)
    assert span.outside(maps).mul(maps).sum() <= span.largest * maps.square().sum()


def test_every_group_of_channels_has_rows_of_its_own():
    layer = nn.Conv2d(4, 6, 3, padding=1, groups=2)
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(2, 4, 5, 5, generator=generator, dtype=torch.float64)
    rows = torch.stack([torch.linalg.qr(torch.randn(18, 3, generator=generator).double())[0].T for _ in range(2)])
    outside = size = 0.0
    for part, own in zip(maps.split(2, 1), rows, strict=True):
        patches = F.unfold(part, 3, padding=1).transpose(1, 2)
        outside += (patches - patches @ own.T @ own).square().sum((1, 2))
        size += patches.square().sum((1, 2))
    assert torch.allclose(PatchSpan.of(layer, rows, (5, 5)).share_outside(maps), outside / size, atol=1e-12)


def test_where_patches_are_apart_every_row_at_every_place_is_a_basis():
    generator = torch.Generator().manual_seed(0)
    rows = torch.linalg.qr(torch.randn(16, 3, generator=generator, dtype=torch.float64))[0].T
    span = PatchSpan.of(nn.Conv2d(4, 6, 2, stride=2), rows[None], (4, 6))
    basis = span.everywhere()
    assert span.apart and basis.shape == (3 * 6, 4 * 4 * 6)
    assert torch.allclose(basis @ basis.T, torch.eye(18, dtype=torch.float64), atol=1e-12)
    assert span.share_outside(basis.view(-1, 4, 4, 6)).abs().max() < 1e-12
    assert not PatchSpan.of(nn.Conv2d(4, 6, 3, padding=1), rows.new_zeros(1, 1, 36), (4, 6)).apart
