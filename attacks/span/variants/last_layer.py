"""What the last layer was fed, of any network that ends in a softmax: its features, or the pixels of a client's images.

One step of SGD on the cross-entropy moves a last layer z ↦ W z + b by ΔW = c Σ_i δ_i z_iᵀ and Δb = c Σ_i δ_i, with
δ_i = softmax(W z_i + b) − e_y for the class y of image i, and c = −η / N for N images. So the rows of [ΔW, Δb] span the
[z_i; 1] and its columns the δ_i. W and b were sent. A private z is a point of the row space that sends, with one of the
C classes, a δ of the column space:

    ρ(z, y) = ‖(I − U Uᵀ) δ‖² / ‖δ‖²

That is C − 1 − N equations for N − 1 unknowns. Since each image takes the same part of the update, c δ zᵀ, by which its
rank falls by one, 1 / c = δᵀ [ΔW, Δb]⁺ [z; 1] is the same number for all of them, and that of two images is 0:
mixtures have others.

The search starts from means of the z of each class, which the rows of an update are known to tell approximately
(*Instance-wise Batch Label Restoration via Gradients in Federated Learning*, ICLR 2023).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.base import Facts, Progress, Reconstruction
from attacks.interface.observation import Observation, State
from attacks.networks.probing import linear_layers, parameter_names, probe, random_images
from attacks.span.maps.update import patch_rank, rounding_of
from attacks.span.search.descent import first_of_near
from attacks.span.stages import Acceptance, Refusal, Variant
from attacks.span.thresholds import LAST_LAYER, constants_of
from attacks.update.spectrum import Spectrum


@dataclass(frozen=True)
class SoftmaxUpdate:
    """The update [ΔW, Δb] (C, D + 1) of a last layer, as far as it stands out of rounding.

    sent: (C, D + 1), [W, b].
    columns, values, rows: (C, N), (N,) and (N, D + 1), its singular vectors and values.
    noise: the largest singular value behind them.
    warnings: on other rounds.
    """

    sent: Tensor
    columns: Tensor
    values: Tensor
    rows: Tensor
    noise: float
    warnings: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """N, the number of images, if they are few enough to be told apart."""
        return len(self.values)

    @property
    def refusal(self) -> Refusal | None:
        """Why there is nothing to search."""
        classes = len(self.sent)
        if 0 < self.count <= (classes - 1) // 2:
            return None
        return Refusal(f"nothing returned: no gap shows one step on at most {(classes - 1) // 2} images")

    def outside(self, signals: Tensor) -> Tensor:
        """Return what of signals (…, C) lies outside the column space."""
        return signals - signals @ self.columns @ self.columns.T


@dataclass(frozen=True)
class Points:
    """Points of the affine plane in the row space whose last entry is 1, by their coordinates in it.

    origin: (N,), that of the least length, in terms of the rows.
    axes: (N − 1, N), along which points move.
    scores: (N, C), those of the rows.
    """

    update: SoftmaxUpdate
    origin: Tensor
    axes: Tensor
    scores: Tensor

    @classmethod
    def of(cls, update: SoftmaxUpdate) -> "Points":
        last = update.rows[:, -1]
        axes = torch.linalg.svd(last[None])[2][1:]
        return cls(update, last / last.square().sum(), axes, update.rows @ update.sent.T)

    def in_rows(self, points: Tensor) -> Tensor:
        """Return points (S, N − 1) in terms of the rows, (S, N)."""
        return self.origin + points @ self.axes

    def signals(self, points: Tensor, label: int) -> Tensor:
        """Compute δ (S, C) of points (S, N − 1) with a class."""
        softmax = torch.softmax(self.in_rows(points) @ self.scores, -1)
        softmax[:, label] -= 1
        return softmax

    def slopes(self, points: Tensor) -> Tensor:
        """Compute the derivatives (S, C, N − 1) of what of δ lies outside the column space."""
        softmax = torch.softmax(self.in_rows(points) @ self.scores, -1)
        moved = (self.axes @ self.scores).T
        slopes = softmax[:, :, None] * (moved - (softmax @ moved)[:, None])
        return self.update.outside(slopes.transpose(1, 2)).transpose(1, 2)

    def starts(self) -> list[tuple[int, Tensor]]:
        """Return (class, point (N − 1,)) for every class, by ρ. The point is near the mean of the images of the class,
        which its row of the update holds beside what all rows have."""
        update = self.update
        whole = update.columns * update.values
        found = []
        for label, row in enumerate(whole - whole.median(0).values):
            weight = float(row @ update.rows[:, -1])
            near = row / weight if abs(weight) > LAST_LAYER.least_weight * float(row.norm()) else self.origin
            point = (near - self.origin) @ self.axes.T
            found.append((float(self.rho(point[None], label)), label, point))
        return [(label, point) for _, label, point in sorted(found, key=lambda one: one[0])]

    def rho(self, points: Tensor, label: int) -> Tensor:
        """Compute ρ (S,)."""
        signals = self.signals(points, label)
        return self.update.outside(signals).square().sum(1) / signals.square().sum(1)

    def descended(self, points: Tensor, label: int) -> Tensor:
        """Lower ρ from points (S, N − 1) by Levenberg and Marquardt's method."""
        damping = points.new_full((len(points),), LAST_LAYER.damping)
        for _ in range(LAST_LAYER.steps if points.shape[1] else 0):
            slopes, left = self.slopes(points), self.update.outside(self.signals(points, label))
            normal = slopes.transpose(1, 2) @ slopes
            scale = (damping * normal.diagonal(dim1=1, dim2=2).mean(1)).clamp_min(LAST_LAYER.tiny)
            normal = normal + torch.diag_embed(scale[:, None].expand(-1, points.shape[1]))
            moved = points - torch.linalg.solve(normal, (slopes.transpose(1, 2) @ left[:, :, None]))[:, :, 0]
            better = self.rho(moved, label) < self.rho(points, label)
            points = torch.where(better[:, None], moved, points)
            damping = torch.where(better, damping / 5, damping * 4).clamp(1e-14, 1e8)
        return points

    def errors(self, points: Tensor, label: int) -> Tensor:
        """Bound the relative errors (S,) of points: what rounding leaves of them in the row space, and where it moves
        the δ of their own. Infinite where more of δ lies outside the column space than rounding leaves there."""
        update, signals, rows = self.update, self.signals(points, label), self.in_rows(points)
        blurred = update.noise * (signals @ update.columns / update.values).norm(dim=1)
        own = update.noise * (rows / update.values).norm(dim=1)
        missed = update.outside(signals).norm(dim=1)
        if points.shape[1]:
            own = own + torch.maximum(blurred, missed) / torch.linalg.svdvals(self.slopes(points))[:, -1]
        return torch.where(missed < LAST_LAYER.margin * blurred, own / rows.norm(dim=1), math.inf)


class Fed(NamedTuple):
    """What the layer was fed of private images.

    points: (F, D + 1), the last entry 1.
    classes: (F,), of their images.
    """

    points: Tensor
    classes: Tensor

    def beside(self, other: "Fed") -> "Fed":
        """Add those of the other that are none of these."""
        both = Fed(*map(torch.cat, zip(self, other, strict=True)))
        near = torch.cdist(both.points, both.points) <= LAST_LAYER.apart * both.points.norm(dim=1)
        return both.at(first_of_near(near))

    def of_one_update(self, update: SoftmaxUpdate) -> "Fed":
        """Keep those whose c is that of most, and which hold nothing of each other's part: δ_iᵀ [ΔW, Δb]⁺ [z_j; 1] is
        1 / c for i = j, and else 0. It is not where labels were blended, as by mixup, and two points with a class each
        send what two images sent together. To be compared, there have to be two."""
        signals = torch.softmax(self.points @ update.sent.T, -1)
        signals = signals - F.one_hot(self.classes, len(update.sent))
        parts = (signals @ update.columns / update.values) @ (self.points @ update.rows.T).T
        own = parts.diagonal()
        usual = own.median() if len(own) else own.new_zeros(())
        alike = ((usual / own - 1).abs() < LAST_LAYER.same_share) & (own < 0)
        shared = ((parts / usual).abs() > LAST_LAYER.most_shared) & alike & alike[:, None]
        shared.fill_diagonal_(False)
        kept = alike & ~(shared | shared.T).any(1)
        return self.at(kept if int(kept.sum()) > 1 else torch.zeros_like(kept))

    def at(self, kept: Tensor) -> "Fed":
        """Return those of the indices, or of the mask, `kept`."""
        return Fed(*(part[kept] for part in self))


@dataclass(frozen=True)
class LastLayerVariant(Variant[SoftmaxUpdate, Fed]):
    """What the last layer was fed of the images of one step, where no other variant suits the network.

    Only the first round whose update is not zero is used. Nothing has to be known. Images come back where the layer is
    fed their pixels, else features.

    layer: its name.
    of_pixels: whether it is fed the flattened images as they are.
    others: why no other variant suits.
    """

    observation: Observation
    layer: str
    of_pixels: bool
    others: str

    def read(self, generator: torch.Generator) -> SoftmaxUpdate:
        """Read the update and its rank, weight decay undone."""
        observation, warnings = self.observation.one_round()
        sent, returned = (_augmented(state, self.layer) for state in observation.pairs[0])
        change = _without_decay(sent, returned)
        spectrum = Spectrum.of(change)
        rank = patch_rank(spectrum, rounding_of(returned.float()))
        columns, values, rows = torch.linalg.svd(change, full_matrices=False)
        noise = float(values[rank]) if rank < len(values) else 0.0
        return SoftmaxUpdate(sent, columns[:, :rank], values[:rank], rows[:rank], noise, warnings)

    def search(self, evidence: SoftmaxUpdate, generator: torch.Generator, progress: Progress) -> Fed:
        """Find points of the row space whose δ lies in the column space, class by class."""
        points = Points.of(evidence)
        found, starts, idle = Fed(evidence.rows[:0], torch.zeros(0, dtype=torch.long)), points.starts(), 0
        for done, (label, start) in enumerate(starts):
            progress(done, len(starts), math.nan)
            ends = points.descended(_around(start, points, generator), label)
            ends = ends[points.rho(ends, label).argsort(stable=True)]
            ends = ends[points.errors(ends, label) < LAST_LAYER.most_error]
            labels, before = torch.full((len(ends),), label), len(found.points)
            found = found.beside(Fed(points.in_rows(ends) @ evidence.rows, labels))
            idle = 0 if len(found.points) > before else idle + 1
            if len(found.points) >= evidence.count or idle >= LAST_LAYER.idle:
                break
        progress(len(starts), len(starts), math.nan)
        return found if evidence.count == 1 else found.of_one_update(evidence)

    def accept(
        self, evidence: SoftmaxUpdate, candidates: Fed, generator: torch.Generator, progress: Progress
    ) -> Acceptance:
        """Accept all that was found, as images where the layer is fed pixels."""
        fed, name = candidates.points[:, :-1].float(), self.layer
        facts: Facts = {**constants_of(LAST_LAYER), "layer": name, "used_num_private": float(evidence.count)}
        nothing = fed.new_zeros(0)
        if not len(fed):
            reason = f"nothing returned: {self.others}; and nothing that {name!r} may have been fed explains its update"
            return Acceptance(nothing, nothing, reason, facts=facts)
        classes = sorted(candidates.classes.tolist())
        facts["classes"] = " ".join(map(str, classes))
        if self.of_pixels:
            missing = None if len(fed) == evidence.count else f"{len(fed)} of {evidence.count} images found"
            return Acceptance(fed, fed.new_zeros(len(fed)), missing, facts=facts)
        found = f"what {name!r} was fed of {len(fed)} images was found, where its update has rank {evidence.count}"
        known = f"and their classes: {', '.join(map(str, classes))}"
        reason = f"no image is returned: {found}, {known} ({self.others})"
        return Acceptance(nothing, nothing, reason, facts=facts, features=fed)

    def report(self, evidence: SoftmaxUpdate, acceptance: Acceptance) -> Reconstruction:
        """Return the images or the features. residual: 0, as all passed every test."""
        return acceptance.reported(self.observation.input_shape, evidence.warnings, num_inferred=evidence.count)


def last_layer_of(observation: Observation, others: str) -> LastLayerVariant | None:
    """Return the variant where the others do not suit; None unless the network ends in a trained layer whose update is
    that of few images in one step. others: why they do not."""
    found = find_last_layer(observation)
    if found is None or not observation.pairs_that_move(parameter_names(found[0])):
        return None
    variant = LastLayerVariant(observation, *found, others)
    return None if variant.read(torch.Generator()).refusal is not None else variant


def find_last_layer(observation: Observation) -> tuple[str, bool] | None:
    """Return (the linear layer, trained with a bias, whose outputs are the scores up to a softmax, whether it is fed
    the flattened images); None if there is none, or fewer than three classes."""
    model, images = observation.model, random_images(observation.input_shape, 2)
    layers = {name: layer for name, layer in linear_layers(model).items() if layer.bias is not None}
    scores, calls = probe(model, images, layers)
    for name, given, made in calls:
        if given.dim() != 2 or made.shape != scores.shape or made.shape[1] < 3:
            continue
        plain = F.linear(given, layers[name].weight, layers[name].bias)
        same = [torch.softmax(one, 1) for one in (plain, made, scores)]
        if not all(torch.allclose(one, same[0], atol=1e-5) for one in same):
            continue
        once = sum(call.name == name for call in calls) == 1
        if once and set(parameter_names(name)) <= observation.moved:
            return name, torch.equal(given.cpu(), images.flatten(1))
    return None


def _augmented(state: State, layer: str) -> Tensor:
    """Return [W, b] (C, D + 1) in float64 on the CPU."""
    weight, bias = (state[name].double().cpu() for name in parameter_names(layer))
    return torch.cat([weight, bias[:, None]], 1)


def _without_decay(sent: Tensor, returned: Tensor) -> Tensor:
    """Return the update (C, D + 1) less what weight decay took off: over classes, δ adds up to zero, so that sums of
    parameters shrink by decay alone."""
    before, after = sent.sum(0), returned.sum(0)
    factor = before[:-1] @ after[:-1] / before[:-1].square().sum().clamp_min(LAST_LAYER.tiny)
    change = returned - sent
    for part in (slice(-1), slice(-1, None)):  # biases may be exempt
        if (after - factor * before)[part].norm() < LAST_LAYER.decay_drop * (after - before)[part].norm():
            change[:, part] = (returned - factor * sent)[:, part]
    return change


def _around(start: Tensor, points: Points, generator: torch.Generator) -> Tensor:
    """Return the start and points about it, (S, N − 1), at distances up to twice its length."""
    count = LAST_LAYER.starts
    spread = torch.logspace(-1.5, 0.3, count, dtype=start.dtype)
    spread[0] = 0
    length = points.in_rows(start[None]).norm() / max(1, len(start)) ** 0.5
    drawn = torch.randn(count, len(start), generator=generator).to(start)
    return start + spread[:, None] * length * drawn
