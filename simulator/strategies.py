"""Any Flower strategy by name, with defaults that fit a simulation of known size."""

import inspect
import logging

import flwr.serverapp.strategy as flower
from flwr.serverapp.strategy import Strategy

from attacks.errors import InputError, nearest
from simulator.scenario import FederationConfig


def known_strategies() -> list[str]:
    return sorted(name for name in flower.__all__ if name not in ("Strategy", "Result"))


def make_strategy(federation: FederationConfig) -> Strategy:
    """The strategy of a scenario; InputError for unknown names and for options its constructor refuses."""
    name = federation.strategy.name
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
    options = {key: value for key, value in defaults.items() if key in accepted} | federation.strategy.options
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)  # that federated evaluation is off is our choice, not worth a warning
    try:
        return strategy(**options)
    except (TypeError, ValueError) as error:
        raise InputError(f"federation.strategy {name!r}: {error}") from None
    finally:
        logger.setLevel(level)
