import torch
import torch.nn.functional as F
from torch import nn

from attacks.span.maps.network import find_map_networks
from tests.attacks.span.maps.networks import SHAPE, Block, plain


def pairs(model, shape=SHAPE):
    return [(pair.first, pair.second) for pair in find_map_networks(model, shape)]


def test_a_pair_needs_more_channels_than_positions():
    """16 positions of 64 channels in both convolutions behind the first, which is fed 64 positions."""
    (pair,) = find_map_networks(plain(), SHAPE)
    assert (pair.first, pair.second) == ("3", "6")
    assert pair.shape == (8, 8, 8) and pair.positions == 16 and pair.most_images == 3 and pair.nonnegative


def test_what_lies_between_is_what_the_network_computes():
    model = plain()
    (pair,) = find_map_networks(model, SHAPE)
    images = torch.randn(2, *SHAPE)
    state = dict(model.state_dict())
    maps = pair.maps(state, images)
    assert torch.equal(maps, model[:3](images))
    assert torch.allclose(pair.between(state, maps), model[:6](images), atol=1e-6)


def test_a_way_around_the_first_convolution_leaves_no_pair():
    """The second convolution of a residual block adds to what the block was fed: the next one sees that too."""
    stem = [nn.Conv2d(1, 70, 3, stride=2, padding=1), nn.ReLU()]
    model = nn.Sequential(*stem, Block(70), Block(70), nn.Flatten(), nn.Linear(70 * 16, 2))
    assert pairs(model) == [("2.conv1", "2.conv2"), ("3.conv1", "3.conv2")]


def test_pooling_may_lie_between_and_a_convolution_of_one_by_one_may_test():
    """The first convolution has 64 positions and patches of 9 entries."""
    pooled = [nn.Conv2d(1, 80, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(80, 80, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*pooled, nn.MaxPool2d(2), nn.Conv2d(80, 80, 1), nn.Flatten(), nn.Linear(320, 2))
    assert pairs(model) == [("3", "6")]


def test_a_convolution_that_is_used_twice_is_left_out():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.again = nn.Conv2d(1, 64, 3, 2, 1), nn.Conv2d(64, 64, 3, 1, 1)

        def forward(self, x):
            return self.again(F.relu(self.again(F.relu(self.first(x))))).mean((2, 3))

    assert pairs(Twice()) == []


def test_groups_in_both_convolutions_leave_no_pair():
    """Groups of channels of several images' maps would pass together."""
    grouped = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 64, 3, 2, 1, groups=2), nn.ReLU()]
    for groups, found in ((1, [("2", "4")]), (2, [])):
        behind = [nn.Conv2d(64, 64, 3, padding=1, groups=groups), nn.Flatten(), nn.Linear(1024, 2)]
        assert pairs(nn.Sequential(*grouped, *behind)) == found


def test_maps_take_the_place_of_those_of_an_image_whatever_lies_behind():
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 70, 3, 2, 1), nn.Conv2d(70, 2, 4)

        def forward(self, x):
            return self.second(2 * F.relu(self.first(x).exp() - 1)).flatten(1)

    model, maps = Doubled(), torch.randn(3, *SHAPE)
    assert pairs(model) == []  # 16 positions of patches with 9 entries
    model.first = nn.Conv2d(4, 70, 3, 2, 1)
    (pair,) = find_map_networks(model, (4, 8, 8))
    maps = torch.randn(3, 4, 8, 8)
    expected = 2 * F.relu(model.first(maps).exp() - 1)
    assert torch.allclose(pair.between(dict(model.state_dict()), maps), expected, atol=1e-6)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 3, padding=1, groups=width), nn.LayerNorm(width)
        self.wider, self.narrower = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.norm(self.depthwise(x).movedim(1, 3))
        return x + self.narrower(F.gelu(self.wider(h))).movedim(3, 1)


def test_whole_blocks_may_lie_between_and_a_linear_layer_may_test():
    """Nothing bends between the first layer and the block's convolution, nor, beyond a scale, its first linear one."""
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 64, 2, 2), ConvNeXtBlock(64))
    model = nn.Sequential(*model, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 3)).eval()
    (pair,) = find_map_networks(model, SHAPE)
    assert (pair.first, pair.second, pair.tested_positions) == ("2", "3.narrower", 16)
    seen = []
    model[3].narrower.register_forward_pre_hook(lambda module, fed: seen.append(fed[0]))
    images = torch.randn(2, *SHAPE)
    model(images)
    fed = pair.between(dict(model.state_dict()), pair.maps(dict(model.state_dict()), images))
    assert torch.allclose(fed, seen[0].movedim(3, 1), atol=1e-6)


def test_a_depthwise_convolution_may_lie_between_two_of_one_by_one():
    """As in a MobileNet: it has a patch for every position, so that it tests nothing, but it ties places together."""
    stem = [nn.Conv2d(1, 32, 3, stride=2, padding=1), nn.ReLU6(), nn.Conv2d(32, 96, 1), nn.ReLU6()]
    block = [nn.Conv2d(96, 96, 3, padding=1, groups=96), nn.ReLU6(), nn.Conv2d(96, 32, 1)]
    model = nn.Sequential(*stem, *block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3)).eval()
    assert pairs(model) == [("2", "6")]


def test_normalization_alone_leaves_no_pair():
    """It scales every position: mixtures of maps become mixtures of what the later layer saw."""

    class Normalized(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 64, 2, 2))
            self.norm, self.out, self.head = nn.LayerNorm(64), nn.Conv2d(64, 64, 1), nn.Linear(64, 3)

        def forward(self, x):
            return self.head(self.out(self.norm(self.body(x).movedim(1, 3)).movedim(3, 1)).mean((2, 3)))

    assert pairs(Normalized().eval()) == []


def test_squeeze_and_excitation_does_not_tie_places_together():
    """It knows the mean over places alone: pixels in any order pass as a map."""

    class Excited(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.wider = nn.Conv2d(1, 32, 3, 2, 1), nn.Conv2d(32, 96, 1)
            self.gate, self.narrower, self.head = nn.Conv2d(96, 96, 1), nn.Conv2d(96, 32, 1), nn.Linear(32, 3)

        def forward(self, x):
            h = F.relu(self.wider(F.relu(self.stem(x))))
            h = h * torch.sigmoid(self.gate(h.mean((2, 3), keepdim=True)))
            return self.head(self.narrower(h).mean((2, 3)))

    assert pairs(Excited().eval()) == []


def test_two_convolutions_of_one_by_one_leave_no_pair():
    """Nothing tells where a pixel lies: a map of right pixels at wrong places would pass."""
    body = [nn.Conv2d(1, 24, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(24, 40, 1), nn.ReLU()]
    model = nn.Sequential(
        *body, nn.Conv2d(40, 60, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(60, 3)
    )
    assert "2" not in {pair.first for pair in find_map_networks(model.eval(), SHAPE)}
