from types import SimpleNamespace

import pytest
import torch

from attacks.span.evidence.pixel_evidence import PixelEvidence, Regime, different_columns
from attacks.update.spectrum import Spectrum


def test_spectrum_agrees_with_the_singular_value_decomposition(federated):
    _, observation, _ = federated
    update = torch.cat([observation.delta()["1.weight"], observation.delta()["1.bias"][:, None]], 1)
    spectrum = Spectrum.of(update)
    _, values, vectors = torch.linalg.svd(update, full_matrices=False)
    torch.testing.assert_close(spectrum.values[:8], values[:8])
    assert spectrum.count() == 8
    overlap = spectrum.vectors[:8] @ vectors[:8].T
    torch.testing.assert_close(overlap @ overlap.T, torch.eye(8, dtype=torch.float64))


def test_noise_is_measured_by_the_median_singular_value():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 120, generator=generator, dtype=torch.float64)
    strong = 100 * torch.outer(*(torch.randn(n, generator=generator, dtype=torch.float64) for n in (200, 120)))
    spectrum = Spectrum.of(noise + strong)
    assert spectrum.above_noise() == 1
    share = float(noise.norm() / (noise + strong).norm())
    assert spectrum.share(spectrum.deviation()) == pytest.approx(share, rel=0.05)


def test_pixels_that_are_constant_are_one_column_also_where_the_update_is_quantized():
    """Seven images whose last 30 of 50 pixels are black: of the first 20 all columns differ. Rounding to 8 bits keeps
    the columns of the black ones from being multiples of the bias's, and leaves them equal."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(7, 50, generator=generator, dtype=torch.float64) - 0.3
    images[:, 20:] = -0.3
    duals = torch.randn(300, 7, generator=generator, dtype=torch.float64)
    update = torch.cat([duals @ images, duals.sum(1, keepdim=True)], 1)
    assert different_columns(update) == 20
    step = 2 * update.abs().max() / 255
    start = torch.rand(update.shape, generator=generator)  # parameters in float32, to which the update was added
    quantized = (start + ((update / step).round() * step).float()).double() - start.double()
    assert different_columns(quantized) == 21


@pytest.mark.parametrize("columns", [3000, 785, 600])
def test_the_floor_of_independent_errors_is_flat_and_one_that_falls_is_not(columns):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(400, columns, generator=generator, dtype=torch.float64)
    assert Spectrum.of(noise).floor_flatness() == pytest.approx(1, abs=0.1)
    falling = torch.logspace(0, -3, 400, dtype=torch.float64)[:, None] * noise
    assert Spectrum.of(falling).floor_flatness() < 0.6


@pytest.mark.parametrize(("fifth", "leading"), [(1e-3, 4), (5e-3, None)])
def test_a_search_starts_with_two_directions_per_image_where_they_hold_nearly_all(fifth, leading):
    values = torch.tensor([1.0, 0.5, 0.2, 0.1, fifth, 1e-4, 1e-5, 1e-6]).double()
    at_rest = Spectrum(values[:4], torch.eye(4, 8).double(), 8, 8)
    second = Spectrum(values, torch.eye(8).double(), 8, 8)
    evidence = PixelEvidence(None, second, 2, 2, {0: at_rest, 1: second}, 8, 0.0)
    assert evidence.leading_directions == leading
    assert PixelEvidence(None, second, 2, 2, {0: at_rest}, 4, 0.0).leading_directions is None  # they are all


def test_a_refusal_is_one_remark():
    """A newcomer's case: a verdict parts remarks at semicolons, and had "local Adam looks like so many images too"."""
    evidence = SimpleNamespace(
        like_adam=False, count=20, rank=400, outside=0.0, testable=False, regime=Regime.PLAIN, directions=8,
        defense=SimpleNamespace(layers=SimpleNamespace(width=16)),
    )  # fmt: skip
    reason = PixelEvidence.refusal.func(evidence).reason
    assert "20 images need 24 directions" in reason and "local Adam" in reason and "; " not in reason


@pytest.mark.parametrize("told", [True, False])
def test_a_number_that_was_told_is_no_guess_however_small_the_gap(told):
    """A verdict asked to grant `num_private` of an adversary who had been granted it."""
    values = torch.tensor([1.0, 0.5, 0.03, 0.025, 0.02]).double()  # a gap of 1.2 behind the third
    evidence = SimpleNamespace(
        defense=SimpleNamespace(layers=SimpleNamespace(warnings=())), doubts=(), refusal=None, outside=0.03, count=3,
        spectrum=SimpleNamespace(values=values), regime=SimpleNamespace(explained=False), rank=100, told=told,
    )  # fmt: skip
    evidence._gap = PixelEvidence._gap.fget(evidence)
    evidence.guessed = PixelEvidence.guessed.fget(evidence)
    (warning,) = PixelEvidence.warnings.fget(evidence)
    assert evidence.guessed != told and evidence._gap == pytest.approx(1.2)
    assert warning.endswith("it is noisy" if told else "makes 3 images a guess")
