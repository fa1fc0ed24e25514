"""How cost grows with each size alone: the exponent of time, fitted, beside that of the work that is counted."""

import functools
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from attacks.networks.mlp import ACTIVATIONS
from attacks.ntk.objective import Objective, StackedObjective, make_objective
from attacks.span.search.problems import AffineSpan, SpanProblem, SpanTest
from simulator.paper.gradient_memory import SHAPE, random_candidates, relu_mlp
from simulator.results.storage import CellStore
from tests.benchmarks.iteration import iteration
from tests.benchmarks.maps import exponent
from tests.benchmarks.timing import four_products, timed

Case = tuple[Callable[[], object], float]
"""What is timed, and the multiplications (of the server: bytes) that it cannot do without."""
FEATURES = math.prod(SHAPE)
STARTS = 300


def ntk(device: torch.device, candidates: int = 100, width: int = 512, rounds: int = 1) -> Case:
    """One iteration of the NTK attack on random updates, without Adam."""
    generator = torch.Generator().manual_seed(0)
    model = relu_mlp(width, generator).to(device)
    state = model.state_dict()
    each: list[Objective] = [
        make_objective(model, SHAPE, {name: 0.01 * value for name, value in state.items()}, [state])
        for _ in range(rounds)
    ]
    objective = each[0] if rounds == 1 else StackedObjective(each)
    images, duals = random_candidates(candidates, device, generator)
    duals = duals.detach().repeat(rounds, 1, 1).requires_grad_()
    work = rounds * 2 * candidates * width * (2 * FEATURES + 4 * width)
    return iteration(objective, images, duals), work


def span(device: torch.device, images: int = 50, width: int = 1024) -> Case:
    """One step of the span search at all starts."""
    generator = torch.Generator().manual_seed(0)
    first, rows = (torch.randn((width, FEATURES + 1), generator=generator) for _ in range(2))
    directions = min(4 * images, 2 * width // 5)
    second = torch.linalg.qr(torch.randn((width + 1, directions), generator=generator))[0].T
    test = SpanTest(first.to(device), second[None].to(device).contiguous(), ACTIVATIONS["relu"])
    problem = SpanProblem.of(test, AffineSpan.of(rows[:images].double().to(device), generator))
    points = torch.randn((STARTS, images - 1), generator=generator).to(device)
    work = 2 * STARTS * (width + 1) * (2 * (images - 1) + 2 * directions)
    return functools.partial(problem.value_and_gradient, points), work


def server(folder: Path, clients: int = 10, width: int = 256) -> Case:
    """What the server does with the replies of a round: it writes them down, and averages them."""
    store = CellStore(folder)
    store.checkpoints.mkdir(parents=True, exist_ok=True)
    state = relu_mlp(width, torch.Generator().manual_seed(0)).state_dict()
    metrics = MetricRecord({"num-examples": 1})

    def round() -> None:
        replies = [RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}) for _ in range(clients)]
        for client, reply in enumerate(replies):
            store.save_client(1, client, reply.array_records["arrays"].to_torch_state_dict())
        aggregate_arrayrecords(replies, "num-examples")

    return round, clients * 4 * sum(value.numel() for value in state.values())


GROWTH: dict[str, tuple[str, Sequence[int]]] = {
    "NTK iteration, candidates M": ("candidates", (50, 100, 200, 400)),
    "NTK iteration, width": ("width", (256, 512, 1024)),
    "NTK iteration, rounds": ("rounds", (1, 2, 4, 8)),
    "span step, images N": ("images", (25, 50, 100)),
    "span step, width": ("width", (512, 1024, 2048)),
    "server's round, clients": ("clients", (5, 10, 20, 40)),
    "server's round, width": ("width", (256, 512, 1024)),
}


def print_growth(device: torch.device) -> None:
    """A line for each size. Channels, side and N of feature maps have a table of their own (`maps`)."""
    print("Growth of single steps: time ~ size^p, fitted; in parentheses the exponent of the work that is counted")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        steps = {"NTK": functools.partial(ntk, device), "span": functools.partial(span, device)}
        for title, (name, sizes) in GROWTH.items():
            step = steps.get(title.split()[0], functools.partial(server, Path(folder)))
            actions, work = zip(*(step(**{name: size}) for size in sizes), strict=True)
            *seconds, products = timed([*actions, four_products(device)], device, turns=3, runs=2)
            power = exponent(sizes, np.divide(seconds, products))  # in products, which go up and down with the load
            print(f"{title:28} {' '.join(map(str, sizes)):16} {power:4.1f} ({exponent(sizes, work):.1f})")
    print()
