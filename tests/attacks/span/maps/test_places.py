import pytest
import torch
from torch import nn
from torch.nn.functional import unfold

from attacks.span.maps.inversion import PixelSpace
from attacks.span.maps.network import find_vector_layers
from attacks.span.maps.places import Neighbours, arrange, groups, lengths
from attacks.span.maps.projections import find_projection, put_together
from tests.attacks.span.maps.networks import trained

SHAPE = (1, 16, 16)


def drawn(seed):
    return torch.Generator().manual_seed(seed)


def test_the_bias_of_what_follows_tells_lengths():
    long = torch.rand(6, generator=drawn(0)) + 0.5
    signals = torch.randn(6, 20, generator=drawn(1))
    found = lengths(signals.sum(0), signals * long[:, None])
    torch.testing.assert_close(found, long, rtol=1e-4, atol=0)
    assert lengths(torch.randn(20, generator=drawn(2)), signals) is None


def test_pixels_of_one_image_have_one_error_at_the_outputs():
    jacobians = torch.randn(8, 3, 20, generator=drawn(0))
    errors = torch.randn(2, 3, generator=drawn(1))[torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])]
    found = groups((errors[:, :, None] * jacobians).sum(1), jacobians, 2)
    assert [one.tolist() for one in found] == [[0, 3, 5, 6], [1, 2, 4, 7]]
    alike = errors[:1].expand(8, -1) + 1e-3 * torch.randn(8, 3, generator=drawn(2))
    assert groups((alike[:, :, None] * jacobians).sum(1), jacobians, 2) is None


def rows_of_images(count, seed):
    """Maps (count, 12, 3, 3) of smooth images, and what a depthwise convolution of stride 2 saw of these."""
    images = PixelSpace((12, 6, 6), None).decoys(count, drawn(seed)).cumsum(2).cumsum(3)
    windows = unfold(images.flatten(0, 1)[:, None], 3, padding=1, stride=2)
    made = torch.einsum("ncap,ca->ncp", windows.view(count, 12, 9, 9), torch.randn(12, 9, generator=drawn(0)))
    return made.unflatten(2, (3, 3)), windows.view(count, 12 * 9, 9)


def test_places_are_told_by_neighbours_and_by_what_the_depthwise_convolution_saw():
    neighbours = Neighbours.of(*rows_of_images(400, 1))
    maps, windows = rows_of_images(2, 2)
    gradients = torch.randn(2, 9, 12, generator=drawn(3))
    update = torch.einsum("npc,ncap->ca", gradients, windows.view(2, 12, 9, 9)).flatten()
    orders = torch.stack([torch.randperm(9, generator=drawn(4 + n)) for n in range(2)])
    pixels = torch.stack([one.flatten(1).T[order] for one, order in zip(maps, orders, strict=True)])
    shuffled = torch.stack([one[order] for one, order in zip(gradients, orders, strict=True)])
    found = arrange(neighbours, pixels, shuffled, update, drawn(5))
    assert found.places.tolist() == orders.argsort(1).tolist() and found.certain.all()
    elsewhere = arrange(neighbours, pixels, shuffled, torch.randn(108, generator=drawn(6)) * update.std(), drawn(5))
    assert not elsewhere.certain.any() and elsewhere.misfit > 3 * found.misfit


def bottlenecks(behind=1, norm=True):
    """A stem, and a MobileNet's block whose projection is fed maps (96, 4, 4). Without biases units shut for one pixel
    and not for another, so that signals are not alike."""
    torch.manual_seed(0)

    def layer(inputs, outputs, kernel=1, stride=1, groups=1):
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        return [convolution, nn.BatchNorm2d(outputs) if norm else nn.Identity(), nn.ReLU6()]

    body = [*layer(1, 16, 3, 2), *layer(16, 96), *layer(96, 96, 3, 2, 96), *layer(96, 40)[:2], *layer(40, 200, behind)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(200, 10)).eval()


def together(model, images):
    """What is made of the pixels of two images' maps, in another order and of other lengths."""
    states = trained(model, images, torch.tensor([3, 7]), 1, rate=0.5)
    layer = next(one for one in find_vector_layers(model, SHAPE) if one.name == "9")
    with torch.no_grad():
        pixels = model[:9](images).movedim(1, 3).flatten(0, 2)
    pixels = pixels[torch.randperm(32, generator=drawn(1))]
    decoys = PixelSpace(SHAPE, None).decoys(500, drawn(2))
    projection = find_projection(model, SHAPE, layer)
    return put_together(projection, states, pixels / pixels.sum(1, keepdim=True), decoys, drawn(3))


def test_maps_of_a_projection_are_put_together():
    model, images = bottlenecks(), PixelSpace(SHAPE, None).decoys(2, drawn(11))
    found, _ = together(model, images)
    with torch.no_grad():
        maps = model[:9](images)
    assert found.shape == maps.shape
    away = torch.cdist(maps.flatten(1), found.flatten(1)).amin(1)
    assert (away < 0.02 * maps.flatten(1).norm(dim=1)).all()


@pytest.mark.parametrize(
    ("model", "reason"),
    [(bottlenecks(behind=3), "not the same at every place"), (bottlenecks(norm=False), "nothing behind tells")],
)
def test_pixels_stay_apart_where_the_network_does_not_tell(model, reason):
    assert reason in together(model, PixelSpace(SHAPE, None).decoys(2, drawn(11)))


def test_only_a_projection_behind_a_depthwise_convolution_has_places_to_tell():
    model = bottlenecks(norm=False)
    layers = {one.name: find_projection(model, SHAPE, one) for one in find_vector_layers(model, SHAPE)}
    assert layers["9"].depthwise == "6" and layers["9"].norm is None and layers.get("3") is None
