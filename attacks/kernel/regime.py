"""Is a client in the kernel regime? What an update and a few images say of it, in numbers and in words.

The NTK attack takes Δθ for Σ_j α_j ∇f(x_j) at one set of parameters. That holds as far as the model is linear in its
parameters along the update, f ≈ f_lin = f_θ₀ + ∇f_θ₀ᵀ Δθ, and |f − f_lin| ≤ ½ sup ‖H‖₂ ‖Δθ‖₂² with the model's Hessian
H on the way (Liu, Zhu, Belkin 2020). The span attack needs no linearity, only a first layer whose update has low rank.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attacks.interface.errors import InputError
from attacks.interface.observation import Observation, State
from attacks.interface.torch_tools import cast_state
from attacks.kernel.empirical import (
    affordable_images,
    empirical_ntk,
    has_linear_output,
    kernel_distance,
    linearization_error,
    relative_residual,
)
from attacks.kernel.hessian import hessian_norms, is_factored
from attacks.networks.jacobian import Jacobian
from attacks.networks.probing import find_input_layer, most_exact_type, parameter_names
from attacks.update.spectrum import Spectrum, layer_update

ZERO = "zero update: the client returned what it was sent"
KERNEL_REGIME = "kernel regime: the NTK attack's assumption holds"
LARGE_STEP = "linear output but large step: exact images of the span attack at most, blurred ones of the hybrid kernel"
NONLINEAR_OUTPUT = "non-linear output layer: the kernel is not constant at any width"
UNMOVED = "outputs did not move on these images: they say nothing of the update"
NO_RANK = "no clear rank: local Adam, noise, or more images than a layer holds; no exact images, membership may show"

# Up to these the NTK attack with one kernel recovers most images: docs/records/diagnose.md has the measurement.
SMALL_ERROR = 0.3  # linearization error: how far the mean gradient on the way is from that at θ₀, along the update
SPANNED = 0.5  # share of the update left over by the images' own gradients: 0.8 under Adam, 0.2 to 0.4 under SGD
MAX_IMAGES = 32  # that the diagnostics are measured on
FACTORED, EXPLICIT = 2e9, 5e7  # images × outputs × parameters up to which Hessians are affordable, by their path
SKETCH = 1024  # sides of an update beyond this are projected at random before its singular values are taken


@dataclass(frozen=True)
class LayerRank:
    """One layer's [ΔW | Δb], (rows, columns).

    l2, linf: norms of its entries.
    rank: above the noise floor.
    gap: σ_rank over the next singular value, NaN where there is none.
    has_spectral_gap: whether the rank can be trusted.
    """

    name: str
    rows: int
    columns: int
    l2: float
    linf: float
    rank: int
    gap: float
    has_spectral_gap: bool


def layer_ranks(model: nn.Module, delta: State, generator: torch.Generator) -> tuple[LayerRank, ...]:
    """Find rank and gap of every trained layer with a weight, in the model's order; a convolution's is (out, rest)."""
    found = []
    for name, _ in model.named_modules():
        weight, _ = parameter_names(name)
        if weight in delta and delta[weight].dim() > 1:
            found.append(_layer_rank(name, layer_update(delta, name), generator))
    return tuple(found)


def _layer_rank(name: str, update: Tensor, generator: torch.Generator) -> LayerRank:
    rows, columns = update.shape
    norms = float(update.norm()), float(update.abs().max())
    if not update.any():
        return LayerRank(name, rows, columns, *norms, rank=0, gap=math.nan, has_spectral_gap=False)
    if min(rows, columns) > SKETCH:  # keeps any rank below, and a floor of noise a floor
        sketch = torch.randn((columns, SKETCH), generator=generator, dtype=update.dtype).to(update.device)
        update = update @ sketch / SKETCH**0.5
    spectrum = Spectrum.of(update)
    counted = spectrum.image_count()
    ends = spectrum.values[counted.count - 1 : counted.count + 1]
    gap = float(ends[0] / ends[1]) if len(ends) == 2 else math.nan
    return LayerRank(name, rows, columns, *norms, counted.count, gap, counted.has_spectral_gap)


@dataclass(frozen=True)
class UpdateFacts:
    """What an update shows without any image.

    delta_l2, delta_linf: ‖Δθ‖₂ and ‖Δθ‖_∞.
    layers: rank and gap of every layer's update.
    images_layer: the layer that the images are fed to.
    """

    delta_l2: float
    delta_linf: float
    layers: tuple[LayerRank, ...]
    images_layer: str | None

    @classmethod
    def of(cls, observation: Observation, generator: torch.Generator) -> "UpdateFacts":
        """Measure the last update. generator: on the CPU, for the random projection of large layers."""
        delta, layer = observation.delta(-1), find_input_layer(observation.model, observation.input_shape)
        flat = torch.cat([value.flatten() for value in delta.values()])
        return cls(
            delta_l2=float(flat.norm()),
            delta_linf=float(flat.abs().max()),
            layers=layer_ranks(observation.model, delta, generator),
            images_layer=None if layer is None else layer.weight.removesuffix(".weight"),
        )

    @property
    def has_rank(self) -> bool:
        """A clear rank, below the full one, of the layer that the images are fed to or, where there is none, of any."""
        own = [layer for layer in self.layers if layer.name == self.images_layer] or self.layers
        return any(layer.has_spectral_gap and layer.rank < min(layer.rows, layer.columns) for layer in own)


@dataclass(frozen=True)
class OnImages:
    """How linear the network is along an update, on some images.

    hessian_norm: the largest ‖H‖₂ over images, outputs and the points of the update that were looked at; NaN where the
        model is too large for it.
    kernel_distance: between both ends, trace form.
    linearization_error: ‖f − f_lin‖ / ‖f − f_θ₀‖ over images and outputs.
    remainder: the largest |f − f_lin|.
    bound: ½ ‖H‖₂ ‖Δθ‖₂², which holds for the remainder as far as the largest ‖H‖₂ on the way was met: over
        `hessian_images` images, all or as many as were affordable.
    unexplained: ‖Δθ − Σ_jk α_jk ∇f_k(x_j)‖ / ‖Δθ‖ at θ₀ with the best duals, what the NTK attack leaves over with the
        images themselves; NaN where not all of them were looked at.
    linear_output: whether nothing non-linear follows the last layer.
    images: how many were looked at.
    """

    hessian_norm: float
    kernel_distance: float
    linearization_error: float
    remainder: float
    bound: float
    unexplained: float
    linear_output: bool
    images: int
    hessian_images: int

    @classmethod
    def of(
        cls,
        observation: Observation,
        images: Tensor,
        generator: torch.Generator,
        *,
        complete: bool = False,
        points: tuple[float, ...] = (0.0, 0.5, 1.0),
        distance: float | None = None,
    ) -> "OnImages":
        """Measure the last round's update on images (N, C, H, W) in the model's input space, the first 32. float64 if
        the network takes that, ‖H‖₂ in float32. Raises InputError without images.

        generator: on the CPU, starts the power iteration. complete: whether these are all images that were trained on.
        points: where on the segment from θ₀ (0) to θ_f (1) ‖H‖₂ is taken. distance: the kernel's, where known already.
        """
        if not len(images):
            raise InputError("linearity needs at least one image")
        model, (initial, final), delta = observation.model, observation.pairs[-1], observation.delta(-1)
        device, limit = next(iter(delta.values())).device, affordable_images(observation)
        dtype = most_exact_type(model, images.to(device))
        start, end, delta = (cast_state(state, device, dtype) for state in (initial, final, delta))
        inputs = images[:MAX_IMAGES].to(device, dtype)
        if distance is None:
            distance = kernel_distance(*(empirical_ntk(model, state, inputs[:limit]) for state in (start, end)))
        error, remainder = linearization_error(model, start, end, inputs)
        affordable = inputs[: _affordable(model, initial, inputs.float())].float()
        ends = [_between(initial, final, point) for point in points] if len(affordable) else []
        norms = [float(hessian_norms(model, state, affordable, generator).max()) for state in ends]
        norm = max(norms, default=math.nan)
        all_seen = complete and len(images) <= min(MAX_IMAGES, limit)
        return cls(
            hessian_norm=norm,
            kernel_distance=distance,
            linearization_error=error,
            remainder=remainder,
            bound=0.5 * norm * float(torch.cat([value.flatten() for value in delta.values()]).norm()) ** 2,
            unexplained=relative_residual(model, start, delta, inputs) if all_seen else math.nan,
            linear_output=has_linear_output(model, start, inputs),
            images=len(inputs),
            hessian_images=len(affordable),
        )


@dataclass(frozen=True)
class Linearity:
    """In how far an update is that of a linear model: what it shows by itself, and what some images show of it."""

    update: UpdateFacts
    on_images: OnImages

    @property
    def verdict(self) -> str:
        """In words. A non-linear output is said whatever the step, an update of no clear rank only where it matters."""
        measured, has_rank = self.on_images, self.update.has_rank
        if self.update.delta_linf == 0:
            return ZERO
        if not measured.linear_output:
            return NONLINEAR_OUTPUT
        if math.isnan(measured.linearization_error):
            return UNMOVED
        if measured.linearization_error > SMALL_ERROR:
            return LARGE_STEP if has_rank else NO_RANK
        spanned = has_rank if math.isnan(measured.unexplained) else measured.unexplained <= SPANNED
        return KERNEL_REGIME if spanned else NO_RANK

    def facts(self) -> dict[str, Any]:
        """Return the numbers and the verdict as plain values, layers left out."""
        sizes = {"delta_l2": self.update.delta_l2, "delta_linf": self.update.delta_linf}
        return sizes | vars(self.on_images) | {"verdict": self.verdict}


def _affordable(model: nn.Module, state: State, images: Tensor) -> int:
    """Return of how many images Hessians cost seconds and not minutes."""
    jacobian = Jacobian(model, cast_state(state, images.device, images.dtype))
    outputs, calls = jacobian.linear_calls(images[:1])
    parameters = sum(jacobian.state[name].numel() for name in jacobian.trained)
    return int((FACTORED if is_factored(jacobian, calls) else EXPLICIT) / (outputs * parameters))


def _between(initial: State, final: State, point: float) -> State:
    """Return the point of the segment, in float32."""
    return {
        name: torch.lerp(value.float(), final[name].float(), point) if value.is_floating_point() else final[name]
        for name, value in initial.items()
    }
