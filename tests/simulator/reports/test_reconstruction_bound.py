"""The bounds of Hayes et al. (2023) against closed forms and quadrature."""

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from simulator.reports.reconstruction_bound import gaussian_bound, sampled_bound, uninformed_success


def test_one_full_batch_step_is_the_blow_up_of_two_gaussians():
    # Φ(Φ⁻¹(0.1) + 1) with Φ⁻¹(0.1) = −1.281552 is Φ(−0.281552), by the tables of Φ
    assert gaussian_bound(0.1, 1.0) == pytest.approx(0.389142, abs=1e-5)
    assert gaussian_bound(0.01, 0.0) == pytest.approx(0.01)  # noise that hides all leaves the prior
    assert gaussian_bound(0.01, 20.0) == pytest.approx(1.0)
    assert sampled_bound(0.1, 2.0, 1.0, 4) == gaussian_bound(0.1, 1.0)  # four steps at σ 2: μ = √4 / 2


@pytest.mark.parametrize(("prior", "noise", "rate"), [(0.1, 1.0, 0.2), (0.02, 0.5, 0.5)])
def test_a_subsampled_step_agrees_with_quadrature(prior, noise, rate):
    """One step: the likelihood ratio grows with w, so the best set is a half-line [t, ∞) with Q-mass κ."""
    threshold = optimize.brentq(lambda t: stats.norm.sf(t / noise) - prior, -20, 20)
    without, within = (integrate.quad(stats.norm(mean, noise).pdf, threshold, 30)[0] for mean in (0, 1))
    exact = (1 - rate) * without + rate * within
    assert sampled_bound(prior, noise, rate, 1) == pytest.approx(exact, abs=0.006)  # of 100,000 draws


def test_more_steps_and_less_noise_bound_less():
    bounds = [sampled_bound(0.01, noise, 0.2, steps) for noise, steps in ((2.0, 1), (2.0, 20), (0.7, 20), (0.2, 20))]
    assert bounds == sorted(bounds) and bounds[0] < 0.03
    # hardly any noise: whoever was drawn at all is known, 1 − 0.8²⁰ = 0.98847; the rest is a guess
    assert sampled_bound(0.01, 0.05, 0.2, 20) == pytest.approx(0.98847, abs=0.002)


def test_the_uninformed_guess_is_the_image_with_most_neighbours():
    """Points 0, 0.1, 0.2, 5 and 6 on a line: 0.1 has three of five within 0.15, itself included."""
    images = np.zeros((5, 1, 2, 2), np.float32)
    images[:, 0, 0, 0] = [0, 0.1, 0.2, 5, 6]
    assert uninformed_success(images, 0.15) == pytest.approx(3 / 5)
    assert uninformed_success(images, 0.01) == pytest.approx(1 / 5)
