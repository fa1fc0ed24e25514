"""Is a client in the kernel regime? What an update and a few images say of it, in numbers and in words.

The NTK attack takes Δθ for Σ_j α_j ∇f(x_j) at one set of parameters. That holds as far as the model is linear in its
parameters along the update, f ≈ f_lin = f_θ₀ + ∇f_θ₀ᵀ Δθ, and |f − f_lin| ≤ ½ sup ‖H‖₂ ‖Δθ‖₂² with the model's Hessian
H on the way (Liu, Zhu, Belkin 2020). The span attack needs no linearity, only a first layer whose update has low rank.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks.beliefs import moved
from attacks.errors import InputError
from attacks.hessian import hessian_norms, is_factored
from attacks.inference import find_input_layer
from attacks.jacobian import Jacobian
from attacks.kernels import affordable_images, empirical_ntk, kernel_distance
from attacks.layer_updates import LayerUpdate, layer_updates
from attacks.linearization import has_linear_output, linearization_error, unexplained_share
from attacks.observation import Observation, State

ZERO = "zero update: the client returned what it was sent"
KERNEL_REGIME = "kernel regime: the NTK attack should work"
LARGE_STEP = "linear output but large step: expect the span attack only"
NONLINEAR_OUTPUT = "non-linear output layer: the kernel is not constant at any width"
NO_RANK = "no clear rank: local Adam, noise, or more images than a layer holds; expect no exact attack"

# Up to these the NTK attack with one kernel recovers most images: docs/diagnose.md has the measurement.
SMALL_ERROR = 0.3  # linearization error: how far the mean gradient on the way is from that at θ₀, along the update
SPANNED = 0.5  # share of the update left over by the images' own gradients: 0.8 under Adam, 0.2 to 0.4 under SGD
MAX_IMAGES = 32  # that the diagnostics are measured on
FACTORED, EXPLICIT = 2e9, 5e7  # images × outputs × parameters up to which Hessians are affordable, by their path


@dataclass(frozen=True)
class Linearity:
    """delta_l2, delta_linf: ‖Δθ‖₂ and ‖Δθ‖_∞. hessian_norm: the largest ‖H‖₂ over images, outputs and the points of the
    update in `Linearity.of`; NaN where the model is too large for it. kernel_distance: between both ends, trace form.

    linearization_error: ‖f − f_lin‖ / ‖f − f_θ₀‖ over images and outputs. remainder: the largest |f − f_lin|. bound:
    ½ ‖H‖₂ ‖Δθ‖₂², which holds for the remainder as far as the largest ‖H‖₂ on the way was met. unexplained:
    ‖Δθ − Σ_jk α_jk ∇f_k(x_j)‖ / ‖Δθ‖ at θ₀ with the best duals, what the NTK attack leaves over with the images
    themselves; NaN where not all of them were looked at. linear_output: whether nothing non-linear follows the last
    layer. images_layer: the layer that the images are fed to. images: how many were looked at.
    """

    delta_l2: float
    delta_linf: float
    hessian_norm: float
    kernel_distance: float
    linearization_error: float
    remainder: float
    bound: float
    unexplained: float
    linear_output: bool
    layers: tuple[LayerUpdate, ...]
    images_layer: str | None
    images: int

    @classmethod
    def of(
        cls,
        model: nn.Module,
        initial: State,
        final: State,
        images: Tensor,
        generator: torch.Generator,
        complete: bool = False,
        points: tuple[float, ...] = (0.0, 0.5, 1.0),
        distance: float | None = None,
    ) -> "Linearity":
        """Of the update from `initial` to `final` on images (N, C, H, W) in the model's input space, the first 32.

        generator: on the CPU, starts the power iteration. complete: whether these are the images that were trained on,
        all of them, as the evaluator has them. points: where on the segment from θ₀ (0) to θ_f (1) ‖H‖₂ is taken.
        distance: the kernel distance, where it is known already. Computed in float64, ‖H‖₂ in float32. Raises
        InputError without images.
        """
        if not len(images):
            raise InputError("linearity needs at least one image")
        device = next(iter(initial.values())).device
        double = [moved(state, device, torch.float64) for state in (initial, final)]
        shape = (images.shape[1], images.shape[2], images.shape[3])
        observation = Observation(model, ((initial, final),), shape)
        delta, limit = observation.delta(), affordable_images(observation)
        flat = torch.cat([value.flatten() for value in delta.values()])
        layer = find_input_layer(model, shape)
        inputs = images[:MAX_IMAGES].to(device, torch.float64)
        model = model.eval()
        complete = complete and len(images) <= min(MAX_IMAGES, limit)
        error, remainder = linearization_error(model, double[0], double[1], inputs)
        affordable = inputs[: _affordable(model, initial, inputs.float())].float()
        ends = [_between(initial, final, point) for point in points] if len(affordable) else []
        norm = max((hessian_norms(model, state, affordable, generator).largest for state in ends), default=math.nan)
        if distance is None:
            distance = kernel_distance(*(empirical_ntk(model, state, inputs[:limit]) for state in double))
        l2 = float(flat.norm())
        return cls(
            delta_l2=l2,
            delta_linf=float(flat.abs().max()),
            hessian_norm=norm,
            kernel_distance=distance,
            linearization_error=error,
            remainder=remainder,
            bound=0.5 * norm * l2**2,
            unexplained=unexplained_share(model, double[0], delta, inputs) if complete else math.nan,
            linear_output=has_linear_output(model, double[0], inputs),
            layers=layer_updates(model, delta, generator),
            images_layer=None if layer is None else layer.weight.removesuffix(".weight"),
            images=len(inputs),
        )

    def on(self, model: nn.Module, initial: State, final: State, images: Tensor) -> "Linearity":
        """The same update measured on other images (M, C, H, W): kernel distance and linearization, ‖H‖₂ as it was."""
        device = next(iter(initial.values())).device
        double = [moved(state, device, torch.float64) for state in (initial, final)]
        inputs = images[:MAX_IMAGES].to(device, torch.float64)
        limit = affordable_images(Observation(model, ((initial, final),), (*images.shape[1:],)))
        error, remainder = linearization_error(model.eval(), double[0], double[1], inputs)
        return replace(
            self,
            kernel_distance=kernel_distance(*(empirical_ntk(model, state, inputs[:limit]) for state in double)),
            linearization_error=error,
            remainder=remainder,
            unexplained=math.nan,
            images=len(inputs),
        )

    @property
    def verdict(self) -> str:
        """In words. A non-linear output is said whatever the step, an update of no clear rank only where it matters."""
        if self.delta_linf == 0:
            return ZERO
        if not self.linear_output:
            return NONLINEAR_OUTPUT
        if self.linearization_error > SMALL_ERROR:
            return LARGE_STEP if self.has_rank else NO_RANK
        spanned = self.has_rank if math.isnan(self.unexplained) else self.unexplained <= SPANNED
        return KERNEL_REGIME if spanned else NO_RANK

    @property
    def has_rank(self) -> bool:
        """A clear rank, below the full one, of the layer that the images are fed to or, where there is none, of any."""
        own = [layer for layer in self.layers if layer.name == self.images_layer] or self.layers
        return any(layer.clear and layer.rank < min(layer.rows, layer.columns) for layer in own)

    def facts(self) -> dict[str, Any]:
        """The numbers as plain values, layers left out."""
        hidden = ("layers", "images_layer")
        return {name: value for name, value in vars(self).items() if name not in hidden} | {"verdict": self.verdict}


def _affordable(model: nn.Module, state: State, images: Tensor) -> int:
    """Of how many images Hessians cost seconds and not minutes."""
    jacobian = Jacobian(model, moved(state, images.device, images.dtype))
    outputs, calls = jacobian.linear_calls(images[:1])
    parameters = sum(jacobian.state[name].numel() for name in jacobian.trained)
    return int((FACTORED if is_factored(jacobian, calls) else EXPLICIT) / (outputs * parameters))


def _between(initial: State, final: State, point: float) -> State:
    """The point of the segment, in float32."""
    return {
        name: torch.lerp(value.float(), final[name].float(), point) if value.is_floating_point() else final[name]
        for name, value in initial.items()
    }
