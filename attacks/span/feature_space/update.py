"""What an update shows of the fully connected layers behind a convolutional body, and images judged by it."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.interface.torch_tools import cast_state
from attacks.networks.probing import count_outputs, random_images
from attacks.span.evidence.pixel_evidence import shows_signs
from attacks.span.feature_space.inversion import PixelTest
from attacks.span.feature_space.network import FeatureNetwork, UpdateFactors
from attacks.span.search.problems import SpanTest, outside
from attacks.span.stages import Refusal
from attacks.span.thresholds import EVIDENCE, FEATURE
from attacks.update.spectrum import Spectrum, layer_update


@dataclass(frozen=True)
class FeatureUpdate:
    """The update of the first two fully connected layers, and what else a search in feature space needs to know.

    initial: the parameters sent to the client, in float32.
    factors: U S Vᵀ of the first layer's update, cut to the rank for λ.
    rows: (R, D + 1), its right singular vectors up to the rank for ρ, float32.
    test: (k, W + 1), those of the second layer, or None where there is none.
    trained: names of trained parameters.
    count: N.
    shape: (C, H, W).
    pixel_range: (low, high), (1, C, 1, 1) each, in the model's input space, where known.
    ignored: on what was left out.
    signs: whether the update shows the signs of features alone, as adaptive steps leave them.
    """

    network: FeatureNetwork
    initial: State
    factors: UpdateFactors
    rows: Tensor
    test: Tensor | None
    trained: tuple[str, ...]
    count: int
    shape: tuple[int, int, int]
    pixel_range: tuple[Tensor, Tensor] | None
    ignored: tuple[str, ...] = ()
    signs: bool = False

    @classmethod
    def of(cls, network: FeatureNetwork, observation: Observation, knowledge: Knowledge) -> "FeatureUpdate":
        """Read the first round that is not zero; without num_private, N is the rank where a gap shows it.

        Raises InputError where none does, and where a layer did not move.
        """
        observation, ignored = observation.one_round()
        device = next(network.model.parameters()).device
        delta = observation.delta()
        updates = [layer_update(delta, name).to(device) for name in network.layers[:2]]
        if still := [name for name, update in zip(network.layers, updates, strict=False) if not bool(update.any())]:
            raise InputError(
                f"layer {still[0]!r} did not move, and the model says that it was trained: where clients freeze it, "
                "freeze it in the model, too, by requires_grad_(False)"
            )
        factors, rows = _first_layer(updates[0])
        count = knowledge.num_private or len(rows) * factors.exact
        if not count:
            no_gap = "the spectrum of features has no gap at their number"
            knowledge.require("span", "num_private", because=no_gap)
        tested = len(updates) > 1 and network.activation is not None
        return cls(
            network=network,
            initial=_fast(network, cast_state(observation.initial, device, rows.dtype), observation.input_shape),
            factors=factors,
            rows=rows,
            test=_second_rows(updates[1], count) if tested else None,
            trained=observation.trainable,
            count=count,
            shape=observation.input_shape,
            pixel_range=None if knowledge.pixel_mean is None else knowledge.input_bounds(rows),
            ignored=ignored,
            signs=shows_signs(updates[0]),
        )

    def span_test(self, state: State) -> SpanTest:
        """Return the second layer's test of feature vectors (M, D) at the parameters `state`."""
        assert self.test is not None and self.network.activation is not None
        return SpanTest(layer_update(state, self.network.layers[0]), self.test[None], self.network.activation)

    @property
    def refusal(self) -> Refusal | None:
        """Why a search makes no sense."""
        rank = len(self.rows)
        if self.signs:
            return Refusal(
                f"nothing returned: the update of {self.network.layers[0]!r} has columns of equal size, the signs of "
                "features, which is what local Adam or RMSprop looks like"
            )
        # as many directions as images are enough where features did not move: in one step, or behind frozen layers
        if rank < self.count or (rank == self.count and not self.factors.exact):
            return Refusal(
                f"nothing returned: the update of {self.network.layers[0]!r} has rank {rank} above its noise, "
                f"{self.count} images need more (local Adam, added noise, more images than units?)"
            )
        return None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is in doubt where a search makes sense, and what was left out."""
        doubts: list[str] = []
        features, pixels = self.rows.shape[1] - 1, math.prod(self.shape)
        if features < FEATURE.few_features * pixels:
            few = f"{features} features stand for {pixels} pixels"
            doubts.append(f"{few}: other images have them too, and may be returned instead")
        if self.test is None:
            untested = "no second fully connected layer, with more outputs than there are images, tells features apart"
            doubts.append(f"{untested}: images are sought from noise")
        return self.ignored if self.refusal is not None else (*doubts, *self.ignored)

    def pixels(self, state: State) -> PixelTest:
        """Return the test of images by the features they have at the parameters `state`."""
        return PixelTest(self.network, state, self.rows, self.pixel_range)

    def relative_residual(self, points: Tensor) -> float:
        """Return ‖Δ − Δ P‖ / ‖Δ‖ of the first layer, P projecting on points (F, D + 1): the least over all duals."""
        update = self.factors.left * self.factors.values @ self.factors.rows
        return float(outside(update, torch.linalg.qr(points.double().T)[0].T).norm() / update.norm())


def resolved_rank(spectrum: Spectrum) -> tuple[int, bool]:
    """Return the rank above noise, and whether a gap shows it: then the update is exactly a sum of so many summands."""
    found = spectrum.image_count()
    if found.has_spectral_gap or spectrum.ends_at_noise(found.count):
        return found.count, True
    rows, columns = spectrum.rows**0.5, spectrum.columns**0.5
    # noise alone has singular values between |√columns − √rows| and √columns + √rows times its deviation
    smallest = spectrum.values[int(FEATURE.smallest_values * len(spectrum.values)) :].median()
    noise = FEATURE.noise_ratio * smallest * (columns + rows) / max(abs(columns - rows), 1.0)
    return int((spectrum.values > noise).sum()), False


def _first_layer(update: Tensor) -> tuple[UpdateFactors, Tensor]:
    """Return the factors of the first layer's update, and the rows (R, D + 1) on which images are polished."""
    spectrum = Spectrum.of(update)
    rank, exact = resolved_rank(spectrum)
    last = used = rank
    if not exact:
        last, used = (min(rank, int(share * spectrum.rows)) for share in (FEATURE.pixel_rank, FEATURE.gradient_rank))
    rows, values = spectrum.vectors[:used], spectrum.values[:used]
    factors = UpdateFactors(update @ rows.T / values, values, rows, exact)
    return factors, spectrum.vectors[:last].float().contiguous()


def _second_rows(update: Tensor, count: int) -> Tensor | None:
    """Return the rows (k, W + 1) of the second layer's update that test features; None where they are too few."""
    spectrum = Spectrum.of(update)
    most = EVIDENCE.directions_of_width * update.shape[1]
    directions = int(min(EVIDENCE.directions_per_image * count, most, len(spectrum.values)))
    if directions < EVIDENCE.directions_needed * count:
        return None
    return spectrum.vectors[:directions].float().contiguous()


def _fast(network: FeatureNetwork, state: State, shape: tuple[int, int, int]) -> State:
    """Return the state with kernels in the memory format of fastest convolutions, if the network bears that."""
    fast = {k: v.to(memory_format=torch.channels_last) if v.dim() == 4 else v for k, v in state.items()}
    try:
        with torch.no_grad():
            network.features(fast, random_images(shape).to(next(iter(fast.values()))))
    except RuntimeError:
        return state
    return fast


class FoundImages(NamedTuple):
    """Images that were judged.

    images: (F, C, H, W).
    duals: (F, K), those of the SGD step that first used them.
    residual, gradient: (F,), ρ and λ.
    step: (F,), the number of that step.
    """

    images: Tensor
    duals: Tensor
    residual: Tensor
    gradient: Tensor
    step: Tensor

    @classmethod
    def none(cls, update: FeatureUpdate) -> "FoundImages":
        images = update.rows.new_zeros(0, *update.shape)
        duals, nothing = images.new_zeros(0, count_outputs(update.network.model, update.shape)), images.flatten()
        return cls(images, duals.double(), nothing, nothing.double(), nothing.long())

    def at(self, kept: Tensor) -> "FoundImages":
        """Return those of the indices, or of the mask, `kept`."""
        return FoundImages(*(part[kept] for part in self))

    def join(self, other: "FoundImages") -> "FoundImages":
        """Return these and those of `other`."""
        return FoundImages(*map(torch.cat, zip(self, other, strict=True)))


class Bounds(NamedTuple):
    """The ρ (`residual`) and the λ (`gradient`) below which an image is accepted."""

    residual: float
    gradient: float


UNKNOWN = Bounds(float("nan"), float("nan"))
WORST = Bounds(float("inf"), float("inf"))
