"""The span attack on ReLU networks of one hidden layer: each dual takes two values, of which the server knows both.

The first layer's update is [ΔW | Δb] = Σ_i d_i x̃_iᵀ, of rank N, and its column space holds the N duals d_i. No second
layer tells images from other points of the first one's span, as the output layer has no more rows than classes. But it
tells the duals: after one step

    d_i = −η/N · m_i ∘ W₂ᵀ r_i,

m_i the units that image i activates, r_i = p_i − y_i the signal at the outputs. A network that is not yet sure gives
every image of a class nearly the same signal: on every unit the dual is 0 or s·g, g = W₂ᵀ (p − e_k) known for each
class k but for one scale.

**Search** (`two_valued`): of all vectors of the column space those that lie nearest to 0 or s·g on every unit, by turns
of assigning units and projecting, as in k-means; assignments start soft. The last turns fit the signal, too, any W₂ᵀ r,
and any of how W₂ moved. Images still missing lie in the span that those found leave, whose points show zeros of duals.
SPEAR (Dimitrov et al. 2024) and SPEAR++ (Bakarsky et al. 2025) look for sparse vectors, without the other value.
Before all that, images with units of their own are read off (`own_units`): of raw pixels that may be all.

**Acceptance** by what no turn has used: a dual is made as sparse as it gets by its zeros alone (`sparse_duals`), and
counts if it has more of them than chance and choice explain, and if W₂ explains most of the rest, less well after
several steps. Once all N duals are found, they determine every image to the rounding of the parameters; before that,
images with units of their own are returned alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attacks.base import Facts, Progress, Reconstruction
from attacks.interface.errors import InputError
from attacks.span.acceptance import usual_distance
from attacks.span.evidence.pixel_evidence import PixelEvidence
from attacks.span.own_units import OwnUnits, peel
from attacks.span.search.descent import first_of_near
from attacks.span.search.problems import AffineSpan, SpanTest, outside
from attacks.span.sparse_duals import DualSpace, sharpened, sparsest_of_many
from attacks.span.stages import Acceptance, Refusal
from attacks.span.thresholds import CERTAINTY, ONE_HIDDEN, OWN_UNITS, SPARSITY, constants_of
from attacks.span.variants.pixels import FirstLayerVariant, PixelVariant

BATCH = 2**25  # entries of the normal matrices' factors that are held in memory at a time


class OneHiddenEvidence(PixelEvidence):
    """The rank and the row space of the first layer's update."""

    @property
    def testable(self) -> bool:
        """Duals are tested by their zeros."""
        return True

    @cached_property
    def refusal(self) -> Refusal | None:
        refused = super().refusal
        if refused is not None or not self.regime.explained:
            return refused
        return Refusal(
            f"nothing returned: {self.error:.2g} of the first layer's update is what a known defense left, which hides "
            "the zeros of duals; with one hidden layer nothing else tells images from mixtures of them"
        )


@dataclass(frozen=True)
class FoundDuals:
    """What the search has found.

    directions: (F, N), the c of duals that passed.
    signals: (F, 2 C), which W₂ and its change turn into these.
    misfit: (F,), the share of a dual that they leave.
    own: images with units of their own.
    passes: of the search.
    """

    space: DualSpace
    directions: Tensor
    signals: Tensor
    misfit: Tensor
    own: OwnUnits
    passes: int = 0

    @property
    def missing(self) -> int:
        """How many duals were not found."""
        return max(0, self.space.count - len(self.directions))

    @cached_property
    def own_near(self) -> Tensor:
        """(F, K) bool: whether what the duals make of an image is what a unit of its own gave away as one of K."""
        own = self.own.images
        return torch.cdist(self.images(), own) < OWN_UNITS.off * own.norm(dim=1)

    @property
    def complete(self) -> bool:
        """Whether the duals are those of all images: as many, and they give the images that have units of their own.
        One that is a mixture would change all images."""
        return self.space.count == len(self.directions) and bool(self.own_near.any(0).all())

    def from_what_is_left(self, generator: torch.Generator) -> Tensor:
        """Find the sparsest c (M, N) on units that random points of the missing images' span leave inactive."""
        span = AffineSpan.scaled(self.space.remaining_rows(self.directions))
        points = torch.randn(ONE_HIDDEN.points, len(span.directions), generator=generator).to(span.origin)
        rough = self.space.coordinates(span.images(points / max(1, len(span.directions)) ** 0.5))
        known = self.space.coordinates(self.images())
        return sparsest_of_many(self.space, rough, known)

    def sure(self) -> Tensor:
        """Return which images (F,) are certain where no dual is missing: their zeros are units that they leave
        inactive, and determine the dual, and the update's error moves them little. A dual that they leave free may
        hold some of others, whose images are wrong: those that have its zeros, but for the `mixed` that a mixture
        has of its own."""
        space, directions, images = self.space, self.directions, self.images()
        certain = _unmoved(space, images) & (space.contradicted(directions, images) < ONE_HIDDEN.contradicted)
        if space.count == 1:
            return certain
        free = directions[self.free]
        most_shared = SPARSITY.shared_zeros - ONE_HIDDEN.mixed / space.zeros(free)[:, None].clamp_min(1)
        return certain & (space.shared_zeros(free, directions) < most_shared).all(0)

    @cached_property
    def free(self) -> Tensor:
        """(F,) bool: which duals some of their zeros leave free; none of one image."""
        return (self.space.leverage(self.directions) >= CERTAINTY.leverage) & (self.space.count > 1)

    def images(self) -> Tensor:
        """Return the images (F, in), exact where none is missing; else without what the missing ones add."""
        return self.space.images(torch.linalg.pinv(self.directions).T)


@dataclass(frozen=True)
class OneHiddenVariant(FirstLayerVariant[FoundDuals]):
    """Images from the zeros of duals that are found by their two values, in the first round that moved."""

    evidence_type: ClassVar[type[PixelEvidence]] = OneHiddenEvidence

    def __post_init__(self) -> None:
        """Raise InputError where duals have no zeros."""
        if not self.has_zeros:
            raise InputError(
                "attack 'span' needs units that images leave inactive where one layer is hidden: BatchNorm of model "
                f"{type(self.observation.model).__name__!r} normalized by the batch, so that every image leaves a "
                "trace at every unit (use 'gradient_matching')"
            )

    def attack(self, generator: torch.Generator, progress: Progress) -> Reconstruction:
        """Ask the second layer's rows, too, where it has more units than there are images and some are missing: several
        steps blur the signals at the outputs, and of a body whose output layer stays with the client they are others.
        """
        found = super().attack(generator, progress)
        rows = len(self.observation.model.state_dict()[self.network.weights[1]])
        if found.num_inferred is None or not len(found.images) < found.num_inferred < rows:
            return found
        other = PixelVariant(self.observation, self.knowledge, self.options, self.network, self.has_zeros)
        by_rows = other.attack(generator, progress)
        if len(by_rows.images) <= len(found.images):
            return found
        evidence = other.read(generator)
        if self._at_another_size(evidence, by_rows.images.flatten(1).double(), None).any():
            return found
        gaps = [part.values[evidence.count - 1 :] for part in evidence.tests.values()]
        apart = any(len(gap) > 1 and bool(gap[0] > ONE_HIDDEN.told_apart * gap[1]) for gap in gaps)
        if by_rows.facts["certified"] or apart:
            return by_rows
        held = [part for part in (by_rows.images, by_rows.held) if part is not None]
        said = f"{len(by_rows.images)} images are held: of one class, they send alike signals, and show as their mean"
        return replace(found, held=torch.cat(held), warnings=(*found.warnings, said))

    def read(self, generator: torch.Generator) -> PixelEvidence:
        one, ignored = self.observation.one_round()
        evidence = super(OneHiddenVariant, replace(self, observation=one)).read(generator)
        defense = evidence.defense
        return replace(evidence, defense=replace(defense, layers=defense.layers.noting(ignored, {})))

    def search(self, evidence: PixelEvidence, generator: torch.Generator, progress: Progress) -> FoundDuals:
        """Find duals of images with units of their own, and those that pass the sparsity test and agree with W₂, from
        random starts for every class."""
        space, outputs = self._duals(evidence), self._outputs(evidence)
        half = len(outputs) // 2
        own = peel(space, outputs[:half] - outputs[half:] / 2)
        own = own.chosen(_unmoved(space, own.images).nonzero()[:, 0].tolist())
        directions = sharpened(space, normalize(own.duals @ space.left))
        nothing = outputs.new_zeros(len(directions), len(outputs))
        found = FoundDuals(space, directions, nothing, own.sines, own)
        if found.missing:  # its images are no less certain, but its duals may be rough: they have to pass as others do
            nobody = FoundDuals(space, directions[:0], nothing[:0], own.sines[:0], own, -1)
            found = _merged(nobody, directions[:0], directions, outputs)
        first, idle = self._guesses(outputs, space.count), 0
        while found.missing and idle < ONE_HIDDEN.idle_passes and found.passes < self.options.rounds:
            progress(found.passes, self.options.rounds, float(found.missing))
            guesses = _typical(found.signals, first)
            each = self.options.starts // len(guesses) + 1
            starts = torch.randn(len(guesses), each, space.count, generator=generator)
            turns = [part[found.passes % 2] for part in (ONE_HIDDEN.guessed_turns, ONE_HIDDEN.fitted_turns)]
            ends = [
                two_valued(space.left, outputs, guess, start, turns)
                for guess, start in zip(guesses, starts.to(outputs), strict=True)
            ]
            candidates, miss = (torch.cat(part) for part in zip(*ends, strict=True))
            sharp = space.left.new_zeros(0, space.count)
            if idle and 2 * found.missing <= space.count:
                sharp = found.from_what_is_left(generator)
            before, found = len(found.directions), _merged(found, candidates[miss.argsort(stable=True)], sharp, outputs)
            idle = 0 if len(found.directions) > before else idle + 1
        progress(self.options.rounds, self.options.rounds, float(found.missing))
        return found

    def accept(
        self, evidence: PixelEvidence, candidates: FoundDuals, generator: torch.Generator, progress: Progress
    ) -> Acceptance:
        """Accept the images, if all duals are found, whose size the output layer confirms; residual: the share of its
        dual that W₂ does not explain."""
        found = self._by_duals(evidence, candidates)
        images = found.images.double()
        few = evidence.count <= len(self.observation.model.state_dict()[self.network.weights[1]])
        if not len(images) or not (few or candidates.complete):
            return found
        other = self._at_another_size(evidence, images, None if few else candidates.images())
        if not other.any():
            return found
        said = (
            f"{int(other.sum())} images are not returned: the output layer's update holds them at another size, as "
            "where weights and biases learn at different rates (LARS, LAMB, a gradient clipped tensor by tensor)"
        )
        held = torch.cat([found.images[other], found.held.to(found.images)])
        return replace(found, images=found.images[~other], residual=found.residual[~other], reason=said, held=held)

    def _at_another_size(self, evidence: PixelEvidence, images: Tensor, every: Tensor | None) -> Tensor:
        """Return which images (M, in) leave much less of their features outside the output layer's row space if they
        and the 1 beside their features had other sizes, (M,) bool, in the first round. Of more images than it has
        rows: what all of them, `every` (N, in), leave of these."""
        layers, sizes = evidence.defense.layers, ONE_HIDDEN.sizes
        change = layers.second[0]
        rows = torch.linalg.svd(change, full_matrices=False)[2][: evidence.count]
        test = SpanTest(layers.by_round(layers.fed[0])[0], rows[None], self.network.activate)

        def left(size: float) -> Tensor:
            features, found = test.features(size * (images if every is None else every)), []
            for bias in sizes:
                sized = torch.cat([features[:, :-1], bias * features[:, -1:]], 1)
                if every is None:
                    found.append(outside(normalize(sized), rows).square().sum(1))
                else:
                    rest = outside(change, torch.linalg.qr(sized.T)[0].T)
                    found.append(rest.square().sum().expand(len(images)))
            return torch.stack(found)

        found = torch.stack([left(size) for size in sizes])
        plain = sizes.index(1.0)
        return found.flatten(0, 1).amin(0) < ONE_HIDDEN.much_less * found[plain, plain]

    def _by_duals(self, evidence: PixelEvidence, candidates: FoundDuals) -> Acceptance:
        """Accept the images, if all duals are found."""
        number, count = len(candidates.directions), candidates.space.count
        images, misfit = candidates.images().float(), candidates.misfit.float()
        facts: Facts = constants_of(ONE_HIDDEN, OWN_UNITS, SPARSITY) | {
            "rounds": float(candidates.passes),
            "certified": float(number),
            "missing": float(candidates.missing),
        }
        own, known, near = candidates.own, len(candidates.own.images), candidates.own_near
        facts["own_units"] = float(known)
        free = int(candidates.free.sum()) if evidence.rough else 0
        needed = (
            f"{number} of {count} duals were found, and all are needed for images that hold nothing of one another"
            if candidates.missing
            else f"one of the {number} duals that were found is a mixture"
            if not candidates.complete
            else f"{evidence.outside:.2g} of the first layer's update is noise, and {free} of {number} duals stay free"
        )
        if not candidates.complete and known and not evidence.rough:
            reason = f"{known} of {count} images have units of their own, and of the others, {needed}"
            return Acceptance(own.images.float(), own.sines.float(), reason, facts=facts, held=images[~near.any(1)])
        if not candidates.complete or free:
            held = own.images[~near.any(0)].float()
            return Acceptance(images, misfit, None, facts=facts, held=held).withheld(f"nothing returned: {needed}")
        sure = candidates.sure() | near.any(1)
        accepted = Acceptance(images[sure], misfit[sure], None, facts=facts, held=images[~sure])
        nothing = f"nothing returned: the zeros of {number} duals leave all images in doubt"
        return accepted if sure.any() else replace(accepted, reason=nothing)

    def _outputs(self, evidence: PixelEvidence) -> Tensor:
        """Return what the signals at the outputs go back through, for the units that moved: the output layer's weights
        halfway through training, and how they moved, (2 C, W')."""
        layers, name = evidence.defense.layers, self.network.weights[1]
        first, last = (state[name].to(layers.initial) for state in self.observation.one_round()[0].pairs[0])
        scale = 1.0 if layers.norms is None else layers.norms[0][:, 0]
        return (torch.cat([(first + last) / 2, last - first]) * scale)[:, (layers.change != 0).any(1)]

    def _guesses(self, outputs: Tensor, count: int) -> Tensor:
        """Guess the signals (T, 2 C) of classes, prediction less label; of many classes those whose bias rose most."""
        pair = self.observation.one_round()[0].pairs[0]
        sent, returned = (state[self.network.biases[1] or ""].to(outputs) for state in pair)
        labels = torch.eye(len(sent)).to(outputs)
        signals = sent.softmax(0) - labels if len(sent) > 2 else labels[:1] - (len(sent) - 1) * labels[-1:]
        signals = signals[(returned - sent)[: len(signals)].argsort(descending=True, stable=True)[:count]]
        return torch.nn.functional.pad(signals, (0, len(sent)))


def two_valued(
    left: Tensor, outputs: Tensor, signal: Tensor, starts: Tensor, turns: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Find the c (M, N), of unit length, with L c near to 0 or to s · W₂ᵀ r on every unit, distinct, and the share (M,)
    of its square by which it misses these values.

    left: (W, N), L, orthonormal. outputs: (C, W), W₂. signal: (C,), r. starts: (M, N), from hard assignments to the
    softest. turns: how many with this signal, and with fitted ones.
    """
    size = (signal @ outputs).abs()
    even = (size / size.mean()).clamp_min(ONE_HIDDEN.faintest) ** -0.5
    basis, back = torch.linalg.qr(even[:, None] * left)
    rows, values = basis.float(), (even * outputs).float()
    target = (signal.float() @ values).expand(len(starts), -1)
    c = normalize(starts.float())
    widest = torch.linspace(0, ONE_HIDDEN.softness / len(left), len(starts), device=starts.device)[:, None]
    fixed, fitted = turns if len(outputs) <= ONE_HIDDEN.most_outputs else (sum(turns), 0)
    level = (2 / target.square().sum(1, keepdim=True)).sqrt()
    for turn in range(fixed + fitted):
        z = c @ rows.T
        value = level * target
        excess = z * value - value.square() / 2
        width = widest * max(0.0, 1 - turn / (ONE_HIDDEN.soft_share * fixed)) + 1e-9
        active = torch.sigmoid(excess / width)
        if turn < fixed:
            kept = active * target
            level = (z * kept).sum(1, keepdim=True) / kept.square().sum(1, keepdim=True).clamp_min(1e-12)
        else:
            target, level = _fitted(z, active, values) @ values, torch.ones_like(level)
            kept = active * target
        c = normalize(kept @ rows)
    z = c @ rows.T
    miss = torch.minimum(z.square(), (z - level * target).square()).sum(1)
    c = torch.linalg.solve_triangular(back, c.double().T, upper=True).T
    c, best = normalize(c), miss.argsort(stable=True)
    kept = best[_distinct(c[best])]
    return c[kept], miss[kept]


def _fitted(duals: Tensor, active: Tensor, outputs: Tensor) -> Tensor:
    """Fit the signals r (M, C) of least Σ_w a_w (z_w − (W₂ᵀ r)_w)², for a z (M, W), active: (M, W), and W₂ (C, W)."""
    solved = []
    for z, some in zip(*(part.split(max(1, BATCH // outputs.numel())) for part in (duals, active)), strict=True):
        gram = (some[:, None] * outputs) @ outputs.T
        diagonal = gram.diagonal(dim1=1, dim2=2)
        diagonal += 1e-6 * diagonal.mean(1, keepdim=True) + 1e-30
        solved.append(torch.linalg.solve(gram, (z * some) @ outputs.T))
    return torch.cat(solved) if solved else duals[:, :0]


def _unmoved(space: DualSpace, images: Tensor) -> Tensor:
    """Return which images (M, in) the error of the update moves little, (M,) bool: rounding may have lost their biases,
    by which they are scaled."""
    return space.moved_by_noise(images) < CERTAINTY.moved * usual_distance(images)


def _distinct(directions: Tensor) -> Tensor:
    """Return indices of the directions (M, N), unit vectors, best first, not nearly parallel to a better one."""
    return first_of_near((directions @ directions.T).abs() > ONE_HIDDEN.same)


def _merged(found: FoundDuals, rough: Tensor, sharp: Tensor, outputs: Tensor) -> FoundDuals:
    """Return these with those of the sharp directions (·, N) and of the rough ones (·, N), best first, once these are
    made sparse, that pass the sparsity test and whose other entries W₂ explains."""
    space, known = found.space, len(found.directions)
    new = _distinct(torch.cat([found.directions, rough]))
    new = rough[new[new >= known] - known][: SPARSITY.tested_per_missing * found.missing + ONE_HIDDEN.tested]
    directions = torch.cat([found.directions, sharp, sharpened(space, new)])
    duals = directions @ space.left.T
    active = (duals.abs() > space.tolerance(directions)).to(duals)
    signals = _fitted(duals, active, outputs)
    misfit = ((duals - signals @ outputs) * active).norm(dim=1) / duals.norm(dim=1)
    # one image leaves no unit that moved inactive: its update is its dual
    sparse = (space.zeros(directions) > space.explained_zeros) | (space.count == 1)
    usual = misfit[sparse].quantile(0.25) if sparse.any() else misfit.new_tensor(0.0)
    agrees = sparse & (misfit < (ONE_HIDDEN.of_usual_misfit * usual).clamp(*ONE_HIDDEN.misfit))
    kept = agrees.nonzero()[:, 0]
    kept = kept[space.passing(directions[kept])] if space.count > 1 else kept[:1]
    return FoundDuals(space, directions[kept], signals[kept], misfit[kept], found.own, found.passes + 1)


def _typical(signals: Tensor, guesses: Tensor) -> Tensor:
    """Return the guesses (T, C), each as the mean of the signals found (F, C) nearest to it, if there are any."""
    signals = normalize(signals)
    overlaps = signals @ normalize(guesses).T
    nearest = overlaps.abs().argmax(1)
    signals = signals * overlaps.gather(1, nearest[:, None]).sign()
    means = [signals[nearest == k].mean(0) if (nearest == k).any() else own for k, own in enumerate(guesses)]
    return torch.stack(means)
