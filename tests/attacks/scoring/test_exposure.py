"""What `recovered` does not see, on images made by hand: offsets, gains, views, candidates held back, other people."""

import numpy as np
import pytest
import torch

from attacks.scoring.images import Gallery, Identification, Pool, count_images
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
    found = Identification(Gallery(image), candidate)
    hit = found.affine_hits()[0, 0]
    assert hit == (left / 64 <= 0.01)
    assert not Identification(Gallery(image), textures(1, seed=5)).affine_hits()[0, 0]


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
    """Of two images, or of all copies of one, whichever are more."""
    hits = np.array([[True, True], [True, False], [False, False]])
    assert count_images(hits, np.ones(3, dtype=int)) == 2
    assert count_images(np.array([[True], [True]]), np.array([2, 5])) == 5


def test_an_image_that_a_client_holds_often_counts_as_often():
    """Reviewers' case: 20 copies of one image, one exact candidate."""
    twins, other = textures(1).expand(20, -1, -1, -1), textures(1, seed=9)
    found = columns(twins, twins[:1])
    assert (found["recovered"], found["held"], found["recovered_affine"]) == (20, 20, 20)
    assert (found["recovered_fraction"], found["leakage"]) == (1.0, pytest.approx(1.0))
    mixed = torch.cat([twins[:3], other])  # of four images three come out, all in one
    found = columns(mixed, twins[:1])
    assert (found["recovered"], found["recovered_fraction"], found["held"]) == (3, 0.75, 3)


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
    hits = Identification(Gallery(pool), candidates).hits()
    for i, image in enumerate(pool):
        for j, candidate in enumerate(candidates):
            l2 = (pool - candidate).flatten(1).norm(dim=1)
            near = ((image - candidate) ** 2).mean() <= 0.01
            assert hits[i, j] == bool(near and l2[i] == l2.min())


@pytest.mark.parametrize("shades", [3, 1000], ids=["many equally near", "all different"])
def test_hits_on_some_images_are_those_among_all(shades):
    """Those of which nobody asks may still be nearer: half of the candidates are of them, and some are copies."""
    pool = (textures(40) * shades).round() / shades
    noise = 0.1 * torch.randn((40, 1, 8, 8), generator=torch.Generator().manual_seed(3))
    candidates = torch.cat([pool + noise, pool[::3], 0.5 * pool[::5] + 0.3, pool[::4].flip(3)])
    asked = np.array([7, 2, 3, 30, 31, 12])
    some, everyone = (Identification(Gallery(pool), candidates, judged) for judged in (asked, None))
    measures = (
        lambda found: found.hits(),
        lambda found: found.affine_hits(),
        lambda found: found.hits_up_to([shifted, lambda images: images.flip(3)]),
        lambda found: found.recognized(0.6),
    )
    for measure in measures:
        expected = measure(everyone)[asked]
        assert np.array_equal(measure(some), expected) and expected.sum() > len(asked)


def test_equal_images_of_the_pool_are_compared_once():
    """A truth's images are private, others of an audit and of the pool: thrice as many as there are."""
    pool, candidates = textures(3), textures(4)[2:]
    found = Identification(Gallery(torch.cat([pool, pool[1:], pool])), candidates)
    assert torch.equal(found.gallery.images, pool) and found.l2.shape == (3, 2) and found.guesses.tolist() == [2, 3]


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


def other_images(classes=(0, 0)):
    """One reconstruction at 1 and 3 from two other images whose floors are 2."""
    hits = np.array([[True], [False]])
    return Others(
        np.array([[1.0], [3.0]]), np.array([[2.0], [2.0]]), np.array([9.0, 9.0]), hits, {"held": hits},
        np.array(classes),
    )  # fmt: skip


def null_of(others, classes=(0,)):
    """Of a leakage of 0.4 and one image recovered."""
    counts = {"recovered": 1, "held": 0}
    return permutation_null(0.4, counts, np.array(classes), np.ones(len(classes), dtype=int), others, rng())


def test_the_null_by_hand():
    """A set of one leaks 0.5 or 0."""
    others, once = other_images(), np.array([1])
    assert others.drawn(np.array([0]), once) == (0.5, {"recovered": 1, "held": 1})
    assert others.drawn(np.array([1]), once) == (0.0, {"recovered": 0, "held": 0})
    # the closest pair first: image 1 is left the mean; of the floor it is image 0, listed second, that is left the mean
    both = ((1 - 1 / 9) + 0) / 2
    assert others.drawn(np.array([1, 0]), np.array([1, 1])) == (pytest.approx(both), {"recovered": 1, "held": 1})
    # three copies of image 0 count three times
    assert others.drawn(np.array([1, 0]), np.array([1, 3])) == (
        pytest.approx(3 * (1 - 1 / 9) / 4),
        {"recovered": 3, "held": 3},
    )
    null = null_of(others)
    assert null.leakage == pytest.approx(0.5 * null.recovered)
    assert null.p == null.count_p["recovered"] == pytest.approx((1 + 99 * null.recovered) / 100)
    assert null.count_p["held"] == 1.0
    assert np.isnan(null_of(others, classes=(0, 0, 0)).p)


def test_the_null_draws_images_of_the_same_classes():
    """Of class 7 there is image 0 alone, which leaks 0.5 every time."""
    null = null_of(other_images(classes=(7, 3)), classes=(7,))
    assert (null.leakage, null.recovered, null.p) == (0.5, 1.0, 1.0)
    assert np.isnan(null_of(other_images(classes=(7, 3)), classes=(5,)).p)


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
