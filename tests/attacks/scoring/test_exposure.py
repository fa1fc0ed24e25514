"""What `recovered` does not see, on images made by hand: offsets, gains, views, candidates held back, other people."""

import numpy as np
import pytest
import torch

from attacks.scoring.identification import Identification, count_images
from attacks.scoring.images import Pool
from attacks.scoring.leakage import score
from attacks.scoring.null import Others, p_value, permutation_null


def textures(count, seed=0, shape=(1, 8, 8)):
    return torch.rand((count, *shape), generator=torch.Generator().manual_seed(seed))


def rng():
    return np.random.default_rng(0)


def columns(private, returned, public=None, **options):
    public = textures(40, seed=1, shape=private.shape[1:]) if public is None else public
    return score(private, returned, Pool(public, private), rng(), **options).columns()


def shifted(images):
    return images.roll(1, 3)


def test_half_the_contrast_and_brighter_is_recovered_up_to_offset_and_gain_alone():
    private = textures(4)
    found = columns(private, 0.5 * private + 0.4)
    assert (found["recovered"], found["held"], found["recovered_affine"], found["precision"]) == (0, 0, 4, 0.0)
    assert found["recovered_affine_fraction"] == 1.0 and found["floor_recovered_affine_fraction"] == 0.0


def test_each_channel_has_an_offset_of_its_own_and_none_is_lost_beyond_the_range_of_pixels():
    private = textures(2, shape=(3, 8, 8))
    off = torch.tensor([0.9, -0.9, 0.0]).view(1, 3, 1, 1)
    assert columns(private, private + off)["recovered_affine"] == 2  # clamped, two of three channels would be flat


def test_a_negative_is_no_image():
    private = textures(4)
    assert columns(private, 1 - private)["recovered_affine"] == 0


def test_the_affine_fit_is_that_of_least_squares():
    image, candidate = textures(1), textures(1, seed=1) + 2 * textures(1)
    design = torch.stack([candidate.flatten(), torch.ones(64)], 1).double().numpy()
    left = np.linalg.lstsq(design, image.flatten().double().numpy(), rcond=None)[1][0]  # gain positive
    found = Identification(image, candidate.clamp(0, 1))
    hit = found.affine_hits(candidate)[0, 0]
    assert hit == (left / 64 <= 0.01)
    assert not Identification(image, candidate).affine_hits(textures(1, seed=5))[0, 0]


def test_a_shifted_image_is_recovered_where_clients_shift():
    private = textures(4)
    assert columns(private, shifted(private))["recovered"] == 0
    found = columns(private, shifted(private), transformations=[lambda images: images, shifted])
    assert (found["recovered"], found["recovered_group"], found["floor_recovered_group_fraction"]) == (0, 4, 0.0)


def test_where_clients_do_not_augment_there_is_no_score_up_to_augmentation():
    found = columns(textures(2), textures(2))
    assert found["recovered_group"] is None and np.isnan(found["recovered_group_fraction"])


def test_candidates_that_were_held_back_are_in_the_attackers_hands():
    private = textures(4)
    found = columns(private, private[:1], held=torch.cat([private[1:3], textures(2, seed=9)]))
    assert (found["recovered"], found["held"], found["held_fraction"], found["num_held"]) == (1, 3, 0.75, 4)
    vetoed = columns(private, private[:0], held=private)
    assert (vetoed["recovered"], vetoed["held"], vetoed["leakage"]) == (0, 4, 0.0)
    assert np.isnan(vetoed["precision"]) and vetoed["l2_best_exposed"] == pytest.approx(0, abs=1e-6)


def test_precision_counts_a_second_view_and_no_stray():
    private = textures(4)
    returned = torch.cat([private[:2], private[:1] + 0.01, textures(1, seed=9)])
    assert columns(private, returned)["precision"] == 0.75


def test_each_candidate_counts_for_one_image():
    twins = torch.cat([textures(1), textures(1)])  # equal, so that one candidate hits both
    found = columns(twins, twins[:1])
    assert (found["recovered"], found["held"]) == (1, 1)
    assert count_images(np.array([[True, True], [True, False], [False, False]])) == 2


@pytest.mark.parametrize("seed", range(20))
def test_no_count_is_ever_below_recovered(seed):
    draws = torch.Generator().manual_seed(seed)
    private = textures(6, seed)
    returned = private[torch.randint(6, (8,), generator=draws)]
    returned = returned + 0.12 * torch.randn(returned.shape, generator=draws)
    public = torch.cat([private + 0.03 * torch.randn(private.shape, generator=draws), textures(6, seed + 100)])
    found = columns(private, returned, public.clamp(0, 1), held=returned[:2], transformations=[shifted])
    assert min(found[name] for name in ("held", "recovered_affine", "recovered_group")) >= found["recovered"]


def test_hits_are_those_of_the_scores_image_by_image():
    """Against the definition: each pair by itself, as `recovered` judges it."""
    pool, candidates = textures(12), (textures(12) + 0.1 * textures(12, seed=3))[:5].clamp(0, 1)
    hits = Identification(pool, candidates).hits()
    for i, image in enumerate(pool):
        for j, candidate in enumerate(candidates):
            l2 = (pool - candidate).flatten(1).norm(dim=1)
            near = ((image - candidate) ** 2).mean() <= 0.01
            assert hits[i, j] == bool(near and l2[i] == l2.min())


def test_the_most_exposed_image_is_the_one_nearest_relative_to_its_floor():
    # by hand, 16 pixels: floors of 0.2·4 and 0.8·4 (the public image 0.0), candidates at 0.1·4 and 0.2·4
    private = torch.stack([torch.full((1, 4, 4), value) for value in (0.2, 0.8)])
    public = torch.zeros(1, 1, 4, 4)
    found = columns(private, private[1:] - 0.2, public)
    assert found["l2_best_exposed"] == pytest.approx(0.8, abs=1e-6)  # 0.2·4 of 0.8·4, not the other's 0.8 of 0.8
    assert found["leakage_p95"] == pytest.approx(max(0.0, 1 - 0.8 / 3.2), abs=1e-6)


def test_a_p_value_that_can_be_counted():
    assert p_value(0.5, np.array([0.1, 0.5, 0.6, 0.2])) == pytest.approx(3 / 5)  # two of four, and itself
    assert p_value(0.9, np.zeros(99)) == pytest.approx(0.01)


def test_the_null_by_hand():
    """One reconstruction at 1 and 3 from two other images whose floors are 2: a set of one leaks 0.5 or 0."""
    others = Others(
        np.array([[1.0], [3.0]]), np.array([[2.0], [2.0]]), np.array([9.0, 9.0]), np.array([[True], [False]])
    )
    assert others.drawn(np.array([0])) == (1, 0.5) and others.drawn(np.array([1])) == (0, 0.0)
    # the closest pair first: image 1 is left the mean; of the floor it is image 0, listed second, that is left the mean
    assert others.drawn(np.array([1, 0])) == (1, pytest.approx(((1 - 1 / 9) + 0) / 2))
    null = permutation_null(0.4, 1, others, rng())
    assert null.leakage == pytest.approx(0.5 * null.recovered) and null.p == pytest.approx(
        (1 + 99 * null.recovered) / 100
    )
    assert np.isnan(permutation_null(0.4, 3, others, rng()).p)


def test_reconstructions_are_told_from_other_peoples_and_garbage_is_not():
    private, public = textures(4), textures(300, seed=1)
    pool = Pool(public, torch.cat([private, textures(4, seed=2)]))
    good = score(private, private + 0.02, pool, rng()).columns()
    assert good["null_p"] == 0.01 and good["null_recovered"] == 0 and good["null_leakage"] < 0.2
    ps = []
    for seed in range(20):  # one garbage image each
        private = textures(4, seed=40 + seed)
        ps.append(score(private, textures(1, seed=80 + seed), Pool(public, private), rng()).columns()["null_p"])
    assert np.mean(np.array(ps) <= 0.2) <= 0.5 and max(ps) > 0.5  # a binomial of 20 draws at 0.2 is above 10 in 0.06 %


def test_nothing_returned_is_no_evidence():
    found = columns(textures(3), textures(0))
    assert (found["null_p"], found["null_leakage"], found["null_recovered"]) == (1.0, 0.0, 0.0)
