"""Make any Flower strategy by its name, with defaults that fit a simulation of known size."""

import importlib
import inspect
import logging
from dataclasses import replace

import flwr.serverapp.strategy as flower
from flwr.serverapp.strategy import Strategy
from pydantic import ValidationError

from attacks.interface.errors import InputError, did_you_mean
from attacks.interface.plugins import look_in_working_folder
from clients.defenses import ServerHalf
from simulator.scenario.scenario import Scenario
from simulator.scenario.sections import FederationConfig, StrategyConfig

TREES = ("FedXgbBagging", "FedXgbCyclic")  # they aggregate trees, not tensors


def known_strategies() -> list[str]:
    return sorted(name for name in flower.__all__ if name not in ("Strategy", "Result", *TREES))


MINIMUMS = ("min_available_nodes", "min_train_nodes", "min_evaluate_nodes")


def defended_strategy(scenario: Scenario) -> Strategy:
    """Return the scenario's strategy, wrapped by what its defenses do on the server."""
    strategy = make_strategy(scenario.federation, scenario.federation.strategy)
    expected = scenario.federation.clients * scenario.federation.fraction
    sampled = max(1, int(expected))
    for defense in scenario.chain:
        half = defense.server_half()
        if half.poisson:
            half = replace(half, options=half.options | {"expected_clients": expected})
        if half.strategy:
            strategy = wrapped(strategy, half, sampled)
    return strategy


def wrapped(strategy: Strategy, half: ServerHalf, sampled: int) -> Strategy:
    """Wrap `strategy` in the one that a defense names. sampled: clients of a round."""
    module, colon, name = half.strategy.rpartition(":")
    look_in_working_folder()
    wrapper = getattr(importlib.import_module(module) if colon else flower, name)
    options = dict(half.options)
    if "num_sampled_clients" in inspect.signature(wrapper.__init__).parameters:
        options["num_sampled_clients"] = sampled
    try:
        return wrapper(strategy, **options)
    except (TypeError, ValueError) as error:
        raise InputError(f"strategy {half.strategy!r} of a defense: {error}") from None


def make_strategy(federation: FederationConfig, config: StrategyConfig) -> Strategy:
    """Make a strategy with its options. Raise InputError for an unknown name, and for options that it refuses.

    A strategy that wraps another, as server-side DP does, names it in its option `strategy`: a name, or {name,
    options}; by default FedAvg.
    """
    if config.name not in known_strategies():
        hint = did_you_mean(config.name, known_strategies())
        if ":" in config.name:
            hint = (
                f": name one of Flower's{hint}; put fedspill.Record around your own, in your app (docs/howto/audit.md)"
            )
        raise InputError(f"unknown federation.strategy {config.name!r}{hint}")
    _check_minimums(federation, config)
    strategy = getattr(flower, config.name)
    defaults = {
        "fraction_train": federation.fraction,
        "fraction_evaluate": 0.0,
        "min_train_nodes": 1,
        "min_evaluate_nodes": 0,
        "min_available_nodes": federation.clients,
    }
    accepted = inspect.signature(strategy.__init__).parameters
    options = {key: value for key, value in defaults.items() if key in accepted} | config.options
    if "strategy" in accepted:
        inner = config.options.get("strategy", "FedAvg")
        try:
            options["strategy"] = make_strategy(federation, StrategyConfig.model_validate(inner))
        except ValidationError:
            raise InputError(
                f"federation.strategy {config.name!r}: its option strategy is {inner!r}: give a name, or "
                "{name, options}"
            ) from None
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)  # Flower warns that federated evaluation is off, which is our choice
    try:
        return strategy(**options)
    except (TypeError, ValueError) as error:
        takes = ", ".join(name for name in accepted if name not in {"self", *defaults})
        raise InputError(f"federation.strategy {config.name!r}: {error} (its options: {takes})") from None
    finally:
        logger.setLevel(level)


def _check_minimums(federation: FederationConfig, config: StrategyConfig) -> None:
    """Raise InputError if the strategy would wait for more clients than there are."""
    for key in MINIMUMS:
        value = config.options.get(key, 0)
        if not (isinstance(value, int) and 0 <= value <= federation.clients):
            raise InputError(
                f"federation.strategy {config.name!r}: {key} is {value!r}, it has to be 0 to federation.clients = "
                f"{federation.clients}: Flower would wait for more for ever"
            )
