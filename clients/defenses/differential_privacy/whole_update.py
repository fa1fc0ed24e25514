"""Differential privacy of whole updates: central, by Flower's strategies, and local, by Flower's mod.

With clipping on the server, an honest-but-curious server sees raw updates, with clipping on the clients clipped ones.
Central privacy is against the observer in both cases. Nothing here imports Flower.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from attacks.interface.observation import State
from attacks.interface.options import BELOW_ONE, POSITIVE
from clients.defenses.base import (
    Defense,
    DefenseContext,
    DefenseEnvironment,
    Encoding,
    FlowerMod,
    Metrics,
    ObservedUpdate,
    ServerHalf,
    clipped,
    register,
)
from clients.defenses.guarantee import Adversary, Guarantee, epsilon_of, gaussian_epsilon
from clients.defenses.personal_layers import check_no_statistics_sent

STRATEGY = "simulator.run.central_dp:FittedNoise"  # Flower's, with noise that fits the replies of a round


@register
@dataclass(frozen=True)
class CentralDP(Defense):
    """Add noise to the mean of all updates, each limited in size first: hides clients from all but the server.

    Central differential privacy, by Flower's strategies.

    noise_multiplier: standard deviation of the noise on the mean, relative to what the heaviest client can move it
        by, which is clipping_norm times its weight.
    clipping_norm: largest L2 norm of an update.
    clipping: who clips the updates to that norm.
    delta: at which ε is computed.
    sampling: of a round's clients. `public`: everybody may know who trained in a round. `secret_poisson`: each takes
        part by a coin of its own, all with one weight, and nobody outside the server may learn who did: that lowers ε
        where `federation.fraction` is small.
    """

    name: ClassVar[str] = "central_dp"
    tells_noise: ClassVar[tuple[Adversary, ...]] = ("observer",)

    noise_multiplier: Annotated[float, POSITIVE] = 1.0
    clipping_norm: Annotated[float, POSITIVE] = 1.0
    clipping: Literal["server", "client"] = "server"
    delta: Annotated[float, BELOW_ONE] = 1e-5
    sampling: Literal["public", "secret_poisson"] = "public"

    def check(self, context: DefenseContext) -> None:
        check_no_statistics_sent(self, context)

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        return (delta if self.clipping == "server" else clipped(delta, self.clipping_norm)[0]), {}

    def conflict(self, around: DefenseEnvironment) -> str:
        if not around.plain_mean:
            return (
                f"defense central_dp needs the mean of the updates, weighted by images: its noise is no bound for what "
                f"federation.strategy {around.strategy!r} makes of one client: use FedAvg or FedProx"
            )
        behind = around.chain[around.chain.index(self) + 1 :]
        longer = next((other.name for other in behind if self.clipping == "client" and _changes_update(other)), None)
        if longer is not None:
            return (
                f"defense central_dp with clipping: client has to come after {longer}, which changes the update again "
                "and so what the norm was to bound: put it last"
            )
        return ""

    def server_half(self) -> ServerHalf:
        bounds = {"noise_multiplier": self.noise_multiplier, "clipping_norm": self.clipping_norm}
        return ServerHalf(
            STRATEGY,
            {**bounds, "clipping": self.clipping},
            needs_single_updates=self.clipping == "server",
            if_hidden=f"nothing to clip per client: use {{name: {self.name}, clipping: client}}",
            poisson=self.sampling == "secret_poisson",
        )

    def privacy_spent(self, context: DefenseContext, steps: int, count: int) -> Guarantee:
        """Count one release of Gaussian noise for each round of the client, or, by secret coins, for all rounds."""
        rounds = context.memory["rounds"] = context.memory.get("rounds", 0) + 1
        if self.sampling == "public":
            epsilon = gaussian_epsilon(math.sqrt(rounds) / self.noise_multiplier, self.delta)
        else:
            history = ((self.noise_multiplier, context.config.fraction, context.round),)
            epsilon = epsilon_of(history, self.delta)
        return Guarantee(self.name, epsilon, self.delta, "client", "observer", "add_remove")

    def noise_told(self, observed: ObservedUpdate) -> float | None:
        if observed.adversary == "server":
            return None
        return self.noise_multiplier * self.clipping_norm * max(observed.shares)


def _changes_update(defense: Defense) -> bool:
    overridden = type(defense).protect_update is not Defense.protect_update
    return (overridden or defense.flower_mod() is not None) and not defense.server_half().hides_clients


@register
@dataclass(frozen=True)
class LocalDP(Defense):
    """Limit the size of the update, and add noise at the client before it is sent (Flower's LocalDpMod).

    The update is clipped to `clipping_norm`, with Gaussian noise of standard deviation
    sensitivity · √(2 ln(1.25/δ)) / ε on every entry.

    clipping_norm: largest L2 norm of an update.
    epsilon, delta: of one round, as Flower's formula has them.
    sensitivity: how far two clipped updates can be apart, by default 2 · clipping_norm. A smaller one makes the noise
        smaller and the updates no closer: what is accounted for is always the noise that was added against that
        distance.
    """

    name: ClassVar[str] = "local_dp"
    tells_noise: ClassVar[tuple[Adversary, ...]] = ("server", "observer")

    clipping_norm: Annotated[float, POSITIVE] = 1.0
    epsilon: Annotated[float, POSITIVE] = 8.0
    delta: Annotated[float, BELOW_ONE] = 1e-5
    sensitivity: Annotated[float | None, POSITIVE] = None

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
        """Return the Gaussian mechanism's guarantee on clipped updates, at most 2 · clipping_norm apart in a round."""
        rounds = context.memory["rounds"] = context.memory.get("rounds", 0) + 1
        epsilon = gaussian_epsilon(math.sqrt(rounds) * 2 * self.clipping_norm / self.noise_std, self.delta)
        return Guarantee(self.name, epsilon, self.delta, "client", "both", "replace_one", self.epsilon * rounds)

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {"clip_norm": self.clipping_norm}

    def noise_told(self, observed: ObservedUpdate) -> float:
        return observed.averaged(self.noise_std)
