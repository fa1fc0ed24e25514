"""Was this image among the private ones? A test without shadow models and without training.

Any sequence of SGD steps changes a layer z = W a(x) + b by Σ_t Σ_i δ_i(t) [a_i(t); 1]ᵀ, so the inputs that private
images have in that layer lie in its update's row space. With V_k its top k right singular vectors and g = [a(x); 1] at
the initial parameters,

    ρ(x) = ‖g − V_k V_kᵀ g‖² / ‖g‖²

is near zero for private images only. The first layer's inputs do not move, so k = N there; features drift, so deeper
layers take k = 4 N. Behind BatchNorm in training mode features are computed with the statistics of the client's
batches. The residual of an image is the geometric mean of ρ over the layers whose row space has room, and over the
rounds of a client that was seen several times.

Adam divides every entry of the first layer's gradient by its size, about s_j in column j, the root mean square of that
pixel. With the columns multiplied by s_j again and k = 2 N, the first layer tells better than the deeper ones do and,
where it has room, is used alone; ‖g‖² in ρ becomes ‖g − ḡ‖², since all images share their mean. s and ḡ are taken from
reference images: public ones, or many candidates.
"""

import math
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional

from attacks.calibration import UNKNOWN, Interval, auc_interval, exact_interval
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.interface.torch_tools import cast_state
from attacks.networks.probing import parameter_names, probe, with_batch_statistics
from attacks.update.spectrum import Spectrum, infer_image_count, layer_update

# Directions of a row space that an image takes, k / N: in a first layer with a spectral gap, in one without, and in
# deeper layers, whose inputs drift.
GAP_DIRECTIONS, BLURRED_DIRECTIONS, DRIFTING_DIRECTIONS = 1.0, 2.0, 4.0
# Shares of a row space's dimension: the k that leaves outsiders room, and the largest that tells anything.
PREFERRED_SHARE, LARGEST_SHARE = 0.4, 0.9
FEWEST_REFERENCES = 50  # images that s and ḡ are estimated from
BATCH = 256  # images at a time: patches of a convolution take memory
FALSE_POSITIVES = (1e-3, 1e-2)  # at which true-positive rates are reported


@dataclass(frozen=True)
class RoundTest:
    """The row spaces that test images in one round.

    initial: the parameters that were sent.
    rows: layer -> (k, in + 1), orthonormal, the leading row space of its update.
    centres: layer -> ḡ (in + 1,), where it is not 0.
    """

    initial: State
    rows: dict[str, Tensor]
    centres: dict[str, Tensor]


@dataclass(frozen=True)
class MembershipTest:
    """Computes ρ of any image against the updates of an observation.

    model, shape: the architecture and its input (C, H, W).
    rounds: those in which a layer tells images apart.
    num_private: N as it is used.
    warnings: on N.
    """

    model: nn.Module
    shape: tuple[int, int, int]
    rounds: tuple[RoundTest, ...]
    num_private: int
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, observation: Observation, knowledge: Knowledge, candidates: Tensor | None = None) -> "MembershipTest":
        """Read the row spaces off the updates.

        num_private is used where known, else inferred from the first layer. Reference images are public_images where
        known, else the candidates (Q, C, H, W) that are to be told apart. Raises InputError where neither gives N.
        """
        inferred = infer_image_count(observation)
        has_gap = inferred is not None and inferred.has_spectral_gap
        if inferred is None:
            knowledge.require("member", "num_private", because="no trained layer sees the images")
        elif inferred.count == 0:
            knowledge.require("member", "num_private", because="the first layer's update shows no image")
        count = knowledge.num_private or (inferred.count if inferred is not None else 0)
        warnings = []
        if not has_gap and knowledge.num_private is None:
            guess = f"{count} private images is a guess (local Adam, noise, or more images than their rank)"
            remedy = "tell num_private, which FedAvg's clients report"
            warnings.append(f"the first layer's spectrum has no clear gap: {guess}; {remedy}")
        reference = knowledge.public_images if knowledge.public_images is not None else candidates
        observation = observation.with_own_model(observation.final[observation.trainable[0]].device)
        rounds = [_round_test(observation, pair, count, has_gap, reference) for pair in range(len(observation.pairs))]
        told = tuple(test for test in rounds if test.rows)
        if not told:
            raise InputError(
                f"member: no layer of model {type(observation.model).__name__!r} has a row space that {count} images "
                "leave room in: nothing tells private images from others"
            )
        return cls(observation.model, observation.input_shape, told, count, tuple(warnings))

    def residual(self, images: Tensor) -> Tensor:
        """Compute the geometric mean of ρ over layers, (Q,), for images (Q, C, H, W) in the model's input space."""
        if images.ndim != 4 or tuple(images.shape[1:]) != self.shape:
            expected = f"(number, {', '.join(map(str, self.shape))})"
            raise InputError(f"member: candidates have shape {tuple(images.shape)}, expected {expected}")
        parts = [self._log_residuals(batch).mean(0) for batch in images.split(BATCH)]
        return torch.cat(parts).exp() if parts else images.new_zeros(0)

    def _log_residuals(self, images: Tensor) -> Tensor:
        """Compute log ρ, (layers of all rounds, Q)."""
        logs = []
        for test in self.rounds:
            inputs = layer_inputs(self.model, test.initial, images, list(test.rows))
            for name, rows in test.rows.items():
                points = inputs[name].double()
                missed = points - points @ rows.T @ rows
                points = points - test.centres[name] if name in test.centres else points
                share = missed.square().sum((1, 2)) / points.square().sum((1, 2))
                logs.append(share.clamp_min(torch.finfo(torch.float64).tiny).log())
        return torch.stack(logs)


@dataclass(frozen=True)
class TruePositives:
    """The true-positive rate at a false-positive rate, with its exact 95 % interval; NaN of too few outsiders."""

    rate: float = float("nan")
    interval: Interval = UNKNOWN

    @classmethod
    def at(cls, false_positives: float, members: Tensor, outsiders: Tensor) -> "TruePositives":
        """Compute it from residuals of members (N,) and of at least 1 / `false_positives` outsiders (Q,)."""
        allowed = math.floor(false_positives * len(outsiders) + 1e-9)
        if allowed < 1:
            return cls()
        told = int((members < outsiders.sort().values[allowed]).sum())
        return cls(told / len(members), exact_interval(told, len(members)))


@dataclass(frozen=True)
class MembershipScore:
    """How well residuals tell members from outsiders.

    auc: area under the ROC curve.
    auc_interval: its 95 % confidence interval.
    true_positives, true_positives_1pct: at a false-positive rate of at most 0.1 % and of at most 1 %.
    """

    auc: float
    auc_interval: Interval
    true_positives: TruePositives
    true_positives_1pct: TruePositives

    @classmethod
    def of(cls, members: Tensor, outsiders: Tensor) -> "MembershipScore":
        """Score residuals of members (N,) and of outsiders (Q,); NaN where either is empty. Ties count half."""
        if not len(members) or not len(outsiders):
            return cls(float("nan"), UNKNOWN, TruePositives(), TruePositives())
        below = (members[:, None] < outsiders).double() + 0.5 * (members[:, None] == outsiders).double()
        auc = float(below.mean())
        rates = (TruePositives.at(share, members, outsiders) for share in FALSE_POSITIVES)
        return cls(auc, auc_interval(auc, len(members), len(outsiders)), *rates)

    def columns(self) -> dict[str, float]:
        """Make the membership columns of the leakage table."""
        columns = {"membership_auc": self.auc}
        columns["membership_auc_low"], columns["membership_auc_high"] = self.auc_interval
        for name, told in (("membership_tpr", self.true_positives), ("membership_tpr_1pct", self.true_positives_1pct)):
            columns[name], (columns[f"{name}_low"], columns[f"{name}_high"]) = told.rate, told.interval
        return columns


def layer_inputs(model: nn.Module, state: State, images: Tensor, names: list[str]) -> dict[str, Tensor]:
    """Record the inputs of named linear and convolutional layers, a constant 1 appended: (Q, positions, in + 1) each.

    A linear layer has one position; a convolution's inputs are its patches. A layer used several times in a forward
    pass has the positions of all its uses. One that is fed several rows for an image, as windows or views in one batch,
    is left out: which rows are whose is not known.
    """
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    layers = {name: model.get_submodule(name) for name in names}
    floats = [value for value in state.values() if value.is_floating_point()]  # BatchNorm counts in integers
    widest = reduce(torch.promote_types, (value.dtype for value in floats), torch.float32)  # checkpoints mix them
    there = cast_state(state, floats[0].device, widest)
    for name, given, _ in probe(model, images.to(floats[0].device, widest), layers, there)[1]:
        if len(given) == len(images):
            found[name].append(_points(layers[name], given))
    return {name: torch.cat(points, 1) for name, points in found.items() if points}


def _points(module: nn.Module, given: Tensor) -> Tensor:
    """Return the points [x; 1] that a layer is fed, (Q, positions, in + 1)."""
    if isinstance(module, nn.Conv2d):
        padding = module.padding
        if isinstance(padding, str):
            given = functional.pad(given, module._reversed_padding_repeated_twice)
            padding = (0, 0)
        patches = functional.unfold(given, module.kernel_size, module.dilation, padding, module.stride)
        points = patches.transpose(1, 2)
    else:
        points = given.reshape(len(given), -1, given.shape[-1])
    return torch.cat([points, points.new_ones(*points.shape[:2], 1)], 2)


@dataclass(frozen=True)
class _Layer:
    """One trained layer in one round.

    update: [ΔW | Δb] (out, in + 1).
    positions: vectors that it is given per image.
    sees_pixels: whether it is the first and those are the images themselves.
    """

    name: str
    update: Tensor
    positions: int
    sees_pixels: bool


def _round_test(observation: Observation, pair: int, count: int, has_gap: bool, reference: Tensor | None) -> RoundTest:
    """Find trained layers whose row space has room for N images; after Adam the first one alone, rescaled to pixels."""
    initial = with_batch_statistics(observation.model, *observation.pairs[pair])
    layers = _layers(observation, pair)
    enough = reference is not None and len(reference) >= FEWEST_REFERENCES
    if enough and not has_gap and layers and layers[0].sees_pixels:
        assert reference is not None
        name = layers[0].name
        points = layer_inputs(observation.model, initial, reference, [name])[name][:, 0].double()
        spectrum = Spectrum.of(layers[0].update * points.square().mean(0).sqrt())
        directions = BLURRED_DIRECTIONS * count
        if directions <= PREFERRED_SHARE * min(spectrum.rows, spectrum.columns):
            return RoundTest(initial, {name: spectrum.vectors[: int(directions)].clone()}, {name: points.mean(0)})
    tests = {layer.name: rows for layer in layers if (rows := _rows(layer, count, has_gap)) is not None}
    return RoundTest(initial, tests, {})


def _layers(observation: Observation, pair: int) -> list[_Layer]:
    """Return those of the trained layers that moved, in the order of registration."""
    delta, image = observation.delta(pair), torch.zeros(1, *observation.input_shape)
    names = [
        name
        for name, module in observation.model.named_modules()
        if parameter_names(name)[0] in delta
        and (isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1))
    ]
    given = layer_inputs(observation.model, observation.pairs[pair][0], image, names)
    layers = []
    for i, name in enumerate(name for name in names if name in given):
        update = layer_update(delta, name)
        if parameter_names(name)[1] not in delta:  # a zero column asks nothing of the appended 1
            update = nn.functional.pad(update, (0, 1))
        positions, size = given[name].shape[1:]
        if update.any():
            layers.append(_Layer(name, update, positions, i == 0 and size == image.numel() + 1))
    return layers


def _rows(layer: _Layer, count: int, has_gap: bool) -> Tensor | None:
    """Return the directions (k, in + 1) that N images take in the layer's row space; None where they leave no room."""
    spectrum = Spectrum.of(layer.update)
    room, vectors, per_image = min(spectrum.rows, spectrum.columns), count * layer.positions, DRIFTING_DIRECTIONS
    if layer.sees_pixels:
        per_image = GAP_DIRECTIONS if has_gap else BLURRED_DIRECTIONS
    directions = int(min(per_image * vectors, max(PREFERRED_SHARE * room, vectors)))
    return spectrum.vectors[:directions].clone() if directions <= LARGEST_SHARE * room else None
