"""The span attack on networks of convolutions: maps, images, and what it makes of updates that hold neither."""

import pytest
import torch
from torch import nn

from attacks import Knowledge, Observation, get_attack, torch_generator
from attacks.base import silent
from attacks.span.maps.search import MapCandidates
from attacks.span.thresholds import MAP_INVERSION, Descent
from attacks.span.variants.maps import MapVariant, map_networks_of
from tests.attacks.conftest import digits
from tests.attacks.span.maps.networks import SHAPE, calibrated, plain, trained

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(MAP_INVERSION, "descent", Descent(200, 0.05))


def attacked(model, states, mean=0.3):
    observation = Observation(model, (states,), SHAPE)
    return get_attack("span").run(observation, Knowledge(pixel_mean=(mean,)), torch_generator(0, "attack"))


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_one_step_gives_the_maps_of_all_images(mode):
    images = digits(2).view(2, *SHAPE)
    model = calibrated(plain(), digits(60).view(60, *SHAPE))
    found = attacked(model, trained(model, images, torch.arange(2), mode=mode))
    model.train(mode == "train")
    with torch.no_grad():
        maps = model[:3](images).flatten(1)
    distance = torch.cdist(maps, found.features.flatten(1)).min(1).values / maps.norm(dim=1)
    assert found.num_inferred == 2 and len(found.features) == 2
    assert distance.max() < 0.01
    assert found.facts["layer"] == "3" and found.facts["tested_by"] == "6"
    assert found.facts["rho_accepted"] < found.facts["rho_bound"] < found.facts["rho_decoys"]


def test_the_progress_goes_on_while_maps_are_inverted():
    images, reports = digits(2).view(2, *SHAPE), list[tuple[int, int]]()
    model = calibrated(plain(), digits(60).view(60, *SHAPE))
    observation = Observation(model, (trained(model, images, torch.arange(2)),), SHAPE)
    knowledge, generator = Knowledge(pixel_mean=(0.3,)), torch_generator(0, "attack")
    get_attack("span").run(observation, knowledge, generator, lambda done, total, _: reports.append((done, total)))
    shares = [done / total for done, total in reports if total == reports[-1][1]]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] > 0.95
    # two decoys for 300 steps, and 200 from two starts for each image and from one for its decoy
    assert len(shares) == pytest.approx((300 + 2 * 200) / 10, abs=2)


def test_maps_of_several_steps_are_brought_back_from_where_on_the_way_they_were_found():
    images = digits(2).view(2, *SHAPE)
    model = calibrated(plain(), digits(60).view(60, *SHAPE))
    states = trained(model, images, torch.arange(2), steps=8, rate=0.05)
    observation, generator = Observation(model, (states,), SHAPE), torch_generator(0, "attack")
    variant = MapVariant(observation, Knowledge(pixel_mean=(0.3,)), map_networks_of(observation))
    evidence = variant.read(generator)
    sent, found = (evidence.network.maps(evidence.on_the_way(part).seen, images) for part in (0.0, 0.9))
    candidates = MapCandidates(
        found, torch.zeros(2), torch.ones(10), bound=0.05, basis=found.flatten(1), eigenvalue=0.0, way=0.9
    )
    acceptance = variant.accept(evidence, candidates, generator, silent)
    assert acceptance.facts["way"] == 0.9
    assert (acceptance.features - sent).norm() < 0.5 * (found - sent).norm()


def test_no_image_is_returned_that_does_not_have_the_map_that_was_found():
    """As where the mean that is told is wrong, and bounds pixels wrongly: 0.3 is right."""
    images = digits(2).view(2, *SHAPE)
    model = calibrated(plain(), digits(60).view(60, *SHAPE))
    states = trained(model, images, torch.arange(2))
    right, wrong = attacked(model, states), attacked(model, states, mean=0.8)
    assert len(right.images) == 2
    assert torch.cdist(right.images.flatten(1), images.flatten(1)).min(1).values.max() < 0.1 * 8
    assert len(wrong.features) == 2 and not len(wrong.images)
    assert "a wrong mean?" in wrong.warnings[0]


def test_no_image_is_returned_where_statistics_were_averaged_over_time():
    """A tenth of the way of BatchNorm's running mean and variance tells the brightness and contrast of no image."""
    images = digits(2).view(2, *SHAPE)
    model = nn.Sequential(nn.BatchNorm2d(1), *plain(norm=lambda channels: nn.Identity()))
    sent, returned = trained(model, images, torch.arange(2), mode="train")
    for name, value in returned.items():
        if value.is_floating_point():
            returned[name] = 0.9 * sent[name] + 0.1 * value
    found = attacked(model, (sent, returned))
    assert len(found.features) == 2 and not len(found.images)


def test_no_image_is_returned_whose_size_the_network_does_not_see():
    """Without biases twice an image has twice its map, and the contrast of what came back was the start's:
    0.23 in the place of 0.37."""
    images, model = digits(2).view(2, *SHAPE), plain(norm=lambda channels: nn.Identity())
    model[0] = nn.Conv2d(1, 8, 3, padding=1, bias=False)
    found = attacked(model, trained(model, images, torch.arange(2)))
    assert len(found.features) == 2 and not len(found.images)


def test_no_map_is_told_by_fewer_than_two_equations_for_each_direction_it_may_move_in():
    """With 264 for 256, three maps of nobody solved all equations of a client's."""
    images = digits(2).view(2, *SHAPE)
    model = calibrated(plain(), digits(60).view(60, *SHAPE))
    observation = Observation(model, (trained(model, images, torch.arange(2), steps=8, rate=0.05),), SHAPE)
    variant, generator = (
        MapVariant(observation, Knowledge(), map_networks_of(observation)),
        torch_generator(0, "attack"),
    )
    evidence = variant.read(generator)
    with torch.no_grad():
        maps = evidence.network.maps(evidence.seen, images)
        given = evidence.network.between(evidence.seen, maps)
    rows = model[6].weight[0].numel() - evidence.ranks[1]
    equations = rows * model[6](given)[0, 0].numel()

    def accepted(unknowns):
        basis = torch.eye(unknowns, maps[0].numel())
        found = MapCandidates(maps, torch.zeros(2), torch.ones(10), 0.05, basis, eigenvalue=0.0, way=0.5)
        return variant.accept(evidence, found, generator, silent)

    assert len(accepted(equations // 2).features) == 2
    assert not len(accepted(equations // 2 + 1).features)
    assert f"{equations} equations for {equations // 2 + 1} unknowns" in accepted(equations // 2 + 1).reason


def test_one_image_is_found_and_a_length_that_normalization_takes_out_is_that_of_decoys():
    images = digits(1).view(1, *SHAPE)
    model = plain(norm=lambda channels: nn.GroupNorm(4, channels))
    found = attacked(model, trained(model, images, torch.arange(1)))
    with torch.no_grad():
        maps = model[:3](images).flatten(1)
    assert found.num_inferred == 1 and len(found.features) == 1
    assert torch.cosine_similarity(maps, found.features.flatten(1)).item() > 0.999


def test_two_steps_on_one_image_are_not_called_one_step_on_two():
    """The patches of both steps stand above rounding: 32 rows, as of two images."""
    images = digits(1).view(1, *SHAPE)
    model = plain(norm=lambda channels: nn.GroupNorm(4, channels))
    found = attacked(model, trained(model, images, torch.arange(1), steps=2, rate=0.2))
    with torch.no_grad():
        maps = model[:3](images).flatten(1)
    assert found.facts["rank"] == 32 and len(found.features) == 1 and found.num_inferred is None
    assert torch.cosine_similarity(maps, found.features.flatten(1)).item() > 0.999
    assert "the rank is that of 2 images, or of 1 in 2 steps" in found.warnings


def test_random_rows_of_the_same_rank_give_nothing():
    model = calibrated(plain(), digits(60).view(60, *SHAPE))
    generator = torch.Generator().manual_seed(0)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    final = dict(initial)
    for name in ("3.weight", "6.weight"):
        left, right = (torch.randn(size, 32, generator=generator) for size in (64, initial[name][0].numel()))
        final[name] = initial[name] + 1e-3 * (left @ right.T).view_as(initial[name])
    found = attacked(model, (initial, final))
    assert not len(found.images) and not len(found.features)
    assert "nothing returned" in found.warnings[0]
