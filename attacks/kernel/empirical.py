"""Empirical neural tangent kernels, regression with a kernel, and the distance between two kernels."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attacks.interface.devices import cast_state
from attacks.interface.errors import InputError
from attacks.interface.observation import Observation, State
from attacks.networks.jacobian import Factors, Jacobian
from attacks.networks.probing import count_outputs

MOST_IMAGES = 200  # that the drift of a kernel is measured on: its cost is quadratic
MOST_ENTRIES = 2**29  # of their Jacobian, layers aside that need none
CHUNK_BYTES = 256 * 2**20  # of Jacobian factors per chunk of images


def empirical_ntk(model: nn.Module, state: State, images: Tensor, others: Tensor | None = None) -> Tensor:
    """Trace form of the empirical NTK: K(x, x') = Σ_k ⟨∇f_k(x), ∇f_k(x')⟩ over the trained parameters.

    state: parameters to take the gradients at, in the dtype and on the device to compute in. images: (N, C, H, W).
    others: (M, C, H, W), by default the same images. Returns (N, M).
    """
    return _contract(model, state, images, others, Factors.trace)


def empirical_ntk_blocks(model: nn.Module, state: State, images: Tensor, others: Tensor | None = None) -> Tensor:
    """Every pair of outputs: ⟨∇f_k(x), ∇f_k'(x')⟩, (N, K, M, K); arguments as of `empirical_ntk`."""
    return _contract(model, state, images, others, Factors.blocks)


def kernel_duals(kernel: Tensor, targets: Tensor, ridge: float = 0.0) -> Tensor:
    """α = (K + ridge · tr(K)/N · I)⁻¹ y. kernel: (N, N). targets: (N, K). Differentiable; returns (N, K).

    Raises InputError where the kernel is singular to the precision of its dtype.
    """
    level = ridge * kernel.diagonal().mean()
    identity = torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)
    factor, failed = torch.linalg.cholesky_ex(kernel + level * identity)
    if failed:
        raise InputError(f"kernel of {len(kernel)} images is singular at ridge {ridge:g}: raise the ridge")
    return torch.cholesky_solve(targets, factor)


def kernel_regression(kernel: Tensor, targets: Tensor, cross: Tensor, ridge: float = 0.0) -> Tensor:
    """Predictions K_xX (K_XX + ridge · tr/N · I)⁻¹ y. cross: (M, N), kernel of new and training images -> (M, K)."""
    return cross @ kernel_duals(kernel, targets, ridge)


def kernel_distance(first: Tensor, second: Tensor) -> float:
    """1 − ⟨K₁, K₂⟩_F / (‖K₁‖_F ‖K₂‖_F): 0 for kernels equal up to scale (Loo et al. 2024, section 4)."""
    return float(1 - (first * second).sum() / (first.norm() * second.norm()))


def kernel_drift(observation: Observation, images: Tensor) -> float:
    """Kernel distance between both ends of an observation's last update on `images` (N, C, H, W), float64."""
    states = (cast_state(state, images.device, torch.float64) for state in observation.pairs[-1])
    return kernel_distance(*(empirical_ntk(observation.model, state, images.double()) for state in states))


def affordable_images(observation: Observation) -> int:
    """On how many images a drift of the kernel is to be measured: at most 200, 4 of a ResNet-18 with ten classes."""
    model = observation.model
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    entries = sum(model.get_parameter(name).numel() for name in observation.trainable if name not in linear)
    outputs = count_outputs(model, observation.input_shape)
    return max(2, min(MOST_IMAGES, MOST_ENTRIES // max(entries * outputs, 1)))


def _contract(
    model: nn.Module,
    state: State,
    images: Tensor,
    others: Tensor | None,
    contraction: Callable[[Factors, Factors], Tensor],
) -> Tensor:
    """Σ over parameters of `contraction`, a chunk of rows and one of columns at a time."""
    jacobian = Jacobian(model, state)
    size = sum(factors.numel for factors in jacobian(images[:1])) * images.element_size()
    rows = images.split(max(1, CHUNK_BYTES // size))
    columns = rows if others is None else others.split(max(1, CHUNK_BYTES // size))
    grid: list[list[Tensor]] = []
    for i, row in enumerate(rows):
        left = jacobian(row)
        known = i if others is None else 0  # what lies below the diagonal of a symmetric kernel was computed above it
        line = [_transpose(grid[j][i]) for j in range(known)]
        for j in range(known, len(columns)):
            right = left if others is None and j == i else jacobian(columns[j])
            parts = [contraction(*pair) for pair in zip(left, right, strict=True)]
            line.append(torch.stack(parts).sum(0))
        grid.append(line)
    axis = grid[0][0].dim() // 2
    return torch.cat([torch.cat(line, axis) for line in grid])


def _transpose(block: Tensor) -> Tensor:
    """(N, M) -> (M, N), and (N, K, M, K) -> (M, K, N, K)."""
    half = block.dim() // 2
    return block.permute(*range(half, 2 * half), *range(half))
