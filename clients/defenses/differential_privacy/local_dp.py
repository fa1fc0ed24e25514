"""Local differential privacy by Flower's mod, which `clients/client_app.py` runs; nothing here imports Flower."""

import math
from dataclasses import dataclass
from typing import ClassVar

from attacks.interface.options import check_values
from clients.defenses.base import Defense, DefenseContext, Encoding, FlowerMod, Sighting, register
from clients.defenses.differential_privacy.accounting import gaussian_epsilon
from clients.defenses.differential_privacy.guarantee import Adversary, Guarantee
from clients.defenses.personal_layers import check_no_statistics_sent


@register
@dataclass(frozen=True)
class LocalDP(Defense):
    """Flower's LocalDpMod: the update clipped to `clipping_norm`, with Gaussian noise of standard deviation
    sensitivity · √(2 ln(1.25/δ)) / ε on every entry. epsilon, delta: of one round, as Flower's formula has them.

    sensitivity: default 2 · clipping_norm, how far two clipped updates can be apart. A smaller one makes the noise
    smaller and the updates no closer: what is accounted for is always the noise that was added against that distance.
    """

    name: ClassVar[str] = "local_dp"
    tells_noise: ClassVar[tuple[Adversary, ...]] = ("server", "observer")

    clipping_norm: float = 1.0
    epsilon: float = 8.0
    delta: float = 1e-5
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        check_values(self, positive=("clipping_norm", "epsilon", "sensitivity"), below_one=("delta",))

    def check(self, context: DefenseContext) -> None:
        check_no_statistics_sent(self, context)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on every entry: that of the Gaussian mechanism."""
        return self._sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon

    @property
    def _sensitivity(self) -> float:
        return 2 * self.clipping_norm if self.sensitivity is None else self.sensitivity

    def flower_mod(self) -> FlowerMod:
        bounds = {"clipping_norm": self.clipping_norm, "sensitivity": self._sensitivity}
        options = {**bounds, "epsilon": self.epsilon, "delta": self.delta}
        return FlowerMod("flwr.clientapp.mod:LocalDpMod", options)

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        return Encoding()

    def privacy_spent(self, context: DefenseContext, steps: int, count: int) -> Guarantee:
        """The Gaussian mechanism on two clipped updates, which are 2 · clipping_norm apart at most, in every round."""
        rounds = context.memory["rounds"] = context.memory.get("rounds", 0) + 1
        epsilon = gaussian_epsilon(math.sqrt(rounds) * 2 * self.clipping_norm / self.noise_std, self.delta)
        return Guarantee(self.name, epsilon, self.delta, "client", "both", "replace_one", self.epsilon * rounds)

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {"clip_norm": self.clipping_norm}

    def noise_told(self, sighting: Sighting) -> float:
        return sighting.averaged(self.noise_std)
