"""How fast the NTK attack iterates here: `python -m attacks.bench`. Needs no data set and takes about a minute.

Compares the closed form of a plain MLP's loss with double backward, both with their gradients in images and duals, on
the update of a client that trained on N images until it had fitted them; and measures the memory of Algorithm 2.
"""

import itertools
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attacks.objective import Objective, backward_in_batches, make_objective
from attacks.observation import State

SHAPE = (1, 28, 28)
SIZES = [(20, 40, 1024), (20, 40, 256), (100, 200, 1024)]  # private images, candidates, width of both hidden layers
MEMORY_CANDIDATES, MEMORY_BATCH = (400, 1600, 6400), 100
TURNS, BETA = 8, 20.0


def blobs(count: int, generator: torch.Generator) -> Tensor:
    """Smooth random images (count, 1, 28, 28): three Gaussian spots each, minus the mean image."""
    grid = torch.linspace(0, 1, SHAPE[1])
    centers = torch.rand((count, 3, 2, 1), generator=generator)
    widths = 0.05 + 0.15 * torch.rand((count, 3, 1, 1), generator=generator)
    profiles = torch.exp(-(((grid - centers) / widths) ** 2))
    images = torch.einsum("ksy,ksx->kyx", profiles[:, :, 0], profiles[:, :, 1])[:, None]
    return images - images.mean(0)


def mlp(width: int, generator: torch.Generator) -> nn.Sequential:
    """784-width-width-1 with ReLU, weights N(0, 1/fan-in) and zero biases."""
    widths = [math.prod(SHAPE), width, width, 1]
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in itertools.pairwise(widths):
        linear = nn.Linear(fan_in, fan_out)
        with torch.no_grad():
            linear.weight.copy_(torch.randn((fan_out, fan_in), generator=generator) / fan_in**0.5)
            linear.bias.zero_()
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def trained_update(
    width: int, count: int, device: torch.device, generator: torch.Generator
) -> tuple[nn.Module, State, State]:
    """(model, Δθ, final state) of 200 full-batch steps on `count` images: mean squared error on ±1, momentum 0.9."""
    model, images = mlp(width, generator).to(device), blobs(count, generator).to(device)
    targets = (torch.randint(0, 2, (count, 1), generator=generator) * 2.0 - 1).to(device)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(200):
        optimizer.zero_grad()
        ((model(images) - targets) ** 2).mean().div(2).backward()
        optimizer.step()
    final = {name: value.clone() for name, value in model.state_dict().items()}
    return model, {name: (final[name].double() - initial[name].double()).float() for name in initial}, final


def candidates(count: int, device: torch.device, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    images = torch.randn((count, *SHAPE), generator=generator) * 0.2
    duals = (torch.rand((1, count, 1), generator=generator) - 0.5) * 0.1
    return images.to(device).requires_grad_(), duals.to(device).requires_grad_()


def timed(actions: list[Callable[[], object]], device: torch.device) -> list[float]:
    """Median seconds of each action: five runs in a row, as in an attack, then the next one's turn, so that a busy
    machine slows all alike."""
    seconds: list[list[float]] = [[] for _ in actions]
    for turn in range(TURNS + 1):
        for action, taken in zip(actions, seconds, strict=True):
            for _ in range(5):
                start = time.perf_counter()
                action()
                if device.type == "cuda":
                    torch.cuda.synchronize()
                if turn > 0:  # the first turn warms up
                    taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in seconds]


def iteration(objective: Objective, images: Tensor, duals: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(objective.loss(images, duals, BETA), (images, duals))


def time_table(device: torch.device) -> None:
    """Both forms and the ceiling in turns. Their share of it counts the large products that each cannot do without:
    with the weights, and for double backward also those that form DᵀA and differentiate it."""
    square = torch.randn((1024, 1024), device=device)

    def four_products() -> None:  # twenty a turn
        for _ in range(4):
            square @ square

    print("  N    M  network          closed form    share  double backward    share   ratio          ceiling")
    for num_private, num_candidates, width in SIZES:
        generator = torch.Generator().manual_seed(num_private + width)
        model, delta, final = trained_update(width, num_private, device, generator)
        images, duals = candidates(num_candidates, device, generator)
        pair = [make_objective(model, SHAPE, delta, [final], double) for double in (False, True)]
        actions = [*(iteration(objective, images, duals) for objective in pair), four_products]
        closed, double, products = timed(actions, device)
        ceiling = 4 * 2 * 1024**3 / products
        first, second = (2 * num_candidates * width * fan_in for fan_in in (math.prod(SHAPE), width))
        shares = (2 * first + 4 * second) / closed / ceiling, (5 * first + 7 * second) / double / ceiling
        print(
            f"{num_private:3} {num_candidates:4}  {f'784-{width}-{width}-1':16}"
            f"{closed * 1e3:9.2f} ms {shares[0]:8.0%} {double * 1e3:13.2f} ms {shares[1]:8.0%} {double / closed:7.2f}"
            f"  {ceiling / 1e9:6.0f} GFLOP/s"
        )


def peak_growth(num_candidates: int, batch: int, device: torch.device) -> float:
    """MiB that one gradient of the loss adds to this process's peak (on CUDA: to the allocated memory)."""
    generator = torch.Generator().manual_seed(0)
    model = mlp(1024, generator).to(device)
    state = {name: value.detach() for name, value in model.state_dict().items()}
    objective = make_objective(model, SHAPE, {name: value * 0.01 for name, value in state.items()}, [state])
    images, duals = candidates(num_candidates, device, generator)
    backward_in_batches(objective, *candidates(2, device, generator), BETA, 1)  # loads the libraries
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = peak(device)
    backward_in_batches(objective, images, duals, BETA, batch)
    return (peak(device) - before) / 2**20


def peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def memory_table() -> None:
    """One process per number: a peak never falls. To be run before this one grows, as a child inherits its peak."""
    print("peak memory of one gradient, 784-1024-1024-1")
    print(f"     M  Algorithm 2, {MEMORY_BATCH} at a time  all at once")
    for count in MEMORY_CANDIDATES:
        command = [sys.executable, "-m", "attacks.bench", str(count)]
        batched, at_once = (float(subprocess.check_output([*command, str(b)])) for b in (MEMORY_BATCH, count))
        print(f"{count:6} {batched:22.0f} MiB {at_once:8.0f} MiB")


def main() -> None:
    torch.set_num_threads(1)  # ratios on one core repeat; on all cores they depend on who else computes
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if len(sys.argv) == 3:
        print(peak_growth(int(sys.argv[1]), int(sys.argv[2]), device))
        return
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU, one thread"
    print(f"device: {name}; torch {torch.__version__}; float32; medians of {5 * TURNS} runs in turns")
    memory_table()
    print()
    time_table(device)


if __name__ == "__main__":
    main()
