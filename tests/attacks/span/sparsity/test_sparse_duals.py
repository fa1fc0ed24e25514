from dataclasses import replace

import torch

from attacks.span.sparse_duals import DualSpace, PairProducts, purified, retry_doubtful, sparsest, sparsest_of_many
from attacks.update.spectrum import Spectrum
from tests.attacks.span.conftest import first_two


def test_rough_images_become_exact_by_the_zeros_of_their_duals(federated):
    images, observation, _ = federated
    _, duals = first_two(observation)
    noise = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) @ duals.rows[:, :-1]
    rough = images.flatten(1) + 0.5 * noise / noise.norm(dim=1, keepdim=True)
    y = duals.coordinates(rough)
    directions = sparsest(duals, y, torch.ones(8, dtype=torch.bool), y[:0])
    kept = duals.passing(directions)
    exact = duals.images(duals.disentangle(y[kept], directions[kept]))
    assert len(kept) == 8
    assert ((exact - images.flatten(1)[kept]).norm(dim=1) < 1e-2).all()
    random = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    random /= random.norm(dim=1, keepdim=True)
    assert len(duals.passing(random)) == 0


def test_noise_moves_images_as_far_as_expected():
    """By 400 draws of noise, and the images that least squares make of each with the true duals: some are bright, which
    an error of the bias moves most."""
    draws = torch.Generator().manual_seed(0)
    images = torch.rand(5, 100, generator=draws, dtype=torch.float64) * torch.tensor([[1.0], [1], [5], [20], [20]])
    points = torch.nn.functional.pad(images, (0, 1), value=1.0)
    upstream = torch.randn(128, 5, generator=draws, dtype=torch.float64)
    change, noise = upstream @ points, 1e-3
    drawn = noise * torch.randn(400, *change.shape, generator=draws, dtype=torch.float64)
    moved = torch.linalg.lstsq(upstream.expand(400, -1, -1), change + drawn).solution
    moved = moved[..., :-1] / moved[..., -1:] - images
    expected = moved.square().sum(2).mean(0).sqrt()
    initial = torch.zeros_like(change)
    duals = DualSpace.of(initial, change + drawn[0], Spectrum.of(change + drawn[0]), 5)
    torch.testing.assert_close(duals.moved_by_noise(images), expected, rtol=0.15, atol=0)


def test_a_mixture_that_passes_for_an_image_is_sought_again(federated):
    images, observation, _ = federated
    _, duals = first_two(observation)
    y = duals.coordinates(images.flatten(1))
    directions = torch.linalg.inv(y).T  # y_i · c_j = 0 for i ≠ j
    directions /= directions.norm(dim=1, keepdim=True)
    mixed = directions.clone()
    mixed[0] = directions[0] + 0.5 * directions[1]
    mixed[0] /= mixed[0].norm()
    rough = y + 0.02 * y.norm(dim=1, keepdim=True) * torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    wrong = duals.images(duals.disentangle(rough, mixed))
    assert (wrong - images.flatten(1)).norm(dim=1).max() > 0.05  # the other part of the mixture is not exact
    directions = retry_doubtful(duals, rough, mixed)
    exact = duals.images(duals.disentangle(rough, directions))
    assert ((exact - images.flatten(1)).norm(dim=1) < 1e-2).all()


def test_a_direction_that_was_found_twice_leaves_the_others_exact(federated):
    images, observation, _ = federated
    _, duals = first_two(observation)
    y = duals.coordinates(images.flatten(1))
    directions = torch.linalg.inv(y).T  # y_i · c_j = 0 for i ≠ j
    directions /= directions.norm(dim=1, keepdim=True)
    directions[1] = directions[0]
    rough = y + 0.02 * y.norm(dim=1, keepdim=True) * torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    found = duals.disentangle(rough, directions)
    assert found.isfinite().all()
    assert (found[2:] @ directions.T - torch.diag_embed((found * directions).sum(1))[2:]).abs().max() < 1e-9


def of_zeros(units=200, count=6):
    """(the duals (units, count), 40 % zeros, their space, their c (count, count))."""
    draws = torch.Generator().manual_seed(0)
    sparse = torch.randn(units, count, generator=draws, dtype=torch.float64)
    sparse[torch.rand(units, count, generator=draws) < 0.4] = 0
    sparse[~sparse.any(1), 0] = 1.0  # units of no image at all tell nothing
    left, scale = torch.linalg.qr(sparse)  # d_i = L c_i with c_i the columns of R
    true = torch.nn.functional.normalize(scale.T)
    duals = DualSpace(left, torch.eye(count).double(), torch.ones(count).double(), 1e-12, (left[:, :0], left[:, :0]))
    return sparse, duals, true


def test_far_fewer_zeros_than_the_others_have_pass_for_no_dual():
    sparse, duals, true = of_zeros(units=1000)  # some 400 zeros each, a mixture of two 160, and chance explains 57
    assert duals.passing(true).sort().values.tolist() == [0, 1, 2, 3, 4, 5]
    mixed = torch.nn.functional.normalize(true[0] + true[1], dim=0)
    both = int((sparse[:, :2] == 0).all(1).sum())
    assert int(duals.zeros(mixed[None])) == both > duals.explained_zeros
    assert duals.passing(torch.cat([mixed[None], true[1:]])).sort().values.tolist() == [1, 2, 3, 4, 5]


def test_one_unit_holds_a_mixture_and_none_a_dual():
    sparse, duals, true = of_zeros()
    assert duals.leverage(true).max() < 0.5
    unit = (sparse != 0).all(1).nonzero()[0, 0]  # where a mixture of the first two is zero by choice
    entries = duals.left[unit] @ true.T
    chosen = torch.nn.functional.normalize(true[0] * entries[1] - true[1] * entries[0], dim=0)
    at_random = torch.nn.functional.normalize(true[0] + 0.5 * true[1], dim=0)
    held, free = duals.leverage(torch.stack([chosen, at_random])).tolist()
    assert abs(held - 1) < 1e-9 and free == float("inf")


def test_the_rows_that_a_unit_has_in_several_rounds_hold_a_mixture_together():
    sparse, duals, true = of_zeros()
    unit = (sparse != 0).all(1).nonzero()[0, 0]
    entries = duals.left[unit] @ true.T
    mixture = torch.nn.functional.normalize(true[0] * entries[1] - true[1] * entries[0], dim=0)[None]
    twice = replace(duals, left=torch.cat([duals.left, 0.7 * duals.left]))
    assert twice.leverage(mixture) < 0.99
    by_unit = replace(twice, units=torch.arange(200).repeat(2))
    assert abs(by_unit.leverage(mixture) - 1) < 1e-9 and by_unit.leverage(true).max() < 0.5


def test_what_is_mixed_into_a_dual_may_be_a_mixture_itself():
    _, duals, true = of_zeros()
    mixed = true.clone()
    mixed[0] += 0.5 * true[1]
    mixed[1] += 0.3 * true[2]
    pure = purified(duals, torch.nn.functional.normalize(mixed))
    assert torch.allclose((pure * true).sum(1).abs(), torch.ones(6).double(), atol=1e-10)


def test_what_known_duals_mix_into_one_is_taken_out():
    sparse, duals, true = of_zeros()
    mixed = true.clone()
    mixed[2] += 0.7 * true[4] - 0.3 * true[0]  # both known: taken out one after the other
    pure = purified(duals, torch.nn.functional.normalize(mixed))
    assert torch.allclose((pure * true).sum(1).abs(), torch.ones(6).double(), atol=1e-10)
    assert duals.zeros(pure).tolist() == (sparse == 0).sum(0).tolist()


def test_a_dual_stays_where_more_units_contradict_a_ratio_than_share_it():
    """Less the other's, it would have 90 zeros in place of 80, but only as rounding hides more of what is left."""
    draws = torch.Generator().manual_seed(0)
    own, rest = torch.ones(200, dtype=torch.float64), torch.ones(200, dtype=torch.float64)
    own[:80] = 0  # where the other is not
    rest[80:140] = 1e-3  # the ratio of the two is one number here,
    own[140:170], rest[140:170] = 0.02, 0.01  # and another there
    rest[170:] = 0.5 + 0.5 * torch.rand(30, generator=draws, dtype=torch.float64)
    left, values = torch.stack([own, rest], 1) / 200**0.5, torch.tensor([1.0, 1e-2]).double()
    duals = DualSpace(left, torch.eye(2).double(), values, 1.5e-4 / 200**0.5 / 8, (left[:, :0], left[:, :0]))
    directions = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [1.0, 1e-3]]).double())
    assert duals.zeros(torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()).tolist() == [80, 90]
    assert torch.equal(purified(duals, directions)[0], directions[0])


def test_gram_matrices_of_many_weights_are_those_of_each():
    draws = torch.Generator().manual_seed(0)
    left = torch.randn(9, 4, generator=draws, dtype=torch.float64)
    weights = torch.rand(3, 9, generator=draws, dtype=torch.float64)
    found = PairProducts(left).gram(weights)
    for gram, weight in zip(found, weights, strict=True):
        assert torch.allclose(gram, (left.T @ torch.diag(weight / weight.mean()) @ left).tril())


def test_many_rough_images_become_exact_at_once(federated):
    images, observation, _ = federated
    _, duals = first_two(observation)
    noise = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) @ duals.rows[:, :-1]
    y = duals.coordinates(images.flatten(1) + 0.5 * noise / noise.norm(dim=1, keepdim=True))
    directions = sparsest_of_many(duals, y, y[:0])
    exact = duals.images(duals.disentangle(y, directions))
    assert len(duals.passing(directions)) == 8
    assert ((exact - images.flatten(1)).norm(dim=1) < 1e-2).all()
    assert len(sparsest_of_many(duals, y[:0], y)) == 0


def test_what_zeros_explain_falls_where_images_are_many_for_the_width():
    values, ends = torch.ones(1).double(), torch.zeros(0, 0).double()
    for width, count, zeros in ((1000, 200, 300.0), (1000, 100, 175.0), (1000, 250, 300.0), (1000, 400, 430.0)):
        duals = DualSpace(torch.ones(width, count), values, values, 0.0, (ends, ends))
        assert abs(duals.explained_zeros - zeros) < 1e-9


def test_units_that_noise_alone_has_moved_are_zeros_of_no_dual():
    """Parameters rounded to bfloat16 move dead units as well: all of 8 duals of nobody had 21 to 25 zeros, 13 of them
    on dead units, where chance explained 16."""
    _, duals, true = of_zeros(units=200)
    duals = replace(duals, noise=1e-5)
    dead = 1e-5 * torch.randn(40, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moved = replace(duals, left=torch.cat([duals.left, dead]))
    assert moved.only_noise.nonzero()[:, 0].tolist() == list(range(200, 240))
    assert torch.equal(moved.zeros(true), duals.zeros(true)) and int(duals.zeros(true).min()) > 60
    assert moved.explained_zeros == duals.explained_zeros


def test_a_dual_that_holds_another_image_has_one_ratio_to_its_dual():
    """Of three images the first two have parallel signals, and d_1 − 3 d_2 was found for d_1. Its ratio to d_2 is −3 on
    all units that the second image alone activates, about a hundred; the third's to others is nowhere the same."""
    draws = torch.Generator().manual_seed(0)
    active = torch.rand(3, 400, generator=draws) < 0.5
    parallel, other = torch.randn(2, 400, generator=draws, dtype=torch.float64)
    signals = torch.stack([3 * parallel, parallel, other]) * active
    points = torch.rand(3, 40, generator=draws, dtype=torch.float64)
    change = (signals.T @ points).float().double()
    duals = DualSpace.of(torch.zeros_like(change), change, Spectrum.of(change), 3)
    own = torch.linalg.lstsq(duals.left, signals.T[change.any(1)]).solution.T
    mixed = torch.stack([own[0] - 3 * own[1], own[1], own[2]])
    found = duals.one_ratio(torch.nn.functional.normalize(mixed), 32)
    assert (found[:2] > 0.98).all() and found[2] < 0.02
    assert duals.one_ratio(torch.nn.functional.normalize(own), 32)[2] < 0.02
    assert (duals.one_ratio(torch.nn.functional.normalize(mixed[1:]), 32) < 0.02).all()
    assert (duals.one_ratio(torch.nn.functional.normalize(mixed), 300) == 1).all()
