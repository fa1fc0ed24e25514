"""Clipping norm and learning rate of the rows of a benchmark with differential privacy, on its public images alone:

    python -m tests.benchmarks.tune_dp scenarios/equal_utility.yaml quick [dp_sgd=100.0 …]

The public pool is split into held-out images, a fifth of it, and clients as large, and as balanced, as those of the
file. On every pair of values a federation is trained on it, with the file's network, rounds and clients a round,
without attacks and without Flower; the accuracy on the held-out images, a mean over seeds, is what is chosen by. No
private and no test image is read. Where the pool makes fewer clients than the federation asks in a round, all of them
take part, and the noise of `central_dp` is that of as many as are asked.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from attacks.interface.observation import State
from clients.config import ClientConfig
from clients.data.partition import FederatedData, alternating, split_data
from clients.defenses.base import clipped
from clients.defenses.differential_privacy.whole_update import LocalDP
from clients.local_update import local_update, make_model
from simulator.scenario.benchmark import load_benchmark
from simulator.scenario.scenario import Cell

NORMS = {"dp_sgd": "max_grad_norm", "central_dp": "clipping_norm", "local_dp": "clipping_norm"}
BOUNDS, RATES = (0.1, 0.3, 1.0, 3.0), (0.03, 0.1, 0.3, 1.0)
HELD_OUT = 0.2
SEEDS = range(2)


def public_federation(cell: Cell, seed: int) -> FederatedData:
    """The public pool as a federation: `test_indices` count its held-out images in the train split."""
    scenario = cell.scenario
    data = split_data(scenario.data, scenario.partition, scenario.federation.clients, scenario.seed)
    order = np.random.default_rng(seed).permutation(data.public_indices)
    held_out, rest = np.split(order, [int(HELD_OUT * len(order))])
    if scenario.partition.kind == "balanced":
        rest = alternating(rest, data.task.apply(data.dataset.train.labels[rest]), data.task)
    size = max(data.client_sizes)
    shares = tuple(rest[i : i + size] for i in range(0, len(rest) - size + 1, size))
    return replace(data, shares=shares, test_indices=held_out)


def accuracy(cell: Cell, bound: float, rate: float, seed: int) -> float:
    """On held-out public images, after all rounds of a federation of public images."""
    scenario, public = cell.scenario, public_federation(cell, seed)
    (defense,) = scenario.defenses
    options = {**defense.options, NORMS[defense.name]: bound}
    training = scenario.training.model_copy(update={"learning_rate": rate})
    config = cell.client_config(use_gpu=False).model_copy(
        update={"seed": seed, "training": training, "defenses": [defense.model_copy(update={"options": options})]}
    )
    asked = scenario.federation.clients_a_round
    model, memories = make_model(config, public), [{} for _ in public.shares]
    draws, noise = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for round in range(1, scenario.federation.rounds + 1):
        many = min(asked, len(public.shares))
        chosen = draws.choice(len(public.shares), many, replace=False)
        deltas = [protected(config, state, round, int(one), public, memories, noise) for one in chosen]
        added = {name: torch.stack([delta[name] for delta in deltas]).mean(0) for name in state}
        if defense.name == "central_dp":
            added = with_noise(added, float(options.get("noise_multiplier", 1.0)) * bound / asked, noise)
        state = {name: value + added[name] for name, value in state.items()}
    model.load_state_dict(state)
    labels = torch.from_numpy(public.task.apply(public.dataset.train.labels[public.test_indices]))
    with torch.no_grad():
        outputs = model(public.normalization.inputs(public.dataset.train.images(public.test_indices)))
    return float((outputs.argmax(1) == labels).double().mean())


def protected(
    config: ClientConfig,
    state: State,
    round: int,
    client: int,
    public: FederatedData,
    memories: list[dict],
    noise: torch.Generator,
) -> State:
    """What the mean of a round is taken over: the client's Δθ, clipped and noised where the defense has it so."""
    (defense,) = config.defenses
    mechanism = LocalDP(**defense.options) if defense.name == "local_dp" else None
    own = config.model_copy(update={"defenses": []}) if defense.name != "dp_sgd" else config
    sent = local_update(own, state, round, client, data=public, memory=memories[client]).state
    delta = {name: sent[name] - state[name] for name in state}
    if defense.name == "dp_sgd":
        return delta
    delta = clipped(delta, float(defense.options[NORMS[defense.name]]))[0]
    return delta if mechanism is None else with_noise(delta, mechanism.noise_std, noise)


def with_noise(state: State, deviation: float, generator: torch.Generator) -> State:
    return {name: value + deviation * torch.randn(value.shape, generator=generator) for name, value in state.items()}


def main(file: str, profile: str, *rows: str) -> None:
    """file, profile: the benchmark. rows: of it, by their names in its tables, default all with such a defense."""
    torch.set_num_threads(1)
    cells = {cell.scenario.defense: cell for cell in load_benchmark(Path(file), profile).cells()}
    for row, cell in cells.items():
        chain = cell.scenario.defenses
        if len(chain) != 1 or chain[0].name not in NORMS or (rows and row not in rows):
            continue
        found: dict[tuple[float, float], float] = {}
        for bound in BOUNDS:
            for rate in RATES:
                found[bound, rate] = float(np.mean([accuracy(cell, bound, rate, seed) for seed in SEEDS]))
            print(
                f"{row}: {NORMS[chain[0].name]} {bound:g}:", {r: round(found[bound, r], 3) for r in RATES}, flush=True
            )
        bound, rate = max(found, key=found.__getitem__)
        print(f"{row}: {NORMS[chain[0].name]} {bound:g}, learning_rate {rate:g}: {found[bound, rate]:.3f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
