"""The three kernels of distillation, by the shares that layers have of their diagonal."""

import pytest
import torch

from attacks import InputError
from attacks.kernel.empirical import empirical_ntk, kernel_distance
from attacks.kernel.infinite import InfiniteNTK
from clients.config import ModelConfig
from clients.distillation.evaluation import KERNELS, named_kernel
from clients.models import build_model


def trained_by_layer(width, images):
    """The empirical kernel of a standard network without biases, of each of its three weights alone."""
    config = ModelConfig.model_validate({"width": width, "bias": False})
    model = build_model(config, tuple(images.shape[1:]), 1, 0).double()
    parts = []
    for chosen, _ in model.named_parameters():
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name == chosen)
        parts.append(empirical_ntk(model, model.state_dict(), images))
    return parts


def test_equal_shares_vanishing_first_layer_and_the_network_s_own():
    """Unit inputs of 49 pixels: diagonals 1/4 + 1/4 + 1/4 over n₀; 0, ½, ½; and those of a network of width 1024."""
    images = torch.randn((6, 1, 7, 7), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    images = images / images.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    network = InfiniteNTK(bias=False)
    authors, limit, matched = (
        named_kernel(name, network, 1024)(images) for name in ("authors", "limit", "width_matched")
    )
    assert torch.allclose(authors.diagonal() * 49, torch.full((6,), 0.75, dtype=torch.float64))
    parts = trained_by_layer(1024, images)
    own, without_first = sum(parts), parts[1] + parts[2]
    assert float((matched / own - 1).abs().mean()) < 0.1
    assert kernel_distance(matched, own) < 5e-3 and kernel_distance(limit, without_first) < 5e-3
    # 49/1024 : 1 : 1, so that equal layers weigh in the ratio of their shares
    shares = torch.stack([part.diagonal().mean() for part in parts])
    assert torch.allclose(shares / shares.sum(), torch.tensor([49 / 1024, 1, 1]).double() / (2 + 49 / 1024), atol=0.03)


def test_a_network_in_ntk_parameterization_without_biases_has_the_authors_kernel_as_its_limit():
    own = InfiniteNTK(bias=False, parameterization="ntk")
    assert named_kernel("authors", InfiniteNTK(), 512) == named_kernel("limit", own, 512) == own
    images = torch.rand((3, 1, 4, 4), generator=torch.Generator().manual_seed(0))
    assert torch.equal(named_kernel("width_matched", own, 512)(images), own(images))


def test_an_unknown_kernel_is_refused_by_name():
    assert KERNELS == ("limit", "authors", "width_matched")
    with pytest.raises(InputError, match="did you mean 'authors'"):
        named_kernel("author", InfiniteNTK(), 512)
