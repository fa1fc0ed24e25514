import pytest
import torch

from attacks.interface.observation import Observation
from attacks.span.maps.search import along_the_way, find_maps
from attacks.span.maps.update import read_update
from attacks.span.thresholds import MAP_KERNEL
from attacks.span.variants.maps import map_networks_of
from tests.attacks.conftest import digits
from tests.attacks.span.maps.networks import SHAPE, calibrated, plain, trained


@pytest.mark.parametrize(("momentum", "mean"), [(0.0, 0.40), (0.9, 0.18)])
def test_the_rows_of_several_steps_hold_maps_at_the_weighted_mean_of_the_way(momentum, mean):
    """Five equal gradients g at θ_t = −Σ_{s<t} v_s count c_t = Σ_{k<5−t} μ^k times each: Σ c_t θ_t / Σ c_t lies at 0.40
    of the way without momentum, and at 0.18 with 0.9."""
    images = digits(2).view(2, *SHAPE)
    model = calibrated(plain(), digits(60).view(60, *SHAPE))
    states = trained(model, images, torch.arange(2), 5, rate=1e-3, momentum=momentum)
    observation = Observation(model, (states,), SHAPE)
    update = read_update(observation, map_networks_of(observation)).to(torch.float64)
    ends = [update.network.maps(update.on_the_way(part).seen, images.double()).flatten(1) for part in (0.0, 1.0)]
    basis = torch.linalg.qr(torch.cat(ends).T)[0].T
    size = float(ends[0].norm(dim=1).mean())
    points, way = along_the_way(update, basis, (ends[0] + ends[1]) / 2 @ basis.T, size, 0.5)
    assert way == pytest.approx(mean, abs=0.08)
    assert len(points) == 2


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_where_no_map_lies_in_the_span_there_are_no_candidates(monkeypatch, mode):
    monkeypatch.setattr(MAP_KERNEL, "cut", -1.0)  # eigenvalues of a positive semidefinite operator are above it
    images = digits(2).view(2, *SHAPE)
    model = calibrated(plain(), digits(60).view(60, *SHAPE))
    observation = Observation(model, (trained(model, images, torch.arange(2), mode=mode),), SHAPE)
    update = read_update(observation, map_networks_of(observation))
    decoys = update.network.maps(update.seen, digits(20).view(20, *SHAPE)).detach()
    with torch.no_grad():
        found = find_maps(update, decoys, torch.Generator().manual_seed(0), lambda *done: None)
    assert found.dimensions == 0 and len(found.maps) == 0 and found.num_accepted == 0
