"""Estimate what a plan would do and cost, measured on this machine in a few seconds."""

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from attacks import Knowledge, Observation
from attacks.interface.errors import counted
from clients.batch_norm import training_mode
from clients.config import ModelConfig, TrainingConfig
from clients.local_update import load_data, load_targets, make_model
from clients.training import linearize, planned_steps, training_loss
from simulator.adversary.grant import defense_facts, grant
from simulator.evaluation.attack_run import (
    LONGEST_PROBE,
    SCORE,
    AttackRun,
    clock,
    iterations_of,
    mean_seconds,
    or_more,
    work_seconds,
)
from simulator.results.threat_models import View
from simulator.run.plan import AHEAD, RunPlan, expected_attacks, expected_views
from simulator.run.pretraining import Pretraining
from simulator.scenario.scenario import Cell
from simulator.scenario.sections import AttackConfig

PROBE_STEPS = 4  # of training; fewer if they take longer than LONG_STEPS
PROBE_IMAGES = 128  # of a step; the time of a larger step is extrapolated
LONG_STEPS = 2.0  # seconds
STARTUP = 35.0  # processor seconds that Flower, Ray and their workers take to come up
COST = "cost:"  # how the line of a plan with its price begins
LESS = 8  # of an attack's iterations: the part whose price is named beside the whole
DEAR = 600.0  # processor seconds of one attack, from which on it is named
# Processor seconds beside training and attacks, (fixed, for each network parameter): measured by
# tests.benchmarks.scale on networks of 200 to 2.6 million (docs/records/scale.md).
REPLY = (0.08, 1.1e-7)  # sent, returned, read, written down and averaged
DIAGNOSTICS = (0.05, 4.5e-7)  # how linear the network was: on top of a score


def describe_plan(plan: RunPlan) -> Iterator[str]:
    """Describe in a few lines what would run, and then, measured for some seconds, what it costs."""
    scenario = plan.cells[0].scenario
    data = load_data(plan.cells[0].client_config(use_gpu=False))
    sizes = [load_data(cell.client_config(use_gpu=False)).client_sizes for cell in plan.cells]  # few splits stay cached
    parameters = plan.parameters
    attacks = sum(map(expected_attacks, plan.cells))
    federation, adversary = scenario.federation, scenario.adversary
    told = [name for name, value in adversary.knowledge.items() if value is not None and value is not False]
    if not scenario.data.std and "pixel_std" in told:  # nothing is divided
        told.remove("pixel_std")
    images = span(size for cell in sizes for size in cell)
    chains = [*dict.fromkeys(cell.scenario.defense for cell in plan.cells)]
    kept, waiting = kept_bytes(plan.cells, parameters), waiting_bytes(plan.cells, parameters)
    yield from (
        f"{scenario.name}: {counted(len(plan.cells), 'setting')}, {counted(federation.rounds, 'round')}, "
        f"{federation.clients} clients with {images} images each, {federation.strategy.name}",
        f"data:    {scenario.data.name} {data.shape}, "
        f"{len(data.public_indices)} public and {len(data.test_indices)} test images",
        f"model:   {scenario.model.name}, {span(parameters)} trained parameters{start_of(scenario.model)}",
        *([f"defense: {', '.join(chains)}"] if chains != ["none"] else []),
        f"attacks: {attacks} ({', '.join(a.label for a in adversary.attacks)}; {', '.join(adversary.threat_models)}; "
        f"told {', '.join(told) or 'nothing'})",
        f"output:  {plan.run_dir}",
        f"disk:    about {size_of(kept)} of checkpoints"
        f"{f', up to {size_of(kept + waiting)} while it runs' if waiting else ''}",
    )
    yield from price_of(plan, sizes)


def price_of(plan: RunPlan, sizes: Sequence[Sequence[int]]) -> list[str]:
    """Return the lines on the cost, measured on one of the cells. sizes: images of the clients of each cell."""
    scenario, parameters, pretraining = plan.cells[0].scenario, plan.parameters, estimate_pretraining(plan)
    # a step of training, or of an attack, costs about its images times its parameters
    work = [
        sum(images) * trained * max(expected_attacks(cell), 1)
        for cell, images, trained in zip(plan.cells, sizes, parameters, strict=True)
    ]
    typical = sorted(range(len(work)), key=work.__getitem__)[(len(work) - 1) // 2]
    (training, attacks, longer), scale = estimate(plan.cells[typical]), sum(work) / work[typical]
    training *= scale
    by_attack = {label: seconds * scale for label, seconds in attacks.items()}
    attacking = sum(by_attack.values())
    handling = sum(map(handling_seconds, plan.cells, parameters))
    whole, cores = STARTUP + pretraining + training + attacking + handling, os.cpu_count() or 1
    elapsed = STARTUP / 2 + pretraining + (training + handling) / cores
    elapsed += attacking / (scenario.engine.attack_workers or cores)
    most = dearest(scenario.attacks, by_attack)
    return [
        f"{COST}    about {clock(whole)} of processor time, {clock(elapsed)} on {cores} idle cores "
        f"(start {clock(STARTUP)}, {f'pretraining {clock(pretraining)}, ' if pretraining else ''}"
        f"training {clock(training)}, attacks {clock(attacking)}, messages and scores {clock(handling)} of it), "
        f"if none stops early"
        f"{or_more(', '.join(longer), scenario.adversary.timeout) if longer else ''}",
        *([f"most:    {most}"] if most else []),
    ]


def dearest(attacks: Sequence[AttackConfig], seconds: Mapping[str, float]) -> str:
    """Name the attack that takes most of a run beyond DEAR, what makes it slow, and the price of less; "" for none."""
    label = max(seconds, key=lambda name: seconds[name], default="")
    taken, attack = seconds.get(label, 0.0), next((one for one in attacks if one.label == label), None)
    iterations = None if attack is None else iterations_of(attack)
    if attack is None or iterations is None or taken < max(DEAR, sum(seconds.values()) / 2):
        return ""
    default = "" if "iterations" in attack.options else ", which is its default"
    less = f"{{name: {attack.name}, iterations: {max(iterations // LESS, 1)}}}"
    return (
        f"{label} takes {clock(taken)}, by {iterations:,} iterations{default}; {less} takes about {clock(taken / LESS)}"
    )


def handling_seconds(cell: Cell, parameters: int) -> float:
    """Return the processor seconds of replies and scores, whatever is trained and attacked."""
    scenario = cell.scenario
    replies = scenario.federation.rounds * scenario.federation.clients_a_round
    units = [(replies, REPLY), (expected_attacks(cell), SCORE)]
    units += [(expected_attacks(cell), DIAGNOSTICS)] if scenario.output.diagnostics else []
    return sum(count * (each + parameters * of_one) for count, (each, of_one) in units)


def kept_bytes(cells: Sequence[Cell], parameters: Sequence[int]) -> int:
    """Return the bytes of checkpoints that the cells leave, if no client fails. parameters: of each cell's network."""
    files = 0
    for cell, count in zip(cells, parameters, strict=True):
        scenario = cell.scenario
        kept = [scenario.leaves(round) for round in range(scenario.federation.rounds + 2)]
        replies, globals_ = sum(kept[1:-1]), sum(a or b for a, b in itertools.pairwise(kept))
        files += (scenario.replies_a_round * replies + globals_) * count
    return files * 4  # float32


def waiting_bytes(cells: Sequence[Cell], parameters: Sequence[int]) -> int:
    """Return the most bytes of checkpoints that wait for their attacks before `output.keep: {last: K}` removes them,
    with those of the current round."""
    rounds = [max(0, cell.scenario.federation.rounds - (cell.scenario.kept_rounds or math.inf)) for cell in cells]
    return max(
        int(min(AHEAD + 1, removed)) * (cell.scenario.replies_a_round + 1) * count * 4
        for cell, removed, count in zip(cells, rounds, parameters, strict=True)
    )


def size_of(count: int) -> str:
    """Return bytes for people: 3 MB, 1.2 GB."""
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def span(values: Iterable[int]) -> str:
    """Return "8", or "5 to 1,024"."""
    low, high = min(found := list(values)), max(found)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def estimate(cell: Cell) -> tuple[float, dict[str, float], list[str]]:
    """Return the processor seconds of one cell: of training, and of each attack by label, and the labels of those that
    take too long to be measured, which count as LONGEST_PROBE.

    Training is measured by a few steps of one client, an attack on an update of as many images as its adversary sees:
    by a few iterations if it has such an option, else by running it.
    """
    torch.set_num_threads(cell.scenario.engine.threads)
    config, federation = cell.client_config(use_gpu=False), cell.scenario.federation
    data = load_data(config)
    images, labels = data.client(0)
    inputs, targets = data.normalization.inputs(images), load_targets(config, data.task, labels)
    batch = config.training.batch_size
    step_seconds = step_on(make_model(config, data), inputs[:batch], targets[:batch], config.training)
    steps = sum(planned_steps(config.training, size) for size in data.client_sizes) * federation.fraction

    found: dict[str, float] = {}
    measured: dict[tuple[int, str], float | None] = {}
    for view, _, pairs in expected_views(cell):
        single = [[client] for client, size in enumerate(data.client_sizes) if size]
        groups: Sequence[Sequence[int]] = single if view.shows(0) else [range(federation.clients_a_round)]
        sizes = [sum(data.client_sizes[client] for client in group) for group in groups]
        for attack in cell.scenario.attacks_by(view.adversary):
            kind = len(groups[0]), attack.label
            if kind not in measured:
                run = AttackRun.of(attack, cell.scenario)
                measured[kind] = mean_seconds(run, groups, sizes, partial(seen_of, cell, view))
            one = measured[kind]
            # a pair more costs an attack about as much as the first
            seconds = (LONGEST_PROBE if one is None else one) * pairs
            found[attack.label] = found.get(attack.label, 0.0) + seconds
    longer = dict.fromkeys(label for (_, label), seconds in measured.items() if seconds is None)
    return steps * federation.rounds * step_seconds, found, list(longer)


def seen_of(cell: Cell, view: View, clients: Sequence[int]) -> tuple[Observation, Knowledge]:
    """Return an update of a few steps on all images of these clients, and the knowledge of its adversary."""
    config = cell.client_config(use_gpu=False)
    data = load_data(config)
    model = make_model(config, data)
    images, labels = (torch.cat(parts) for parts in zip(*map(data.client, clients), strict=True))
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    step_on(model, data.normalization.inputs(images), load_targets(config, data.task, labels), config.training)
    observation = Observation(model, ((initial, dict(model.state_dict())),), data.shape, 1, 0)
    knowledge = grant(cell.scenario, data, clients, defense_facts(cell, data, view, clients))
    return observation, replace(knowledge, num_private=knowledge.num_private or len(images))


def step_on(model: nn.Module, inputs: Tensor, targets: Tensor, config: TrainingConfig) -> float:
    """Return the seconds of a local step: the fastest of a few plain gradient steps, which change `model`."""
    larger = max(len(inputs) / PROBE_IMAGES, 1)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    inputs, targets = inputs[:PROBE_IMAGES].to(trained[0].dtype), targets[:PROBE_IMAGES]
    taken = []
    with training_mode(model, config.batch_norm):
        predict = linearize(model) if config.dynamics == "linearized" else model
        for _ in range(PROBE_STEPS):
            start = work_seconds()
            loss = training_loss(config.loss, predict(inputs), targets)
            gradient = torch.autograd.grad(loss, trained, allow_unused=True)
            with torch.no_grad():
                for parameter, slope in zip(trained, gradient, strict=True):
                    if slope is not None:
                        parameter.sub_(slope, alpha=config.learning_rate)
            taken.append(work_seconds() - start)
            if sum(taken) > LONG_STEPS:
                break
    return larger * min(taken)


def estimate_pretraining(plan: RunPlan) -> float:
    """Return the seconds of pretraining, once for each of the weights that the cells start from."""
    cells, seconds = [cell for cell in plan.cells if cell.scenario.model.pretrain is not None], 0.0
    configs = [cell.client_config(use_gpu=False) for cell in cells]
    starts = [Pretraining.of(config, load_data(config)) for config in configs]
    for one in {start.digest: start for start in starts}.values():
        batch = one.training.batch_size
        step = step_on(one.network(), one.images[:batch], one.targets[:batch], one.training)
        seconds += step * planned_steps(one.training, len(one.images))
    return seconds


def start_of(model: ModelConfig) -> str:
    """Say where the initial weights come from."""
    other = model.pretrain.data if model.pretrain is not None else None
    source = "the public pool" if other is None else f"{other.public} images of {other.name}"
    start = "" if model.checkpoint is None else f", from {model.checkpoint}"
    start += "" if model.pretrain is None else f", pretrained on {source}"
    return start + ", head drawn anew" * (model.replace_head or other is not None)
