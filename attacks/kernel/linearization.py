"""A model beside its linearization at the parameters that were sent, f_lin = f_θ₀ + ∇f_θ₀ᵀ (θ − θ₀)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attacks.interface.errors import InputError
from attacks.interface.observation import State
from attacks.kernel.empirical import empirical_ntk_blocks
from attacks.networks.probing import evaluating, parameter_names, probe, probe_generator, run_network

MAX_GRADIENTS = 1000  # images × outputs up to which duals are solved for: the cost is cubic
CURVED = 1e-6  # relative second difference that rounding in float64 does not reach and a non-linearity does


def linearization_error(model: nn.Module, initial: State, final: State, images: Tensor) -> tuple[float, float]:
    """(‖f − f_lin‖ / ‖f − f_θ₀‖ over images and outputs, the largest |f − f_lin|); NaN where no output moved.

    images: (N, C, H, W). f is taken at `final`, f_lin linearized at `initial` in the trained parameters; other tensors
    are those of `final` in both. Since f − f_lin = ∫ (∇f_θ − ∇f_θ₀)·Δθ along the way, the first is also how far the
    mean gradient on the way is from that at θ₀, along the update.
    """
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
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
    """‖Δθ − Σ_jk α_jk ∇f_k(x_j)‖ / ‖Δθ‖, the gradients of images (N, C, H, W) taken at the parameters `state`.

    duals: α, (N, K). Without them the best ones are solved for, in float64, and the result is NaN where Δθ is 0 or
    there are more than 1,000 gradients.
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
    """The outputs (N, K) for images as a function of some of the parameters; the others are those of `state`."""
    return lambda parameters: run_network(model, {**state, **parameters}, images).reshape(len(images), -1)


def _norm(state: State) -> Tensor:
    return torch.stack([value.norm() for value in state.values()]).norm()


def has_linear_output(model: nn.Module, state: State, images: Tensor) -> bool:
    """Whether the outputs are linear in the parameters of the layer that is called last, as they are unless something
    non-linear follows it. state, images: in float64.

    Compares f at equal steps θ, θ + v, θ + 2v of that layer, whose second difference is then rounding error; short and
    long steps, so that neither a saturated sigmoid nor a distant kink goes unseen.
    """
    name = _last_layer(model, state, images)
    generator = probe_generator()
    with torch.no_grad(), evaluating(model):
        for length in (0.1, 1.0, 100.0):
            step: State = {}
            for key in parameter_names(name):
                if key in state:
                    noise = torch.randn(state[key].shape, generator=generator, dtype=torch.float64).to(state[key])
                    step[key] = length * noise / max(1.0, noise[0].numel()) ** 0.5
            values = [
                run_network(model, {**state, **{key: state[key] + i * v for key, v in step.items()}}, images)
                for i in range(3)
            ]
            second = (values[2] - values[1]) - (values[1] - values[0])
            if float(second.norm()) > CURVED * sum(float(value.norm()) for value in values):
                return False
    return True


def _last_layer(model: nn.Module, state: State, images: Tensor) -> str:
    """The module with a weight of its own that is called last."""
    called: list[str] = []
    owners = {name: module for name, module in model.named_modules() if parameter_names(name)[0] in state}
    probe(model, images[:1], owners, lambda name, given, output: called.append(name), state)
    if not called:
        raise InputError(
            f"model {type(model).__name__!r} calls no layer with a weight: nothing says what its output is"
        )
    return called[-1]
