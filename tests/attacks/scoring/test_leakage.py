import numpy as np
import pytest
import torch

from attacks import InputError
from attacks.scoring.images import Pool, matched_l2, psnr, score_images, ssim
from attacks.scoring.leakage import score


def constant(*values, size=4):
    return torch.stack([torch.full((1, size, size), float(v)) for v in values])


def rng():
    return np.random.default_rng(0)


def test_l2_and_psnr_of_a_constant_offset():
    # 16 pixels off by 0.1: L2 = 0.1 · √16 = 0.4, MSE = 0.01, PSNR = 20 dB
    private, guess = constant(0.5), constant(0.6)
    scores = score_images(private, guess, Pool(constant(0.0, 1.0), private))
    assert scores.l2[0] == pytest.approx(0.4, abs=1e-6)
    assert scores.psnr[0] == pytest.approx(20.0, abs=1e-4)
    assert scores.identified[0]


def test_psnr_of_an_exact_copy_is_capped_at_100_db():
    assert psnr(constant(0.3), constant(0.3))[0] == pytest.approx(100.0)


def test_a_guess_nearer_to_another_image_of_the_pool_is_not_identified():
    private = constant(0.5)
    scores = score_images(private, constant(0.6), Pool(constant(0.62, 0.0), private))
    assert not scores.identified[0]
    assert not scores.recovered[0]


def test_an_exact_duplicate_in_the_pool_does_not_hide_an_image():
    private = constant(0.5)
    assert score_images(private, constant(0.55), Pool(constant(0.5, 0.0), private)).identified[0]


def test_recovered_needs_twenty_decibels():
    private = constant(0.5)
    far = score_images(private, constant(0.7), Pool(constant(0.0, 1.0), private))
    assert far.identified[0] and not far.recovered[0]  # MSE 0.04 is 13.98 dB
    assert far.psnr[0] == pytest.approx(13.979, abs=1e-3)


def test_missing_reconstructions_are_scored_against_the_mean_public_image():
    private = constant(0.2, 0.9)
    scores = score_images(private, constant(0.2), Pool(constant(0.0, 1.0), private))
    assert scores.match.tolist() == [0, -1]
    assert scores.l2.tolist() == pytest.approx([0.0, 0.4 * 4], abs=1e-6)  # |0.9 − 0.5| · √16
    assert scores.identified.tolist() == [True, False]


def test_an_attack_that_returns_nothing_leaks_nothing():
    private = constant(0.2, 0.9)
    result = score(private, torch.zeros(0, 1, 4, 4), Pool(constant(0.0, 1.0), private), rng())
    assert result.leakage == 0
    columns = result.columns()
    assert columns["recovered"] == 0 and not np.isnan(columns["floor_l2_median"])


def test_leakage_is_one_for_exact_copies_and_zero_for_public_images():
    generator = torch.Generator().manual_seed(0)
    private, public = torch.rand((3, 1, 8, 8), generator=generator), torch.rand((10, 1, 8, 8), generator=generator)
    pool = Pool(public, private)
    assert score(private, private.clone(), pool, rng()).leakage == pytest.approx(1.0)
    assert score(private, public, pool, rng()).leakage == pytest.approx(0.0, abs=1e-12)  # all ten are the floor too


def test_the_floor_can_be_recovered_where_the_public_pool_holds_near_copies():
    generator = torch.Generator().manual_seed(0)
    private = torch.rand((4, 1, 8, 8), generator=generator)
    public = (private + 0.01).clamp(0, 1)  # 40 dB
    result = score(private, torch.rand((4, 1, 8, 8), generator=generator), Pool(public, private), rng())
    assert result.columns()["floor_recovered_fraction"] == 1.0


def test_other_public_images_are_a_little_above_their_own_floor():
    generator = torch.Generator().manual_seed(0)
    private, public = torch.rand((50, 1, 8, 8), generator=generator), torch.rand((500, 1, 8, 8), generator=generator)
    result = score(private, public[:100], Pool(public, private), rng())
    assert 0 < result.floor_leakage < 0.1 and abs(result.floor_leakage - result.leakage) < 0.03
    assert result.floor_size == 100


def test_leakage_by_hand():
    # one private image at 0.5; the only public image 0.9 is its floor, at 0.4·4 = 1.6; the guess is at 0.1·4 = 0.4
    private = constant(0.5)
    result = score(private, constant(0.6), Pool(constant(0.9), private), rng())
    assert result.leakage == pytest.approx(1 - 0.4 / 1.6, abs=1e-6)


def test_public_images_returned_by_an_attack_count_as_those_of_the_floor_do():
    """All ten are returned and all ten are the floor: whoever returns them gets the same score."""
    generator = torch.Generator().manual_seed(0)
    private = torch.rand((4, 1, 8, 8), generator=generator)
    public = torch.cat([(private + 0.01).clamp(0, 1), torch.rand((6, 1, 8, 8), generator=generator)])
    columns = score(private, public, Pool(public, private), rng()).columns()
    assert columns["recovered_fraction"] == columns["floor_recovered_fraction"] == 1.0


def test_the_mean_public_image_stands_beside_the_floor_by_hand():
    # public 0 and 0.8, mean 0.4: from 0.5 it is 0.1·4 = 0.4 away; of two draws of both, the nearer is 0.3·4 = 1.2 away
    private = constant(0.5)
    columns = score(private, constant(0.1, 0.9), Pool(constant(0.0, 0.8), private), rng()).columns()
    assert columns["mean_image_l2_median"] == pytest.approx(0.4, abs=1e-6)
    assert columns["mean_image_psnr_mean"] == pytest.approx(20.0, abs=1e-4)
    assert columns["floor_l2_median"] == pytest.approx(1.2, abs=1e-6)
    assert columns["mean_image_leakage"] == pytest.approx(1 - 0.4 / 1.2, abs=1e-6)


def test_too_few_candidates_cannot_be_matched():
    l2, match = matched_l2(constant(0.2, 0.9), constant(0.9, 0.5, 0.2))
    assert l2.tolist() == pytest.approx([0, 0], abs=1e-6) and match.tolist() == [2, 0]
    with pytest.raises(InputError, match="1 candidates cannot be matched to 2 images"):
        matched_l2(constant(0.2, 0.9), constant(0.9))


def test_images_too_small_for_structural_similarity_are_scored_without_it():
    private = torch.rand(2, 1, 1, 10, generator=torch.Generator().manual_seed(0))
    found = score(private, private.clone(), Pool(torch.rand(5, 1, 1, 10), private), rng())
    assert np.isnan(found.ssim).all() and found.images.recovered.all()


def test_candidates_outside_the_pixel_range_are_clamped():
    private = constant(1.0)
    assert score(private, constant(7.0), Pool(constant(0.0), private), rng()).leakage == pytest.approx(1.0)


def test_ssim_is_one_for_a_copy_and_low_for_noise():
    generator = torch.Generator().manual_seed(0)
    image, noise = (torch.rand((1, 3, 32, 32), generator=generator) for _ in range(2))
    assert ssim(image, image.clone()) == pytest.approx(1.0)
    assert abs(ssim(image, noise)) < 0.1


def test_hungarian_never_has_more_squared_error_than_greedy():
    generator = torch.Generator().manual_seed(3)
    private, guesses = torch.rand((6, 1, 4, 4), generator=generator), torch.rand((8, 1, 4, 4), generator=generator)
    scores = score_images(private, guesses, Pool(guesses, private))

    def error(decibels):
        return (10 ** (-decibels / 10)).sum()

    assert error(scores.hungarian_psnr) <= error(scores.psnr) + 1e-12
