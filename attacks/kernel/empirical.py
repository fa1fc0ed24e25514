"""Compute empirical neural tangent kernels, regress with them, compare them, and compare a model with its linearization
at the parameters that were sent, f_lin = f_θ₀ + ∇f_θ₀ᵀ (θ − θ₀).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attacks.interface.errors import InputError
from attacks.interface.observation import Observation, State, trained_names
from attacks.interface.torch_tools import cast_state
from attacks.networks.jacobian import Factors, Jacobian
from attacks.networks.probing import (
    count_outputs,
    evaluating,
    most_exact_type,
    parameter_names,
    probe,
    probe_generator,
    run_network,
)

MOST_IMAGES = 200  # on which the drift of a kernel is measured: its cost is quadratic
MOST_ENTRIES = 2**29  # of the Jacobian of these images; linear layers need none
CHUNK_BYTES = 256 * 2**20  # of Jacobian factors per chunk of images


def empirical_ntk(model: nn.Module, state: State, images: Tensor, others: Tensor | None = None) -> Tensor:
    """Return the trace form of the empirical NTK, K(x, x') = Σ_k ⟨∇f_k(x), ∇f_k(x')⟩ over the trained parameters.

    state: parameters to take the gradients at, in the dtype and on the device to compute in. images: (N, C, H, W).
    others: (M, C, H, W), by default the same images. Returns (N, M).
    """
    return _contract(model, state, images, others, Factors.trace)


def empirical_ntk_blocks(model: nn.Module, state: State, images: Tensor, others: Tensor | None = None) -> Tensor:
    """Return the kernel of every pair of outputs, ⟨∇f_k(x), ∇f_k'(x')⟩, (N, K, M, K); arguments as `empirical_ntk`."""
    return _contract(model, state, images, others, Factors.blocks)


def kernel_duals(kernel: Tensor, targets: Tensor, ridge: float = 0.0) -> Tensor:
    """Return α = (K + ridge · tr(K)/N · I)⁻¹ y, (N, K), differentiable. kernel: (N, N). targets: (N, K).

    Raises InputError where the kernel is singular to the precision of its dtype.
    """
    level = ridge * kernel.diagonal().mean()
    identity = torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)
    factor, failed = torch.linalg.cholesky_ex(kernel + level * identity)
    if failed:
        raise InputError(f"kernel of {len(kernel)} images is singular at ridge {ridge:g}: raise the ridge")
    return torch.cholesky_solve(targets, factor)


def kernel_regression(kernel: Tensor, targets: Tensor, cross: Tensor, ridge: float = 0.0) -> Tensor:
    """Predict K_xX (K_XX + ridge · tr/N · I)⁻¹ y, (M, K). cross: K_xX (M, N), of new and training images."""
    return cross @ kernel_duals(kernel, targets, ridge)


def kernel_distance(first: Tensor, second: Tensor) -> float:
    """Return 1 − ⟨K₁, K₂⟩_F / (‖K₁‖_F ‖K₂‖_F): 0 for kernels equal up to scale (Loo et al. 2024, section 4)."""
    return float(1 - (first * second).sum() / (first.norm() * second.norm()))


def kernel_drift(observation: Observation, images: Tensor) -> float:
    """Return the kernel distance, before to after an observation's last update, on `images` (N, C, H, W), in float64 if
    the network takes that."""
    model, dtype = observation.model, most_exact_type(observation.model, images)
    states = (cast_state(state, images.device, dtype) for state in observation.pairs[-1])
    return kernel_distance(*(empirical_ntk(model, state, images.to(dtype)) for state in states))


def affordable_images(observation: Observation) -> int:
    """Return on how many images to measure the drift of the kernel: at most 200, 4 for a ResNet-18 of ten classes."""
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
    """Sum `contraction` over the parameters, a chunk of rows and one of columns at a time."""
    jacobian = Jacobian(model, state)
    size = sum(factors.numel for factors in jacobian(images[:1])) * images.element_size()
    rows = images.split(max(1, CHUNK_BYTES // size))
    columns = rows if others is None else others.split(max(1, CHUNK_BYTES // size))
    grid: list[list[Tensor]] = []
    for i, row in enumerate(rows):
        left = jacobian(row)
        known = i if others is None else 0  # blocks of a symmetric kernel that are transposes of earlier ones
        line = [_transpose(grid[j][i]) for j in range(known)]
        for j in range(known, len(columns)):
            right = left if others is None and j == i else jacobian(columns[j])
            parts = [contraction(*pair) for pair in zip(left, right, strict=True)]
            line.append(torch.stack(parts).sum(0))
        grid.append(line)
    axis = grid[0][0].dim() // 2
    return torch.cat([torch.cat(line, axis) for line in grid])


def _transpose(block: Tensor) -> Tensor:
    """Transpose (N, M) to (M, N), and (N, K, M, K) to (M, K, N, K)."""
    half = block.dim() // 2
    return block.permute(*range(half, 2 * half), *range(half))


MAX_GRADIENTS = 1000  # images × outputs up to which duals are solved for: the cost is cubic
# relative second difference that rounding does not reach and a non-linearity does, in float64 and in other types
CURVED, CURVED_ROUGHLY = 1e-6, 1e-4


def linearization_error(model: nn.Module, initial: State, final: State, images: Tensor) -> tuple[float, float]:
    """Return (‖f − f_lin‖ / ‖f − f_θ₀‖ over images and outputs, the largest |f − f_lin|). The first is NaN if no output
    moved; it is also how far the mean gradient on the way is from that at θ₀.

    images: (N, C, H, W). f is taken at `final`, f_lin linearized at `initial` in the trained parameters; other tensors
    are those of `final` in both.
    """
    trained = trained_names(model)
    fixed = {name: value for name, value in final.items() if name not in trained}
    outputs = _outputs(model, fixed, images)
    start = {name: initial[name] for name in trained}
    step = {name: final[name] - initial[name] for name in trained}
    with torch.no_grad(), evaluating(model):
        linearized = torch.func.jvp(outputs, (start,), (step,))
        after = outputs({name: final[name] for name in trained})
    change = after - linearized[0]
    missed, went = change - linearized[1], float(change.norm())
    return float(missed.norm()) / went if went else math.nan, float(missed.abs().max())


def relative_residual(
    model: nn.Module, state: State, delta: State, images: Tensor, duals: Tensor | None = None
) -> float:
    """Return ‖Δθ − Σ_jk α_jk ∇f_k(x_j)‖ / ‖Δθ‖, with the gradients of images (N, C, H, W) at the parameters `state`.

    duals: α, (N, K). Without them the best ones are solved for, in float64; the result is then NaN if Δθ is 0 or there
    are more than 1,000 gradients.
    """
    outputs = _outputs(model, state, images)
    start, norm = {name: state[name] for name in delta}, _norm(delta)
    with evaluating(model):
        if duals is not None:
            (sums,) = torch.func.vjp(outputs, start)[1](duals)
            return float(_norm({name: value - sums[name] for name, value in delta.items()}) / norm)
        with torch.no_grad():
            products = torch.func.jvp(outputs, (start,), (delta,))[1].flatten()  # of every gradient with Δθ
    if not norm or len(products) > MAX_GRADIENTS:
        return math.nan
    kernel = empirical_ntk_blocks(model, state, images).reshape(len(products), -1)
    best = torch.linalg.lstsq(kernel.cpu(), products[:, None].cpu(), driver="gelsd").solution
    return float((1 - (products.cpu() @ best).sum() / norm.cpu() ** 2).clamp_min(0).sqrt())


def _outputs(model: nn.Module, state: State, images: Tensor) -> Callable[[State], Tensor]:
    """Return the outputs (N, K) for images as a function of some parameters; the others are those of `state`."""
    return lambda parameters: run_network(model, {**state, **parameters}, images).reshape(len(images), -1)


def _norm(state: State) -> Tensor:
    return torch.stack([value.norm() for value in state.values()]).norm()


def has_linear_output(model: nn.Module, state: State, images: Tensor) -> bool:
    """Return whether the outputs are linear in the parameters of the layer called last. state, images: in one type.

    If they are, the second difference of f at θ, θ + v and θ + 2v is rounding error. Short and long steps v are tried:
    the ones show a sigmoid that saturates further out, the others a kink at a distance.
    """
    owners = {name: module for name, module in model.named_modules() if parameter_names(name)[0] in state}
    called = [call.name for call in probe(model, images[:1], owners, state)[1]]
    if not called:
        raise InputError(
            f"model {type(model).__name__!r} calls no layer with a weight: nothing says what its output is"
        )
    generator, curved = probe_generator(), CURVED if images.dtype == torch.float64 else CURVED_ROUGHLY
    with torch.no_grad(), evaluating(model):
        for length in (0.1, 1.0, 100.0):
            step: State = {}
            for key in parameter_names(called[-1]):
                if key in state:
                    noise = torch.randn(state[key].shape, generator=generator, dtype=torch.float64).to(state[key])
                    step[key] = length * noise / max(1.0, noise[0].numel()) ** 0.5
            values = [
                run_network(model, {**state, **{key: state[key] + i * v for key, v in step.items()}}, images)
                for i in range(3)
            ]
            second = (values[2] - values[1]) - (values[1] - values[0])
            if float(second.norm()) > curved * sum(float(value.norm()) for value in values):
                return False
    return True
