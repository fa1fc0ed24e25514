"""Bound how much of a private image any attacker can reconstruct behind noise (Hayes et al.).

Hayes, Mahloujifar, Balle, "Bounding training data reconstruction in DP-SGD" (NeurIPS 2023). An attacker who knows all
images but one, and of that one the prior π, succeeds with probability at most B_κ(P, Q) = sup {P(E) : Q(E) ≤ κ}, the
blow-up function of what is released with the image, P, and without it, Q; κ is the success of the best guess that
looks at nothing. The set E that attains it is a likelihood-ratio test (Neyman and Pearson).
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import pandas as pd
import scipy  # its parts are imported where they are first used

from attacks.interface.torch_tools import numpy_generator
from attacks.scoring.images import RECOVERED_PSNR
from clients.config import ClientConfig
from clients.defenses import Defense
from clients.defenses.differential_privacy.dp_sgd import DPSGD
from clients.defenses.differential_privacy.whole_update import CentralDP, LocalDP
from clients.defenses.guarantee import Adversary
from clients.local_update import load_data
from simulator.rundir.run import Run

SAMPLES = 100_000


def gaussian_bound(prior: float, shift: float) -> float:
    """Return B_κ of N(μ, 1) against N(0, 1): Φ(Φ⁻¹(κ) + μ) (their section 3; full batches, T steps: μ = √T / σ).

    prior: κ in (0, 1). shift: μ, the most that the image moves what is released, in standard deviations of the noise.
    """
    return float(scipy.stats.norm.cdf(scipy.stats.norm.ppf(prior) + shift))


@lru_cache
def sampled_bound(prior: float, noise: float, rate: float, steps: int) -> float:
    """B_κ of DP-SGD (their theorem 2), by their estimator: the likelihood ratio of `steps` draws from both sides.

    P: in each step N(b, σ²) with b = 1 at probability `rate`; Q: N(0, σ²). noise: σ, relative to the clipping norm.
    The threshold is the (1 − κ) quantile under Q, the bound its tail under P, and of what lies on it the share that κ
    leaves (with hardly any noise, all that was never drawn); SAMPLES draws of each, always the same ones. With rate 1
    it is `gaussian_bound(prior, √steps / noise)`, which is returned then.
    """
    if rate >= 1:
        return gaussian_bound(prior, math.sqrt(steps) / noise)
    generator = numpy_generator(0, "reconstruction bound")
    without, with_it = np.zeros(SAMPLES), np.zeros(SAMPLES)
    for _ in range(steps):
        drawn = generator.normal(0, noise, SAMPLES)
        without += _log_ratio(drawn, noise, rate)
        drawn = generator.normal(0, noise, SAMPLES) + (generator.random(SAMPLES) < rate)
        with_it += _log_ratio(drawn, noise, rate)
    threshold = np.quantile(without, 1 - prior, method="lower")
    over, at = (without > threshold).mean(), (without == threshold).mean()
    return float((with_it > threshold).mean() + (with_it == threshold).mean() * (prior - over) / at)


def _log_ratio(drawn: np.ndarray, noise: float, rate: float) -> np.ndarray:
    """Return log((1 − q) + q exp((2 w − 1) / 2σ²)) of every w."""
    return np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * drawn - 1) / (2 * noise**2))


def uninformed_success(images: np.ndarray, radius: float) -> float:
    """Return κ: the largest share of public images within `radius` of one of them, which is itself among them.

    images: (P, C, H, W) in [0, 1], a sample of the prior. radius: L2 distance that counts as a success. κ is at least 1
    / P: a sample of P images tells no smaller chance, so that the bounds are not flattered.
    """
    flat = images.reshape(len(images), -1).astype(np.float64)
    squares = (flat**2).sum(1)
    distances = squares[:, None] + squares - 2 * flat @ flat.T
    return float((distances <= radius**2 + 1e-9).mean(1).max())


@dataclass(frozen=True)
class ReconstructionBounds:
    """The bounds of a run, for the columns of benchmark.csv."""

    record: Run

    @cached_property
    def prior(self) -> float:
        """κ, on the public images of the first cell."""
        cell = next(iter(self.record.cells.values()))
        images = load_data(cell.client_config(use_gpu=False)).public()[0].numpy()
        radius = math.sqrt(images[0].size) * 10 ** (-RECOVERED_PSNR / 20)  # an L2 distance has this PSNR
        return uninformed_success(images, radius)

    def columns(self, defense: str, against: Adversary, replies: pd.DataFrame) -> dict[str, float]:
        """Return κ and the bound for an adversary of one defense so far; empty without a mechanism. replies: rows of
        the clients table, of all rounds so far. The mechanism of a chain counts that bounds most, and the client whose
        images are in the most releases."""
        cell = next(cell for cell in self.record.cells.values() if cell.scenario.defense == defense)
        # whose noise stands between the images and the adversary
        kinds = (LocalDP, DPSGD, CentralDP) if against == "observer" else (LocalDP, DPSGD)
        noisy = [one for one in cell.scenario.chain if isinstance(one, kinds)]
        if not noisy or replies.empty:
            return {}
        releases = replies.groupby(["seed", "client"]).agg(
            rounds=("round", "size"), steps=("steps", "sum"), images=("num_examples", "max")
        )
        config = cell.client_config(use_gpu=False)
        found = min(self._bound(one, config, releases) for one in noisy)
        return {"prior_success": self.prior, "reconstruction_bound": found}

    def _bound(self, defense: Defense, config: ClientConfig, releases: pd.DataFrame) -> float:
        """releases: for each client its rounds, steps and images."""
        most = float(releases.rounds.max())
        if isinstance(defense, LocalDP):  # against the noise around no update at all, from which one is a norm away
            return gaussian_bound(self.prior, math.sqrt(most) * defense.clipping_norm / defense.noise_std)
        if isinstance(defense, CentralDP):
            return gaussian_bound(self.prior, math.sqrt(most) / defense.noise_multiplier)
        assert isinstance(defense, DPSGD)
        found = []
        for images, steps in releases.groupby("images").steps.max().items():
            count = int(str(images))
            batch = min(config.training.batch_size or count, count)
            found.append(sampled_bound(self.prior, defense.noise(config, count), batch / count, int(steps)))
        return max(found)
