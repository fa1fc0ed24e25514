import torch

from attacks.span.search.descent import extreme_images
from tests.attacks.conftest import MEAN, digits


def bounds(size):
    return torch.full((size,), -MEAN).double(), torch.full((size,), 1 - MEAN).double()


def mixed_rows(images, seed=0):
    """An orthonormal basis of what affine mixtures of the images span: no row is an image."""
    draws = torch.Generator().manual_seed(seed)
    weights = torch.rand(len(images), len(images), generator=draws, dtype=torch.float64)
    points = torch.nn.functional.pad(images.double(), (0, 1), value=1.0)
    return torch.linalg.qr((weights / weights.sum(1, keepdim=True) @ points).T)[0].T


def test_images_with_black_pixels_of_their_own_are_the_vertices():
    """Three images of nine pixels, each with six black ones: every mixture but these three has fewer."""
    images = torch.full((3, 9), -MEAN)
    for i in range(3):
        images[i, 3 * i : 3 * i + 3] = torch.tensor([0.1, 0.3, 0.5]) + 0.1 * i
    found = extreme_images(mixed_rows(images), *bounds(9), 30, torch.Generator().manual_seed(0))
    assert found.shape == (3, 9)
    assert (torch.cdist(images.double(), found).min(1).values < 0.02).all()  # pixels may lie 1e-3 outside


def test_digits_are_found_in_the_span_of_their_mixtures():
    images = digits(8).flatten(1)
    found = extreme_images(mixed_rows(images), *bounds(64), 150, torch.Generator().manual_seed(0))
    assert len(found) >= 6 and (torch.cdist(images.double(), found).min(0).values < 1e-6).all()  # and nothing else


def test_a_vertex_that_falls_without_one_of_its_pixels_is_nobodys():
    """In the triangle of three images of one pixel each beside a constant one, every corner has just two pixels at an
    end: nothing tells a corner that is an image from one that is not."""
    images = torch.full((3, 4), 0.1) + torch.cat([0.5 * torch.eye(3), torch.zeros(3, 1)], 1)
    found = extreme_images(mixed_rows(images), *bounds(4), 30, torch.Generator().manual_seed(0))
    assert len(found) == 0


def test_images_without_black_or_white_pixels_are_no_vertices():
    images = 0.2 * torch.rand(4, 30, generator=torch.Generator().manual_seed(0))
    found = extreme_images(mixed_rows(images), *bounds(30), 30, torch.Generator().manual_seed(0))
    assert len(found) == 0


def test_where_contrast_changes_negatives_are_vertices_and_none_is_returned():
    """Two views of each digit, d and 0.9 d + 0.05, span 1 - d as well, whose black and white pixels are as many."""
    images = digits(4).flatten(1)
    views = torch.cat([images, 0.9 * (images + MEAN) + 0.05 - MEAN])
    rows = torch.linalg.svd(torch.nn.functional.pad(views.double(), (0, 1), value=1.0), full_matrices=False)[2][:5]
    assert len(extreme_images(rows, *bounds(64), 30, torch.Generator().manual_seed(0))) == 0
    brighter = torch.cat([images, images[:1] + 0.1])  # brightness alone: no point is of one colour
    found = extreme_images(mixed_rows(brighter), *bounds(64), 30, torch.Generator().manual_seed(0))
    assert len(found) == 4 and (torch.cdist(images.double(), found).min(0).values < 1e-6).all()
