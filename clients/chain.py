"""Build the defenses that a scenario names, and run a chain of them around the local training of one client."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attacks.interface.errors import InputError
from attacks.interface.observation import State, trained_names
from attacks.interface.options import check_known
from attacks.interface.plugins import hook_of, load_object, require_allowed
from clients.config import ClientConfig, DefenseConfig, made_with
from clients.defenses import DEFENSES, Defense, DefenseContext, Encoding, FlowerMod, TrainingSet
from clients.defenses.base import Metrics, ServerHalf, Transformation
from clients.defenses.guarantee import Guarantee
from clients.training import Batch, TrainingHook, TrainingLoop

RunMod = Callable[[FlowerMod, str, State], State]
"""Applies a Flower mod, of the defense with this name, to the parameters before they are returned."""


def build_defense(config: DefenseConfig) -> Defense:
    """Make a defense with type-checked options; InputError names what is wrong."""
    if ":" in config.name and not _is_defense(config.name):
        return FlowerMod(config.name, config.options)
    defense = DEFENSES.find(config.name)
    check_known(f"defense {config.name!r}", config.options, [option.name for option in fields(defense)])
    made = made_with(defense, f"defense {config.name!r}", config.options)
    if not isinstance(made.server_half(), ServerHalf):
        raise InputError(f"{hook_of(made, 'server_half')} has to return a ServerHalf")
    return made


def _is_defense(path: str) -> bool:
    """Return whether an import path leads to a defense, and not to a Flower mod, which is loaded where it runs."""
    if path in DEFENSES:
        return True
    try:
        require_allowed(path)
    except InputError:
        return False
    return DEFENSES.accept(load_object(path, "defense")) is not None


@dataclass(frozen=True)
class ChainedDefense(TrainingHook):
    """A defense of a chain in its context, as a hook of local training."""

    defense: Defense
    context: DefenseContext

    def instrument(self, loop: TrainingLoop, count: int) -> TrainingLoop:
        return self.defense.instrument(loop, count, self.context)

    def local_step(self, batch: Batch, generator: torch.Generator) -> Batch:
        return self.defense.local_step(batch, generator)

    def checked(self, hook: str, made: Any, wanted: str, fits: Callable[[Any], bool]) -> tuple[Any, Metrics]:
        """Return what a hook has returned, with metrics; InputError names its file and line if it is no such pair."""
        with contextlib.suppress(TypeError, ValueError, LookupError, AttributeError):
            result, metrics = made
            if isinstance(metrics, dict) and fits(result):
                return result, metrics
        raise InputError(f"{hook_of(self.defense, hook)} has to return ({wanted}, metrics)")

    def protect(self, received: State, state: State, run_mod: RunMod | None) -> tuple[State, Metrics]:
        """Return (the state to send instead of `state`, metrics). A defense acts on parameters. A statistic of
        BatchNorm is sent as it is, or as it was received if the defense withholds it."""
        kept = {name: received[name] for name in self.defense.withheld_statistics(self.context)}
        mod = self.defense.flower_mod()
        if mod is not None:
            if run_mod is None:
                raise InputError(
                    f"defense {self.defense.name!r} is a Flower mod: it needs Flower's ClientApp to run in"
                )
            parameters = {name: state[name] for name, _ in self.context.model.named_parameters()}
            return {**state, **run_mod(mod, self.defense.name, parameters)}, {}
        trained = trained_names(self.context.model)
        delta = {name: state[name] - received[name] for name in trained}
        made = self.defense.protect_update(delta, self.context)

        def fits(one: Any) -> bool:
            return all(one[name].shape == delta[name].shape for name in trained)

        protected, reported = self.checked("protect_update", made, "tensors of the names and shapes in delta", fits)
        unchanged = all(protected[name] is delta[name] for name in trained)  # no rounding where nothing was done
        sent = {} if unchanged else {name: received[name] + protected[name] for name in trained}
        return {**state, **sent, **kept}, reported


@dataclass(frozen=True)
class DefenseChain:
    """The defenses of one client in one round, in the order in which they apply."""

    links: tuple[ChainedDefense, ...]

    @classmethod
    def of(
        cls, config: ClientConfig, round: int, client: int, model: nn.Module, memory: dict[str, dict[str, Any]]
    ) -> "DefenseChain":
        """model: at the parameters received. memory: of each defense between rounds, by its label."""
        received = {name: value.detach().clone() for name, value in model.state_dict().items()}
        contexts = [
            DefenseContext(config, round, client, model, memory.setdefault(entry.label, {}), received)
            for entry in config.defenses
        ]
        return cls(tuple(map(ChainedDefense, map(build_defense, config.defenses), contexts)))

    def prepare(self, data: TrainingSet) -> tuple[TrainingSet, Metrics]:
        """Return (the data to train on, metrics); raise InputError if a defense cannot run."""
        metrics: Metrics = {}
        for link in self.links:
            link.defense.check(link.context)
            made = link.defense.prepare_data(data, link.context)
            data, reported = link.checked(
                "prepare_data", made, "a TrainingSet", lambda one: isinstance(one, TrainingSet)
            )
            metrics |= reported
        return data, metrics

    def protect(self, received: State, state: State, run_mod: RunMod | None) -> tuple[State, Metrics]:
        """Return (the state to send instead of `state`, metrics)."""
        metrics: Metrics = {}
        for link in self.links:
            state, reported = link.protect(received, state, run_mod)
            metrics |= reported
        return state, metrics

    def bytes_sent(self, state: State) -> int:
        """Return the bytes of the update as it travels."""
        encoding = Encoding()
        for link in self.links:
            encoding = link.defense.encode(encoding, link.context)
            if not isinstance(encoding, Encoding):
                raise InputError(f"{hook_of(link.defense, 'encode')} has to return an Encoding")
        return encoding.bytes(sum(value.numel() for value in state.values() if value.is_floating_point()))

    def privacy_spent(self, steps: int, count: int) -> tuple[Guarantee, ...]:
        """Return the guarantees after so many optimizer steps of this round on `count` images, each under its label."""
        spent = [link.defense.privacy_spent(link.context, steps, count) for link in self.links]
        labels = [entry.label for entry in self.links[0].context.config.defenses] if self.links else []
        return tuple(replace(one, mechanism=label) for one, label in zip(spent, labels, strict=True) if one)


def invariances(chain: Iterable[Defense]) -> tuple[Transformation, ...]:
    """Return all transformations that an image may go through before a step; empty if steps see images as they are."""
    views: tuple[Transformation, ...] = ()
    for defense in chain:
        own = defense.invariances()
        views = tuple(partial(_both, first, then) for first in views for then in own) if views and own else views or own
    return views


def _both(first: Transformation, then: Transformation, images: Tensor) -> Tensor:
    return then(first(images))
