import torch
from torch import nn
from torch.nn.functional import normalize, unfold

from attacks import Knowledge, Observation
from attacks.span.maps.network import find_map_networks
from attacks.span.maps.update import patch_rank, rounding_of
from attacks.span.variants.vectors import VectorVariant, vector_layers_of
from attacks.update.spectrum import Spectrum
from tests.attacks.span.maps.networks import SHAPE, trained


def bottleneck(kernel=1, bias=False):
    """ReLU, a convolution to a bottleneck of 48 channels, and a 1x1 convolution; nothing bends between the two."""
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(16, 120, 3, stride=2, padding=1), nn.ReLU()]
    body += [nn.Conv2d(120, 48, kernel, padding=kernel // 2, bias=bias), nn.BatchNorm2d(48), nn.Conv2d(48, 90, 1)]
    return nn.Sequential(*body, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(90, 10)).eval()


def client(model, count, steps=1):
    images = torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(0))
    states = trained(model, images, torch.arange(count) % 10, steps, rate=0.5)
    with torch.no_grad():
        return Observation(model, (states,), SHAPE), model[:4](images)


def attacked(observation):
    variant = VectorVariant(observation, Knowledge(), vector_layers_of(observation))
    return variant.attack(torch.Generator().manual_seed(0), lambda *done: None)


def cosines(found, private):
    return normalize(found, dim=1) @ normalize(private, dim=1).T


def test_no_pair_is_taken_where_nothing_bends_between_the_two():
    pairs = find_map_networks(bottleneck(), SHAPE)
    assert "4" not in {pair.first for pair in pairs}


def test_vectors_of_a_bottleneck_come_back_and_no_image():
    for kernel, bias in ((1, False), (1, True), (3, False)):
        model = bottleneck(kernel, bias)
        observation, maps = client(model, 4)
        found = attacked(observation)
        private = unfold(maps, kernel, padding=kernel // 2).transpose(1, 2).flatten(0, 1)
        assert found.facts["layer"] == "4" and found.num_inferred == 4 and not len(found.images)
        alike = cosines(found.features, private)
        assert int((alike.amax(0) > 0.998).sum()) >= 12 and (alike.amax(1) > 0.998).all()
        if bias:  # which gives them their length
            assert torch.cdist(found.features, private).amin(1).max() < 0.05 * private.norm(dim=1).mean()
        assert any("not where in an image" in said for said in found.warnings)


def test_several_steps_and_too_many_images_are_refused_in_one_sentence():
    for count, steps in ((4, 4), (13, 1)):
        observation, _ = client(bottleneck(), count, steps)
        found = attacked(observation)
        assert not len(found.images) and found.features is None
        (said,) = found.warnings
        assert "one step of SGD on at most 11 images" in said and "ntk" in said


def test_a_layer_of_which_nothing_moved_has_no_rank():
    """As a channel of a depthwise convolution that a ReLU shuts for all images."""
    assert patch_rank(Spectrum.of(torch.zeros(1, 9)), rounding_of(torch.ones(1, 9))) == 0
