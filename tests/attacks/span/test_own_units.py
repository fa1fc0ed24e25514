"""Images are read off rows of an update that are theirs alone, tested by the duals that they then have."""

import pytest
import torch
from torch import nn

from attacks import Knowledge
from attacks.span.own_units import peel
from attacks.span.sparse_duals import DualSpace
from attacks.span.thresholds import ONE_HIDDEN, OWN_UNITS
from attacks.update.spectrum import Spectrum
from tests.attacks.conftest import digits
from tests.attacks.span.conftest import client, run

EXACT = 1e-2  # L2; two digits are 2.5 apart and more


def network(width=256, deviation=0.0):
    """One hidden layer. deviation: of N(0, σ²), from which the first weights are drawn, where it is not 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    if deviation:
        nn.init.normal_(model[1].weight, 0.0, deviation)
        nn.init.zeros_(model[1].bias)
    return model


def peeled(observation, change=lambda update: update):
    """What units of their own give away of an update, which `change` makes another one of."""
    ((sent, returned),) = observation.pairs
    first, last = (torch.cat([s["1.weight"], s["1.bias"][:, None]], 1).double() for s in (sent, returned))
    update = change(last - first)
    spectrum = Spectrum.of(update)
    space = DualSpace.of(first, first + update, spectrum, spectrum.count())
    return peel(space, sent["3.weight"].double()[:, (update != 0).any(1)])


@pytest.mark.parametrize(("count", "deviation"), [(1, 0.0), (2, 0.0), (12, 0.0), (12, 0.5)])
def test_one_step_gives_every_image_and_its_dual(count, deviation):
    """The duals are those of autograd: −η ∂(mean loss)/∂z, image by image."""
    images, model = digits(count, mean=0.0), network(deviation=deviation).double()
    observation = client(model, images.double(), batch=count, epochs=1, lr=0.1)
    found = peeled(observation)
    away = torch.cdist(images.flatten(1).double(), found.images)
    assert len(found.images) == count and away.min(1).values.max() < EXACT and found.sines.max() < 1e-4
    model.load_state_dict(observation.initial)
    z = model[1](images.double().flatten(1)).detach().requires_grad_()
    loss = nn.functional.cross_entropy(model[3](z.relu()), torch.arange(count) % 10)
    duals = -0.1 * torch.autograd.grad(loss, z)[0]
    duals = duals[:, (duals != 0).any(0)]
    assert torch.allclose(found.duals, duals[away.argmin(0)], rtol=1e-3, atol=1e-6)


def test_several_steps_give_none_as_duals_are_no_longer_those_of_one_network():
    assert not len(peeled(client(network(), digits(12, mean=0.0), batch=12, epochs=4)).images)


def test_an_image_that_no_unit_takes_is_not_looked_at():
    """All units are shut where the biases are low, but for one that an image opens by its brightest pixel."""
    model, images = network(8), digits(1, mean=0.0)
    nn.init.constant_(model[1].bias, -10.0)
    with torch.no_grad():
        model[1].bias[3] = 10.0
    found = peeled(client(model, images, batch=1, epochs=1))
    assert len(found.images) <= 1 and found.images.isfinite().all()


def test_nothing_is_sought_where_the_two_spaces_may_meet_by_chance(monkeypatch):
    """16 images and 10 outputs leave 24 of 50 units; and of many outputs the test would take minutes."""
    assert not len(peeled(client(network(50), digits(16, mean=0.0), batch=16, epochs=1)).images)
    observation = client(network(), digits(4, mean=0.0), batch=4, epochs=1)
    monkeypatch.setattr(OWN_UNITS, "outputs", 9)
    assert not len(peeled(observation).images)


def test_in_a_narrow_layer_two_rows_have_to_agree(monkeypatch):
    """One row may be of an image that has a third of another, and opens the same units."""
    observation = client(network(64), digits(12, mean=0.0), batch=12, epochs=1, lr=0.1)
    few = peeled(observation)
    monkeypatch.setattr(OWN_UNITS, "units", 0)
    assert len(peeled(observation).images) > len(few.images)


@pytest.mark.parametrize("seed", range(10))
def test_rows_that_are_mixtures_give_none(seed):
    """Five directions of the update, mixed anew: every row is a mean of images of nobody."""

    def mixed(update):
        draws = torch.Generator().manual_seed(seed)
        rows = torch.randn(5, len(update), generator=draws, dtype=torch.float64) @ update
        return torch.randn(len(update), 5, generator=draws, dtype=torch.float64) @ rows

    assert not len(peeled(client(network(), digits(8, mean=0.0), batch=8, epochs=1), mixed).images)


def test_where_duals_are_missing_images_with_units_of_their_own_are_returned_alone(monkeypatch):
    """No pass of the search: the rest is named, and what is returned are images."""
    monkeypatch.setattr(ONE_HIDDEN, "idle_passes", 0)
    images = digits(40, mean=0.0)
    found = run(client(network(200), images, batch=40, epochs=1), Knowledge(num_private=40))
    returned = len(found.images)
    assert 0 < returned < 40 and f"{returned} of 40 images have units of their own" in " ".join(found.warnings)
    assert found.facts["own_units"] == returned
    away = torch.cdist(found.images.flatten(1), images.flatten(1)).min(1).values
    assert away.median() < 0.02 and away.max() < 0.8  # 20 dB: no test sees what opens no other of 200 units
