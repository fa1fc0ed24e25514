import torch

from attacks.span.feature_space.update import resolved_rank
from attacks.update.spectrum import Spectrum


def test_rank_is_that_of_the_summands_or_ends_at_the_noise():
    generator = torch.Generator().manual_seed(0)
    left, right, noise = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((60, 12), (12, 200), (60, 200))
    )
    assert resolved_rank(Spectrum.of(left @ right + 1e-8 * noise)) == (12, True)
    decaying = torch.linalg.qr(left)[0] * 0.5 ** torch.arange(12) @ right
    rank, exact = resolved_rank(Spectrum.of(decaying + 1e-3 * noise))
    assert not exact and 6 <= rank <= 12
