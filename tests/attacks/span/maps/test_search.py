import pytest
import torch
from torch import nn

from attacks.interface.observation import Observation
from attacks.span.maps import search
from attacks.span.maps.search import along_the_way, find_maps
from attacks.span.maps.update import read_update
from attacks.span.thresholds import MAP_KERNEL, MAP_SEARCH
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
    assert len(found.basis) == 0 and len(found.maps) == 0 and found.num_accepted == 0


@pytest.fixture
def several_steps():
    """(the evidence of three steps on two images, maps of nobody)."""
    images = digits(2).view(2, *SHAPE)
    model = calibrated(plain(), digits(60).view(60, *SHAPE))
    observation = Observation(model, (trained(model, images, torch.arange(2), 3, rate=1e-3),), SHAPE)
    update = read_update(observation, map_networks_of(observation))
    return update, update.network.maps(update.seen, digits(20).view(20, *SHAPE)).detach()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_maps_of_the_first_of_several_batches_come_back_exactly_in_training_mode(momentum):
    """Running statistics tell a mean over both batches, with which no map explains what the second layer was fed."""
    torch.manual_seed(0)
    sizes, layers = ((1, 32, 2), (32, 12, 2), (12, 64, 1), (64, 64, 1)), []
    for given, made, stride in sizes:
        layers += [nn.Conv2d(given, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU()]
    images = digits(2).view(2, *SHAPE)
    model = calibrated(nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10)), digits(60).view(60, *SHAPE))
    states = trained(model, images, torch.arange(2), 2, "train", rate=0.05, momentum=momentum)
    observation = Observation(model, (states,), SHAPE)
    update = read_update(observation, map_networks_of(observation))
    assert update.batch == 2 and update.count is None and update.ranks[0] == 2 * (2 * 4 - 1)
    decoys = update.network.maps(update.seen, digits(20).view(20, *SHAPE)).detach()
    with torch.no_grad():
        found = find_maps(update, decoys, torch.Generator().manual_seed(0), lambda *done: None)
        private = model.train()[: int(update.network.first)](images).flatten(1)  # by their own statistics
    alike = torch.cosine_similarity(found.maps.flatten(1)[:, None], private, dim=2).amax(0)
    assert found.num_accepted == 2 and found.way == 0.0 and float(alike.min()) > 0.9999


@torch.no_grad()
def test_half_of_the_later_points_keep_away_from_what_was_found(several_steps, monkeypatch):
    """Without repulsion most of them end where others did; the other half may, as private maps may be alike."""
    monkeypatch.setattr(MAP_SEARCH, "polished_besides", MAP_SEARCH.starts)
    monkeypatch.setattr(MAP_SEARCH, "same_direction", 2.0)  # all points are returned, by rising ρ
    update, _ = several_steps
    basis, _ = search._kernel(update, torch.Generator().manual_seed(0))

    def descended(found):
        generator = torch.Generator().manual_seed(1)
        return search._searched(update, basis, found, generator, 10.0, lambda *done: None)

    best = descended(basis.new_zeros(0, len(basis)))[:1]
    near = [
        int((torch.cosine_similarity(descended(found), best) > 0.95).sum())
        for found in (basis.new_zeros(0, len(basis)), best)
    ]
    assert near[0] > 10 and 0 < near[1] <= 0.7 * near[0]


@torch.no_grad()
@pytest.mark.parametrize(("accepted", "searches"), [(0, 1), (1, 3)])
def test_a_search_that_does_not_know_how_many_there_are_ends_when_two_in_a_row_find_nothing(
    several_steps, monkeypatch, accepted, searches
):
    update, decoys = several_steps
    done = []

    def same_again(update, basis, found, *others):
        done.append(len(found))
        return basis.new_ones(1, len(basis))

    monkeypatch.setattr(search, "_searched", same_again)
    monkeypatch.setattr(search, "_polished", lambda update, basis, points, size: points)
    monkeypatch.setattr(search, "along_the_way", lambda update, basis, points, size, way: (points, way))
    monkeypatch.setattr(search, "rho", lambda update, points: torch.zeros(len(points)))
    monkeypatch.setattr(search, "_least_wrong", lambda update, by_chance, decoys: 10.0 if accepted else -1.0)
    find_maps(update, decoys, torch.Generator().manual_seed(0), lambda *done: None)
    assert len(done) == searches and done[-1] == accepted


@pytest.mark.parametrize(("residual", "accepted"), [((1e-3, 1.7e-3, 2.8e-3), 0), ((3e-9, 2e-5, 0.1), 2)])
def test_of_more_low_points_than_images_none_is_a_map(monkeypatch, residual, accepted):
    """The first are those of an MLP-Mixer's first block, whose tokens hardly see each other: all were patches in any
    places, and returned as images. The others are a trained ResNet-18's, where two maps are right."""
    images = digits(2).view(2, *SHAPE)
    model = calibrated(plain(), digits(60).view(60, *SHAPE))
    observation = Observation(model, (trained(model, images, torch.arange(2)),), SHAPE)
    update = read_update(observation, map_networks_of(observation))
    decoys = update.network.maps(update.seen, digits(20).view(20, *SHAPE)).detach()
    monkeypatch.setattr(search, "_searched", lambda update, basis, *others: torch.eye(len(basis))[: len(residual)])
    monkeypatch.setattr(search, "_polished", lambda update, basis, points, size: points)
    monkeypatch.setattr(search, "rho", lambda update, points: torch.tensor(residual)[: len(points)])
    monkeypatch.setattr(search, "_least_wrong", lambda update, by_chance, decoys: 0.148)
    with torch.no_grad():
        found = find_maps(update, decoys, torch.Generator().manual_seed(0), lambda *done: None)
    assert update.count == 2 and found.num_accepted == accepted
