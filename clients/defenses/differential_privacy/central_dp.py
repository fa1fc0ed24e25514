"""Central differential privacy by Flower's strategies: updates clipped, Gaussian noise on their mean.

With clipping on the server, an honest-but-curious server sees raw updates, and only those outside it are protected;
with clipping on the clients it sees clipped ones.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from attacks.interface.observation import State
from attacks.interface.options import check_values
from clients.defenses.base import Defense, DefenseContext, Metrics, ServerHalf, clipped, register
from clients.defenses.differential_privacy.accounting import epsilon_of


@register
@dataclass(frozen=True)
class CentralDP(Defense):
    """noise_multiplier: standard deviation of the noise on the sum, relative to clipping_norm. clipping: who clips the
    updates to that norm. delta: at which ε is computed."""

    name: ClassVar[str] = "central_dp"

    noise_multiplier: float = 1.0
    clipping_norm: float = 1.0
    clipping: Literal["server", "client"] = "server"
    delta: float = 1e-5

    def __post_init__(self) -> None:
        check_values(self, positive=("noise_multiplier", "clipping_norm"), below_one=("delta",))

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        return (delta if self.clipping == "server" else clipped(delta, self.clipping_norm)[0]), {}

    def server_half(self) -> ServerHalf:
        options = {"noise_multiplier": self.noise_multiplier, "clipping_norm": self.clipping_norm}
        if self.clipping == "client":
            return ServerHalf("DifferentialPrivacyClientSideFixedClipping", options)
        return ServerHalf(
            "DifferentialPrivacyServerSideFixedClipping",
            options,
            needs_single_updates=True,
            if_hidden=f"nothing to clip per client: use {{name: {self.name}, clipping: client}}",
        )

    def privacy_spent(self, context: DefenseContext, steps: int, count: int) -> Metrics:
        """ε of a client's participation after this round, by opacus' accountant: one step a round for the sampled."""
        return {"epsilon": epsilon_of(((self.noise_multiplier, context.config.fraction, context.round),), self.delta)}
