"""The empirical NTK of an MLP, against one gradient per image and their products, as one matrix product."""

import torch
from torch import Tensor, nn

from attacks.kernel.empirical import empirical_ntk
from simulator.paper.gradient_memory import relu_mlp
from tests.benchmarks.iteration import blobs
from tests.benchmarks.timing import timed

IMAGES, WIDTH = 200, 1024
TURNS = 3


def by_gradients(model: nn.Module, images: Tensor) -> Tensor:
    """K(x, x') = ⟨∇f(x), ∇f(x')⟩ of a model with one output as the definition says, (N, N)."""
    parameters = list(model.parameters())
    gradients = images.new_empty((len(images), sum(parameter.numel() for parameter in parameters)))
    for row, image in zip(gradients, images, strict=True):
        found = torch.autograd.grad(model(image[None]).sum(), parameters)
        row.copy_(torch.cat([gradient.flatten() for gradient in found]))
    return gradients @ gradients.T


def problem(images: int, width: int, device: torch.device, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    generator = torch.Generator().manual_seed(0)
    model = relu_mlp(width, generator).to(device, dtype)
    return model, blobs(images, generator).to(device, dtype)


def print_kernel(device: torch.device) -> None:
    model, images = problem(IMAGES, WIDTH, device, torch.float32)
    ours, naive = timed(
        [lambda: empirical_ntk(model, model.state_dict(), images), lambda: by_gradients(model, images)],
        device,
        turns=TURNS,
        runs=1,
    )
    print(f"empirical NTK of {IMAGES} images, 784-{WIDTH}-{WIDTH}-1 (medians of {TURNS} runs)")
    print(f"{'factored':>12} {'gradients':>12} {'ratio':>7}")
    print(f"{1e3 * ours:>9.1f} ms {1e3 * naive:>9.0f} ms {naive / ours:>7.0f}\n")
