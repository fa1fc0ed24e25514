"""Peak memory of Algorithm 2 (Loo et al. 2024, app. B): O(parameters + batch), however many candidates there are."""

import resource
import subprocess
import sys
from pathlib import Path

import torch

from attacks.ntk.objective import backward_in_batches, make_objective
from tests.benchmarks.iteration import BETA, SHAPE, candidates, mlp

CANDIDATES, BATCH = (100, 1_000, 10_000), 100
STATUS = Path("/proc/self/status")


def print_table() -> None:
    """One process per number: a peak never falls."""
    print("Peak memory of one gradient, 784-1024-1024-1")
    print(f"     M  Algorithm 2, {BATCH} at a time      all at once")
    for count in CANDIDATES:
        command = [sys.executable, "-m", "tests.benchmarks.memory", str(count)]
        batched, at_once = (float(subprocess.check_output([*command, str(b)])) for b in (BATCH, count))
        print(f"{count:6} {batched:22.0f} MiB {at_once:12.0f} MiB")
    print()


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
    if STATUS.exists():  # on Linux, rusage hands the peak of the parent down to its children
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(peak_growth(int(sys.argv[1]), int(sys.argv[2]), found))
