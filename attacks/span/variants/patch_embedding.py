"""The span attack on vision transformers: the image of a client of one, in closed form.

The inputs of a patch embedding z_p = W x_p + b + e_p are pixels, which stay where they are while a network trains. So
for any number of SGD steps, with momentum, and batches that all hold the same image,

    ΔW = Σ_p δ_p x_pᵀ,    Δb = Σ_p δ_p,    ΔE_p = δ_p,

δ_p the sum over the steps of the signal at position p. The update of the learned positions *is* δ, and one least
squares, ΔW = ΔEᵀ X, gives every pixel. APRIL (Lu et al. 2022) solves for embedded tokens, of one step.

**Weight decay** multiplies a parameter by a factor of its own beside: (κ − 1) W, (κ' − 1) b and (κ'' − 1) E are added.
Gradients keep Δb = Σ_p ΔE_p, so what breaks this equation is (κ' − 1) b − (κ'' − 1) Σ_p e_p: one number where both
decay, or one of them alone, as where a recipe exempts biases or positions. (κ − 1) of W is what lies along W in the
directions of the width that no δ_p reaches, whether or not the other two decay.

**Three tests** accept. The equation Δb = Σ_p ΔE_p holds for SGD alone. The residual of the least squares is rounding
for one image, and of the update's own size for several; an image is judged by the error to be expected of a pixel from
it. Both hold of other pixels where W's gradient alone was made orthogonal, so Muon is told (the largest singular values
of ΔW are alike).

Several images after one step are searched (`attacks.span.variants.several_patches`).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.base import Facts, Progress, Reconstruction
from attacks.interface.errors import InputError
from attacks.interface.observation import Observation
from attacks.networks.vision_transformer import PatchEmbedding
from attacks.span.stages import Acceptance, Refusal, Variant
from attacks.span.thresholds import PATCHES, constants_of
from attacks.span.variants.several_patches import several_of
from attacks.update.spectrum import TINY, Spectrum


@dataclass(frozen=True)
class PatchUpdate:
    """The updates of a patch embedding and of learned positions, without weight decay, in float64, and what shows how
    many images they hold.

    weight: ΔW (D, n).
    positions: ΔE (P, D), the sum over images of their signals δ_np.
    bias_misfit: ‖Δb − Σ_p ΔE_p‖ / ‖Δb‖, what no weight decay explains of it; None without a trained bias.
    rank: of [ΔW | Δb].
    decay: 1 − κ of W.
    """

    weight: Tensor
    positions: Tensor
    bias_misfit: float | None
    rank: int
    decay: float
    ignored: tuple[str, ...] = ()

    @property
    def count(self) -> int | None:
        """N, where the rank N·P shows it: P patches of each image, as long as a patch has more pixels."""
        number = self.rank / len(self.positions)
        return int(number) if number >= 1 and number.is_integer() and self.rank < min(self.weight.shape) else None

    @property
    def altered(self) -> str | None:
        """What was done to the weight's gradient alone, if one image was fed: least squares with the positions' leave
        nothing then either, but tell other pixels. Patches of images are unlike."""
        values = torch.linalg.svdvals(self.weight)[: min(4, len(self.positions))]
        if values[0] < PATCHES.alike * values[-1]:
            return "its largest singular values are alike, as Muon makes them: pixels are lost"
        return None

    @property
    def refusal(self) -> Refusal | None:
        """Why the update is not one of SGD; how many images it holds the least squares say."""
        misfit = self.bias_misfit
        if misfit is not None and not misfit < PATCHES.bias_misfit:
            return Refusal(
                f"nothing returned: the update of the patch embedding's bias misses the sum of those of the positions "
                f"by {misfit:.2g} of its size, which are equal under SGD on all patches (Adam, noise, or patches that "
                "were masked?)"
            )
        return None


@dataclass(frozen=True)
class SolvedPatches:
    """The patches of an image, by least squares.

    patches: X (P, n).
    misfit: ‖ΔW − ΔEᵀX‖ / ‖ΔW‖.
    error: standard error of an entry of X.
    """

    patches: Tensor
    misfit: float
    error: float


@dataclass(frozen=True)
class PatchVariant(Variant[PatchUpdate, SolvedPatches]):
    """One least squares in the update, of the first round that moved, of a patch embedding and its positions."""

    observation: Observation
    embedding: PatchEmbedding

    def __post_init__(self) -> None:
        """Raise InputError for a network whose update holds no such least squares."""
        model, own = f"model {type(self.observation.model).__name__!r}", self.embedding
        if own.positions is None:
            raise InputError(
                "attack 'span' needs positions that are learned and added to patches, or a convolution of more output "
                "channels than positions, and a ReLU or the like between it and a later layer: neither was found in "
                f"{model} (use 'ntk')"
            )
        if missing := {own.weight, own.positions} - self.observation.moved:
            raise InputError(
                "attack 'span' needs the patch embedding and the positions trained: "
                f"{model} has {', '.join(sorted(missing))} frozen, or returned as sent (use 'ntk')"
            )
        count, width = len(own.source), len(self.observation.initial[own.weight])
        if count >= width:
            raise InputError(
                f"attack 'span' needs fewer patches than the width of a token: {model} has {count} of {width} numbers "
                "(use 'ntk')"
            )

    def attack(self, generator: torch.Generator, progress: Progress) -> Reconstruction:
        """Find the image; where the update is not that of one, the images that later layers tell."""
        found = super().attack(generator, progress)
        if len(found.images):
            return found
        evidence, alone = self.read(generator), found.relative_residual < PATCHES.misfit
        if evidence.refusal is not None or (alone and evidence.altered is not None):
            return found
        several = several_of(self.observation, self.embedding)
        if several is None:
            return found
        others = several.attack(generator, progress)
        return replace(others, num_inferred=others.num_inferred or found.num_inferred)

    def read(self, generator: torch.Generator) -> PatchUpdate:
        """Read the updates of the embedding and of its positions, without weight decay."""
        observation, ignored = self.observation.one_round()
        own, initial, delta = self.embedding, observation.initial, observation.delta()
        assert own.positions is not None and own.rows is not None
        positions, sent = (
            state[own.positions].double().reshape(-1, len(initial[own.weight]))[own.rows] for state in (delta, initial)
        )
        misfit, bias, factor = None, positions.sum(0), 0.0
        if own.bias in delta and own.bias in observation.moved:
            assert own.bias is not None
            rest = _without_decay(positions, sent, delta[own.bias], initial[own.bias].double())
            positions, bias, misfit, factor = rest
        if not positions.any():
            raise InputError("the update of the learned positions is zero: there is nothing to attack")
        weight, start = (state[own.weight].double().flatten(1) for state in (delta, initial))
        rank = Spectrum.of(torch.cat([weight - factor * start, bias[:, None]], 1)).count()
        # directions of the width that no δ reaches: nothing but weight decay moves W there
        unreached = torch.linalg.svd(positions.T, full_matrices=True)[0][:, len(positions) :].T
        along = unreached @ start
        factor = float((unreached @ weight * along).sum() / along.square().sum().clamp_min(TINY))
        return PatchUpdate(weight - factor * start, positions, misfit, rank, -factor, ignored)

    def search(self, evidence: PatchUpdate, generator: torch.Generator, progress: Progress) -> SolvedPatches:
        """Find the patches X that leave least of ΔW − ΔEᵀX, and how far off their entries have to be expected."""
        signals = evidence.positions.T
        patches = torch.linalg.lstsq(signals, evidence.weight, driver="gelsd").solution
        left = evidence.weight - signals @ patches
        spare = left.numel() - patches.numel()
        deviation = float(left.norm()) / spare**0.5
        spread = torch.linalg.svdvals(signals).square().reciprocal().mean().sqrt()
        return SolvedPatches(patches, float(left.norm() / evidence.weight.norm()), deviation * float(spread))

    def accept(
        self, evidence: PatchUpdate, candidates: SolvedPatches, generator: torch.Generator, progress: Progress
    ) -> Acceptance:
        """Accept the image, if least squares leave no more than rounding. residual: expected error of a pixel."""
        image = self.embedding.images(candidates.patches[None], self.observation.input_shape)
        facts: Facts = constants_of(PATCHES) | {
            "patches": float(len(evidence.positions)),
            "decay": evidence.decay,
            "pixel_error": candidates.error,
            "bias_misfit": float("nan") if evidence.bias_misfit is None else evidence.bias_misfit,
        }
        residual = image.new_full((1,), candidates.error)
        accepted = Acceptance(image, residual, None, candidates.misfit, facts)
        if candidates.misfit < PATCHES.misfit and candidates.error < PATCHES.pixel_error:
            altered = evidence.altered
            said = f"nothing returned: one image explains the patch embedding's update, but {altered}"
            return accepted if altered is None else accepted.withheld(said)
        number = (
            f"the update shows {evidence.count} images"
            if (evidence.count or 1) > 1
            else "several images, noise or rounding?"
        )
        return accepted.withheld(
            f"nothing returned: one image leaves {candidates.misfit:.2g} of the patch embedding's update, and its "
            f"pixels are off by {candidates.error:.2g} ({number})"
        )

    def report(self, evidence: PatchUpdate, acceptance: Acceptance) -> Reconstruction:
        """Return the image with the error to be expected of its pixels as residual; a held one where tests say no."""
        count = 1 if len(acceptance.images) else evidence.count
        facts = acceptance.facts | {"rank": float(evidence.rank)}
        return acceptance.reported(self.observation.input_shape, evidence.ignored, num_inferred=count, facts=facts)


def _without_decay(
    positions: Tensor, sent: Tensor, bias: Tensor, bias_sent: Tensor
) -> tuple[Tensor, Tensor, float, float]:
    """Return (ΔE (P, D), Δb (D,), ‖Δb − Σ_p ΔE_p‖ / ‖Δb‖, κ − 1), with the decay taken off that explains nearly all of
    that difference, if one does: of both, of the bias alone or of the positions alone. sent, bias_sent: E and b as
    sent."""

    def misfit(own: Tensor, other: Tensor) -> float:
        return float((other - own.sum(0)).norm() / other.norm().clamp_min(TINY))

    best = plain = positions, bias, misfit(positions, bias), 0.0
    for of_positions, of_bias in ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0)):
        way = of_bias * bias_sent - of_positions * sent.sum(0)
        factor = float(way @ (bias - positions.sum(0)) / (way @ way).clamp_min(TINY))
        own, other = positions - of_positions * factor * sent, bias - of_bias * factor * bias_sent
        if (left := misfit(own, other)) < best[2]:
            best = own, other, left, factor
    return best if best[2] < PATCHES.explained * plain[2] else plain
