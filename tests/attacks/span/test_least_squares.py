import torch

from attacks.span.acceptance import fit_images


def made_up(noise):
    """Duals that vanish on the units an image leaves inactive, and nothing else to go by."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    images, first = draw(6, 20), torch.cat([draw(300, 20), torch.zeros(300, 1, dtype=torch.float64)], 1)
    points = torch.nn.functional.pad(images, (0, 1), value=1.0)
    clean = (draw(300, 6) * 1e-3 * (points @ first.T > 0).T) @ points
    error = draw(300, 21)
    share = noise * clean.norm() / error.norm()
    return images, first, clean + share * error, draw(6, 20)


def test_images_are_exact_without_noise():
    images, first, update, error = made_up(0.0)
    found, left = fit_images(update, first, images + 0.05 * error, 6)
    assert (found - images).abs().max() < 1e-3 and left < 1e-4


def test_with_noise_they_are_better_than_the_rough_ones_and_leave_the_noise():
    images, first, update, error = made_up(0.02)
    found, left = fit_images(update, first, images + 0.1 * error, 6)
    assert (found - images).norm(dim=1).max() < 0.25 * (0.1 * error).norm(dim=1).min()
    assert 0.015 < left < 0.021  # ‖E‖ / ‖Δ‖ is 0.02, less what the free entries of the fit take up


def test_missing_images_are_left_to_free_rows():
    images, first, update, error = made_up(0.0)
    found, left = fit_images(update, first, images[:5] + 0.02 * error[:5], 6)
    assert found.shape == (5, 20) and left < 0.05
