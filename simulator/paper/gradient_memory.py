"""Peak memory of one gradient of the reconstruction loss: `python -m simulator.paper.gradient_memory CANDIDATES BATCH`.

The minibatches of Loo et al. 2024, appendix B (Algorithm 2), need O(parameters + batch), however many candidates there
are. A process's peak never falls, so every figure wants a process of its own.
"""

import math
import resource
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from attacks.ntk.objective import backward_in_batches, make_objective

SHAPE = (1, 28, 28)
WIDTH = 1024
BETA = 20.0  # inverse temperature of the softplus that stands in for ReLU
STATUS = Path("/proc/self/status")


def relu_mlp(width: int, generator: torch.Generator) -> nn.Sequential:
    """Make a 784-width-width-1 network with ReLU, weights N(0, 1/fan-in) and zero biases."""
    linears = [nn.Linear(math.prod(SHAPE), width), nn.Linear(width, width), nn.Linear(width, 1)]
    for linear in linears:
        linear.weight.data = torch.randn(linear.weight.shape, generator=generator) / linear.in_features**0.5
        nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.Flatten(), linears[0], nn.ReLU(), linears[1], nn.ReLU(), linears[2])


def random_candidates(count: int, device: torch.device, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw leaves that require gradients: images (count, 1, 28, 28) of deviation 0.2, and duals (1, count, 1)."""
    images = torch.randn((count, *SHAPE), generator=generator) * 0.2
    duals = (torch.rand((1, count, 1), generator=generator) - 0.5) * 0.1
    return images.to(device).requires_grad_(), duals.to(device).requires_grad_()


def peak_in_new_process(num_candidates: int, batch: int) -> float:
    """Return the MiB that one gradient adds to the peak of a process that has done nothing else."""
    command = [sys.executable, "-m", "simulator.paper.gradient_memory", str(num_candidates), str(batch)]
    return float(subprocess.check_output(command))


def peak_growth(num_candidates: int, batch: int, device: torch.device) -> float:
    """Return the MiB that one gradient of the loss adds to this process's peak (on CUDA: to the allocated memory)."""
    generator = torch.Generator().manual_seed(0)
    model = relu_mlp(WIDTH, generator).to(device)
    state = model.state_dict()
    objective = make_objective(model, SHAPE, {name: value * 0.01 for name, value in state.items()}, [state])
    images, duals = random_candidates(num_candidates, device, generator)
    backward_in_batches(objective, *random_candidates(2, device, generator), BETA, 1)  # loads the libraries
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = peak_bytes(device)
    backward_in_batches(objective, images, duals, BETA, batch)
    return (peak_bytes(device) - before) / 2**20


def peak_bytes(device: torch.device) -> int:
    """Return the most memory that this process ever held; on CUDA, that was allocated since the last reset."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    if STATUS.exists():  # on Linux, rusage hands the peak of the parent down to its children
        line = next(line for line in STATUS.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(peak_growth(int(sys.argv[1]), int(sys.argv[2]), found))
