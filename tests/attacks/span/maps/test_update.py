import pytest
import torch

from attacks.base import silent
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.span.maps.search import MapCandidates
from attacks.span.maps.update import read_update
from attacks.span.variants.maps import MapVariant, map_networks_of
from tests.attacks.conftest import digits
from tests.attacks.span.maps.networks import SHAPE, calibrated, plain, trained


def read(model, states):
    observation = Observation(model, (states,), SHAPE)
    return read_update(observation, map_networks_of(observation))


def update_of(count=2, **training):
    images = digits(count).view(count, *SHAPE)
    model = calibrated(plain(), digits(60).view(60, *SHAPE))
    states = trained(model, images, torch.arange(count), **training)
    return read(model, states), model, images


def test_one_step_shows_the_number_of_images():
    update, _, images = update_of(2)
    assert update.count == 2 and update.ranks == (32, 32) and not update.training_mode
    maps = update.network.maps(update.sent, images)
    assert update.holds.share_outside(maps).max() < 1e-4
    assert update.tests.share_outside(update.network.between(update.sent, maps)).max() < 1e-4
    others = update.network.maps(update.sent, digits(20).view(20, *SHAPE)[10:])
    assert update.holds.share_outside(others).min() > 0.01


def test_training_mode_shows_in_the_rank_and_gives_away_the_statistics():
    update, model, images = update_of(2, mode="train")
    assert update.count == 2 and update.ranks == (31, 31) and update.training_mode
    model.train()
    seen = model[:3](images)
    assert torch.allclose(update.network.maps(update.sent, images), seen, atol=1e-4)
    assert update.holds.share_outside(seen).max() < 1e-4


@pytest.mark.parametrize("rate", [0.01, 10.0, 1000.0])
def test_a_step_of_any_size_shows_its_rank(rate):
    """Three images at 16 positions each, less one row for BatchNorm's mean; the sums of the gradient round as well."""
    update, _, _ = update_of(3, mode="train", rate=rate)
    assert update.count == 3 and update.ranks == (47, 47)


def faint(least, noise=0.0):
    """Two images' update of one step, whose least patch of 32 has the singular value `least` in the first
    convolution's, and noise of so large a deviation besides."""
    initial, final = update_pair()
    delta = (final["3.weight"] - initial["3.weight"]).flatten(1).double()
    left, values, right = torch.linalg.svd(delta, full_matrices=False)
    values[31:] = 0
    values[31] = least
    drawn = torch.randn(delta.shape, generator=torch.Generator().manual_seed(0))
    moved = (left * values) @ right + noise * drawn
    end = (initial["3.weight"].double() + moved.view_as(initial["3.weight"])).float()
    return read(plain(), (initial, {**final, "3.weight": end}))


def test_the_second_convolution_tells_the_number_of_images_where_a_patch_of_the_first_is_lost_in_rounding():
    update = faint(1e-8)
    assert update.count == 2 and update.ranks == (32, 32) and not update.training_mode
    assert faint(1e-8, noise=1e-6).count is None  # what is beyond the patches of two images is no rounding


def test_maps_that_the_next_convolution_does_not_tell_apart():
    """As where a batch's mean is subtracted from maps of a single pixel: neither they nor decoys have a ρ."""
    update, model, images = update_of(2)
    observation = Observation(model, ((update.sent, update.sent),), SHAPE)
    variant = MapVariant(observation, Knowledge(), map_networks_of(observation))
    none = update.network.maps(update.sent, images)[:0]
    candidates = MapCandidates(none, none.flatten(), torch.tensor([torch.nan]), torch.nan, none.flatten(1), 0.0)
    found = variant.report(update, variant.accept(update, candidates, torch.Generator(), silent))
    assert len(found.images) == 0
    assert found.warnings == ("nothing returned: '6' is fed the same whatever map '3' is fed (single pixels?)",)


def test_several_steps_are_read_at_the_middle_of_the_way():
    update, _, _ = update_of(2, steps=8, rate=0.05)
    assert update.count is None and not update.single_step
    (initial, final), name = update_pair(steps=8, rate=0.05), "3.weight"
    assert torch.allclose(update.seen[name], (initial[name] + final[name]) / 2)


def test_noise_of_full_rank_is_refused():
    model = plain()
    initial, generator = model.state_dict(), torch.Generator().manual_seed(0)
    final = {
        name: value + 1e-3 * torch.randn(value.shape, generator=generator) if value.is_floating_point() else value
        for name, value in initial.items()
    }
    update = read(model, (initial, final))
    assert update.refusal.hopeless and "'3'" in update.refusal.reason


def update_pair(**training):
    images = digits(2).view(2, *SHAPE)
    return trained(calibrated(plain(), digits(60).view(60, *SHAPE)), images, torch.arange(2), **training)


def test_an_update_that_left_the_convolutions_alone_is_refused():
    model = plain()
    final = {name: value + (1.0 if name.startswith("11") else 0.0) for name, value in model.state_dict().items()}
    with pytest.raises(InputError, match="no convolution of more output channels than positions moved"):
        read(model, (model.state_dict(), final))


def test_weight_decay_is_taken_off_before_the_rank_is_read():
    """Of one step it leaves κ = 1 − lr · λ times the parameters, which has full rank and hides the gap."""
    update, _, images = update_of(2, rate=0.05, weight_decay=1e-2)
    assert update.decay == pytest.approx(1 - 0.05 * 1e-2, abs=1e-8)
    assert update.count == 2 and update.ranks == (32, 32)
    assert update.holds.share_outside(update.network.maps(update.sent, images)).max() < 1e-4
    assert "weight decay was undone" in update.warnings[0]


def test_momentum_does_not_change_the_direction_of_one_step():
    plainly, with_momentum = update_of(2)[0], update_of(2, momentum=0.9)[0]
    assert torch.equal(plainly.holds.filters, with_momentum.holds.filters)


def test_maps_can_be_sought_anywhere_on_the_way():
    update, _, _ = update_of(2, steps=8, rate=0.05)
    (initial, final), name = update_pair(steps=8, rate=0.05), "3.weight"
    assert torch.allclose(update.on_the_way(0.25).seen[name], initial[name] + (final[name] - initial[name]) / 4)
    assert torch.equal(update.on_the_way(0.0).seen["1.running_mean"], initial["1.running_mean"])
