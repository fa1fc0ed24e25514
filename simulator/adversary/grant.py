"""Grant the adversary what a scenario grants: the only door by which truth about a client reaches an attack."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks import InputError, Knowledge
from clients.data.partition import FederatedData
from clients.defenses.base import ObservedUpdate
from clients.training import make_optimizer, planned_steps
from simulator.results.storage import make_knowledge
from simulator.results.threat_models import CheckpointSource, View
from simulator.scenario.scenario import Cell, Scenario


def defense_facts(cell: Cell, data: FederatedData, view: View, clients: Sequence[int]) -> dict[str, Any]:
    """Return the facts on the defenses for an adaptive attacker on the updates of `clients`, as `view` shows them."""
    scenario = cell.scenario
    if view.source is CheckpointSource.GLOBAL and not scenario.federation.strategy.plain_mean:
        return scenario.defense_facts()  # the noise behind a server optimizer is unknown
    asks = any(attack.adaptive for attack in scenario.adversary.attacks)
    if not asks and "noise_std" not in scenario.adversary.knowledge:
        return scenario.defense_facts()  # the search for the noise of a target ε takes seconds
    sizes = tuple(data.client_sizes[client] for client in clients)
    shares = tuple(size / sum(sizes) for size in sizes)
    if view.source is CheckpointSource.GLOBAL and scenario.poisson:
        shares = (1 / (scenario.federation.clients * scenario.federation.fraction),) * len(sizes)
    return scenario.defense_facts(ObservedUpdate(cell.client_config(use_gpu=False), view.adversary, sizes, shares))


def grant(scenario: Scenario, data: FederatedData, clients: Sequence[int], facts: dict[str, Any]) -> Knowledge:
    """Return the knowledge about the private set of `clients` together. A field set to true has its true value; any
    other value is the adversary's belief, right or wrong. facts: on the defenses, as of `defense_facts`."""
    wanted = scenario.adversary.knowledge
    truth = _truth(scenario, data, clients, set(wanted)) | facts
    if wanted.get("batches") is True:
        raise InputError("adversary.knowledge.batches is true: every round has its own order; give lists of indices")
    for name in (name for name, value in wanted.items() if value is True and name not in truth):
        raise InputError(
            f"adversary.knowledge.{name} is true: the defense in force, {scenario.defense!r}, has none to tell; "
            "give the value that the adversary believes"
        )
    believed = {name: truth[name] if value is True else value for name, value in wanted.items()}
    images = believed.pop("public_images", None)
    if images is not None and not isinstance(images, Tensor):
        raise InputError(f"adversary.knowledge.public_images is {images!r}: true grants the public pool")
    knowledge = make_knowledge({k: v for k, v in believed.items() if v is not False and v is not None})
    return replace(knowledge, public_images=images)


def _truth(scenario: Scenario, data: FederatedData, clients: Sequence[int], wanted: set[str]) -> dict[str, Any]:
    """Read the true values of the wanted fields, and of no others."""
    training = scenario.training
    sizes = [data.client_sizes[client] for client in clients]
    readers: dict[str, Callable[[], Any]] = {
        "num_private": lambda: sum(sizes),
        "labels": lambda: torch.cat([data.client(client)[1] for client in clients]).tolist(),
        "pixel_mean": lambda: list(data.normalization.mean),
        "pixel_std": lambda: list(data.normalization.std) or None,  # None where nothing is divided
        "public_images": lambda: data.normalization.inputs(data.public()[0]),
        "pixel_range": lambda: (0.0, 1.0),
        "learning_rate": lambda: training.learning_rate,
        "steps": lambda: max(planned_steps(training, size) for size in sizes),
        "batch_size": lambda: min(training.batch_size or max(sizes), max(sizes)),
        "optimizer": lambda: training.optimizer,
        "momentum": lambda: training.momentum,
        "betas": lambda: make_optimizer([nn.Parameter(torch.zeros(1))], training).defaults.get("betas"),
        "weight_decay": lambda: training.weight_decay,
    }
    return {name: read() for name, read in readers.items() if name in wanted}
