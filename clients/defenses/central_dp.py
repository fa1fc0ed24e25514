"""Central differential privacy by Flower's strategies: updates clipped, Gaussian noise on their mean.

`simulator/strategies.py` wraps the strategy. With clipping on the server, an honest-but-curious server sees raw
updates, and only those outside it are protected; with clipping on the clients it sees clipped ones.
"""

import warnings
from dataclasses import dataclass
from typing import ClassVar, Literal

from attacks.interface.errors import InputError
from attacks.interface.observation import State
from clients.defenses.base import Defense, Metrics, Setting, norm, positive, register, scaled


@register
@dataclass(frozen=True)
class CentralDP(Defense):
    """noise_multiplier: standard deviation of the noise on the sum, relative to clipping_norm. delta: of ε."""

    name: ClassVar[str] = "central_dp"

    noise_multiplier: float = 1.0
    clipping_norm: float = 1.0
    clipping: Literal["server", "client"] = "server"
    delta: float = 1e-5

    def __post_init__(self) -> None:
        positive(self, "noise_multiplier", "clipping_norm")
        if not 0 < self.delta < 1:
            raise InputError(f"defense 'central_dp': delta is {self.delta:g}, it has to be above 0 and below 1")

    def protect_update(self, delta: State, setting: Setting) -> tuple[State, Metrics]:
        size = float(norm(delta))
        if self.clipping == "server" or not size:
            return delta, {}
        return scaled(delta, min(1.0, self.clipping_norm / size)), {}

    def spent(self, setting: Setting, steps: int, count: int) -> Metrics:
        """ε of a client's participation after this round, by opacus' accountant: one step a round for the sampled."""
        from opacus.accountants import RDPAccountant

        accountant = RDPAccountant()
        accountant.history = [(self.noise_multiplier, setting.config.fraction, setting.round)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {"epsilon": float(accountant.get_epsilon(self.delta))}
