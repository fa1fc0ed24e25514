"""Any Flower strategy by name, with defaults that fit a simulation of known size."""

import inspect
import logging
from typing import Any

import flwr.serverapp.strategy as flower
from flwr.serverapp.strategy import Strategy
from pydantic import ValidationError

from attacks.interface.errors import InputError, nearest
from clients.defenses.central_dp import CentralDP
from simulator.scenario.scenario import Scenario
from simulator.scenario.sections import FederationConfig, StrategyConfig

MINIMUMS = ("min_available_nodes", "min_train_nodes", "min_evaluate_nodes")
TREES = ("FedXgbBagging", "FedXgbCyclic")  # they aggregate trees, not tensors


def known_strategies() -> list[str]:
    return sorted(name for name in flower.__all__ if name not in ("Strategy", "Result", *TREES))


def defended_strategy(scenario: Scenario) -> Strategy:
    """The scenario's strategy, inside those that are the server's half of its defenses."""
    strategy = make_strategy(scenario.federation)
    sampled = max(1, int(scenario.federation.clients * scenario.federation.fraction))
    for defense in (config.make() for config in scenario.defenses):
        if isinstance(defense, CentralDP):
            wrap = (
                flower.DifferentialPrivacyServerSideFixedClipping
                if defense.clipping == "server"
                else flower.DifferentialPrivacyClientSideFixedClipping
            )
            strategy = wrap(strategy, defense.noise_multiplier, defense.clipping_norm, sampled)
    return strategy


def make_strategy(federation: FederationConfig) -> Strategy:
    """The strategy of a scenario; InputError for unknown names and for options its constructor refuses.

    A strategy that wraps another (the server-side DP strategies) takes it in its option `strategy`, by name or as
    {name, options}.
    """
    return _make(federation, federation.strategy.name, federation.strategy.options)


def _make(federation: FederationConfig, name: str, given: dict[str, Any]) -> Strategy:
    if name not in known_strategies():
        raise InputError(f"unknown federation.strategy {name!r}{nearest(name, known_strategies())}")
    strategy = getattr(flower, name)
    defaults = {
        "fraction_train": federation.fraction,
        "fraction_evaluate": 0.0,
        "min_train_nodes": 1,
        "min_evaluate_nodes": 0,
        "min_available_nodes": federation.clients,
    }
    accepted = inspect.signature(strategy.__init__).parameters
    options = {key: value for key, value in defaults.items() if key in accepted} | given
    for key, value in given.items():
        if key in MINIMUMS and not (isinstance(value, int) and 0 <= value <= federation.clients):
            raise InputError(
                f"federation.strategy {name!r}: {key} is {value!r}, it has to be 0 to federation.clients = "
                f"{federation.clients}: Flower would wait for more for ever"
            )
    if "strategy" in accepted:
        inner = options.get("strategy", "FedAvg")
        try:
            parts = StrategyConfig.model_validate({"name": inner} if isinstance(inner, str) else inner)
        except ValidationError:
            raise InputError(
                f"federation.strategy {name!r}: its option strategy is {inner!r}: give a name, or {{name, options}}"
            ) from None
        options["strategy"] = _make(federation, parts.name, parts.options)
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)  # that federated evaluation is off is our choice, not worth a warning
    try:
        return strategy(**options)
    except (TypeError, ValueError) as error:
        raise InputError(f"federation.strategy {name!r}: {error}") from None
    finally:
        logger.setLevel(level)
