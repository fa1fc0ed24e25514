"""Images from a noisy update: least squares under the zeros that rough images predict for their duals.

Noise hides which duals are zero, so that none passes the sparsity test. The pattern remains: image i contributes
nothing to a unit that it leaves inactive by a margin. The images are the least squares

    min ‖[ΔW | Δb] − Σ_i d_i x̃_iᵀ‖²  with d_i zero on those units,

over d and x̃ in turn: the maximum likelihood for Gaussian noise of equal variance. Without the zeros it would be the
singular value decomposition, in which any mixture of images does as well.

The span attack on plain MLPs: the images themselves lie in the row space of the first layer's update.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.base import Facts, Progress, Reconstruction
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.networks.mlp import DenseNetwork, read_dense_network
from attacks.span.acceptance import Acceptance, ExplanationTest, certainty
from attacks.span.evidence.known_defense import undo_defense
from attacks.span.evidence.layers import FirstLayers, normalizes_by_batch, rounds_with_images
from attacks.span.evidence.pixel_evidence import PixelEvidence, RoundsApart, looks_like_adam
from attacks.span.search.candidates import Candidates, SearchOptions, find_images
from attacks.span.search.descent import beside, extreme_images
from attacks.span.search.problems import SpanTest
from attacks.span.sparse_duals import DualSpace
from attacks.span.thresholds import (
    ACCEPTANCE,
    CERTAINTY,
    DECOY,
    DUAL,
    EVIDENCE,
    EXTREME,
    FIT,
    SEARCH,
    SPARSITY,
    constants_of,
)
from attacks.update.intervals import EntryIntervals
from attacks.update.spectrum import Spectrum, group_views

BATCH = 2**25  # entries of the normal matrices that are held in memory at a time


def fit_images(
    update: Tensor, first: Tensor, images: Tensor, count: int, intervals: EntryIntervals | None = None
) -> tuple[Tensor, float]:
    """The images (M, in) that fit the update, from rough ones (M, in), and ‖Δ − Σ d x̃ᵀ‖ / ‖Δ‖, in float64.

    update: (W, in + 1), [ΔW | Δb]. first: (W, in + 1), [W₁ | b₁] at the initial parameters. count: N; where M < N the
    rest of the update is left to N − M rows without zeros. intervals: of Δ's entries, where they are all that is known:
    Δ is then the point of the intervals that is nearest to the sum, in turn with the other two.
    """
    update, first = update.double(), first.double()
    number = len(images)
    points = torch.nn.functional.pad(images.double(), (0, 1), value=1.0)
    idle = _idle(points, first, first + update)
    duals = _masked_duals(update, points, idle)
    if count > number:
        rest = torch.linalg.svd(update - duals @ points, full_matrices=False)[2][: count - number]
        points = torch.cat([points, rest * points.norm(dim=1).mean()])
        idle = torch.cat([idle, idle.new_zeros(len(idle), count - number)], 1)
    for i in range(FIT.iterations if intervals is None else FIT.iterations_in_intervals):
        if intervals is not None and i:
            update = intervals.nearest(duals @ points)
        duals = _masked_duals(update, points, idle)
        points = _solved(duals.T @ duals, duals.T @ update)
        points[:number] /= points[:number, -1:].clone()
        if i % FIT.zeros_kept == FIT.zeros_kept - 1:
            idle[:, :number] = _idle(points[:number], first, first + duals @ points)
    duals = _masked_duals(update, points, idle)
    left = (update if intervals is None else intervals.nearest(duals @ points)) - duals @ points
    return points[:number, :-1], float(left.norm() / update.norm())


def _idle(points: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Which units x̃ (M, in + 1) leaves inactive by the margin at both ends: (W, M) bool."""
    inputs = torch.maximum(points @ first.T, points @ last.T)
    return (inputs < -FIT.inactive_margin * inputs.square().mean(1, keepdim=True).sqrt()).T


def _masked_duals(update: Tensor, points: Tensor, idle: Tensor) -> Tensor:
    """The d (W, M) of least ‖Δ − d x̃‖ that are zero where idle, from one small system per unit."""
    gram, right = points @ points.T, update @ points.T
    found = torch.empty_like(right)
    for units in torch.arange(len(update), device=update.device).split(max(1, BATCH // gram.numel())):
        active = (~idle[units]).to(gram.dtype)
        systems = gram * active[:, :, None] * active[:, None, :]
        systems.diagonal(dim1=1, dim2=2).add_(1 - active)
        found[units] = _solved(systems, (right[units] * active)[:, :, None])[:, :, 0]
    return found


def _solved(gram: Tensor, right: Tensor) -> Tensor:
    """Solutions of normal equations, to whose diagonal a ridge is added in place."""
    diagonal = torch.diagonal(gram, dim1=-2, dim2=-1)
    diagonal.add_(FIT.ridge * diagonal.mean(-1, keepdim=True))
    return torch.cholesky_solve(right, torch.linalg.cholesky(gram))


def linear_layers_of(observation: Observation) -> DenseNetwork:
    """The layers of the network; InputError, with what stands in the way, where it is no plain MLP with two trained
    hidden layers, or where BatchNorm behind these was in training mode."""
    network = read_dense_network(observation.model, observation.input_shape)
    model = f"model {type(observation.model).__name__!r}"
    if isinstance(network, str):
        raise InputError(
            "attack 'span' needs a plain MLP of known activations, or two linear layers behind others, trained with "
            f"biases: {model} has neither, but {network} (use 'ntk')"
        )
    if len(network.weights) < 3:
        raise InputError(
            "attack 'span' needs two hidden layers, as the second one tells images from other points of the first "
            f"one's span: {model} has {len(network.weights) - 1} (use 'ntk')"
        )
    needed = [*network.weights[:2], *(bias or "" for bias in network.biases[:2])]
    missing = [name for name in needed if name not in observation.trainable]
    if missing:
        raise InputError(
            f"attack 'span' needs the first two layers trained, with biases: {model} lacks "
            f"{', '.join(name or 'a bias' for name in missing)} (use 'ntk')"
        )
    statistics = [name for norm in network.norms[:2] if norm is not None for name in norm.statistics]
    if missing := [name for name in statistics if any(name not in sent for sent, _ in observation.pairs)]:
        raise InputError(f"attack 'span' needs BatchNorm's statistics: the checkpoint of {model} has no {missing[0]!r}")
    if normalizes_by_batch(observation, network):
        raise InputError(
            f"attack 'span' needs BatchNorm in evaluation mode: that of {model} normalized by the batch, so that the "
            "first layer's update shows differences of the images in a batch only, and every image leaves a trace at "
            "every unit (use 'gradient_matching')"
        )
    return network


@dataclass(frozen=True)
class PixelVariant:
    """Images in the span of the first layer's update, tested by the second layer's and by the zeros of their duals."""

    observation: Observation
    knowledge: Knowledge
    options: SearchOptions
    network: DenseNetwork

    def read(self, generator: torch.Generator) -> PixelEvidence | RoundsApart:
        """The row spaces of the first two layers' updates, without weight decay and what is known of a defense."""
        rounds = rounds_with_images(self.observation, self.network)
        observation = replace(self.observation, pairs=tuple(self.observation.pairs[r] for r in rounds))
        device = next(observation.model.parameters()).device
        layers = FirstLayers.of(observation, self.network, device)
        defense = undo_defense(observation, self.network, self.knowledge, layers, generator)
        spectrum = Spectrum.of(defense.layers.change)
        inferred = spectrum.count()
        if len(rounds) > 1 and not looks_like_adam(defense, spectrum, inferred):
            most = defense.layers.most_images()
            if most < EVIDENCE.shared_images * inferred:
                return RoundsApart(rounds, inferred, most)
        return PixelEvidence.of(
            defense, spectrum, inferred, self.knowledge.num_private, self.network.activation == "relu"
        )

    def search(self, evidence: PixelEvidence, generator: torch.Generator, progress: Progress) -> Candidates:
        """Points of the first layer's span with features in the second layer's, and which pass the sparsity test."""
        layers, tests = evidence.defense.layers, evidence.tests
        rows = torch.stack([part.vectors[: evidence.directions] for part in tests.values()]).float()
        starts, ends = (layers.by_round(end) for end in layers.fed)
        path = evidence.path
        hidden = torch.cat([torch.lerp(starts[r], ends[r], part) for r in tests for part in path]).float()
        rows = rows.repeat_interleave(len(path), 0)
        test = SpanTest(hidden, rows, self.network.activate, evidence.leading_directions)
        sent, returned = layers.initial, layers.final
        duals = DualSpace.of(sent, returned, evidence.spectrum, evidence.count, layers.rounds, layers.fed)
        tested = self.network.activation == "relu" and evidence.zeros_tell
        nothing = Candidates.empty(duals, test, sparsity_tested=tested, crowded=evidence.crowded)
        passes = self.options.rounds if evidence.refusal is None else min(SEARCH.refused_passes, self.options.rounds)
        return find_images(nothing, replace(self.options, rounds=passes), generator, progress)

    def accept(self, evidence: PixelEvidence, candidates: Candidates, generator: torch.Generator) -> Acceptance:
        """The accepted candidates, (M, in) in float32: those that are certain one by one, or, where noise or what was
        completed hides the zeros of duals and blurs the second layer, those that explain its update as a set."""
        facts: Facts = constants_of(ACCEPTANCE, SEARCH, DECOY, SPARSITY, DUAL) | {
            "tests": float(len(evidence.tests)),
            "rounds": float(candidates.passes),
            "accepted_up_to": candidates.threshold,
            "certified": float(len(candidates.passed)),
        }
        noise = evidence.defense.second_noise(list(evidence.tests.values()), evidence.outside)
        update = evidence.defense.layers.second[list(evidence.tests)].float().repeat_interleave(len(evidence.path), 0)
        explaining = ExplanationTest(candidates, update, noise, len(evidence.tests))
        if evidence.error > EVIDENCE.noisy_above or evidence.defense.explains_error:
            acceptance = self._accept_in_noise(evidence, candidates, explaining, generator)
        else:
            acceptance = self._accept_certain(evidence, candidates, explaining, generator)
            facts |= constants_of(CERTAINTY)
            if self._may_be_mixed(evidence, candidates):
                acceptance = self._with_extreme_points(candidates, acceptance, generator)
                facts |= {"extreme": float(len(acceptance.images))} | constants_of(EXTREME)
        images = acceptance.images
        residual, held = candidates.test.residual(images), candidates.held(images)
        acceptance = replace(acceptance, residual=residual, facts=facts | acceptance.facts, held=held)
        return acceptance if acceptance.reason is None else acceptance.withheld(acceptance.reason)

    def _accept_certain(
        self,
        evidence: PixelEvidence,
        candidates: Candidates,
        explaining: ExplanationTest,
        generator: torch.Generator,
    ) -> Acceptance:
        """The images that the second layer and the duals of the others leave no doubt of."""
        layers, tests = evidence.defense.layers, evidence.tests
        starts, ends = (layers.by_round(end)[list(tests)].flatten(0, 1) for end in layers.fed)
        rows = torch.stack([part.vectors[: evidence.directions] for part in tests.values()]).float()
        passed, loose = candidates.passed, candidates.below(candidates.threshold)
        few = len(passed) < ACCEPTANCE.few_sparse * (len(passed) + len(loose))
        if candidates.sparsity_tested and few and evidence.count > 1:
            loose = loose[:0]  # zeros are missing though nothing hides them: what was fed may be mixtures of images
        images = torch.cat([passed, loose])
        if not len(images):
            return explaining.judge(images, generator)
        activate = candidates.test.activate
        way = [SpanTest(torch.lerp(starts, ends, part).float(), rows, activate) for part in CERTAINTY.way]
        sure = certainty(way, candidates.duals, candidates.directions, passed, loose).sure(images)
        reason = f"nothing returned: the second layer leaves none of {len(images)} candidates certain"
        images = images[sure].float()
        left = explaining.relative_residual(images)
        return Acceptance(images, images.new_zeros(0), None if len(images) else reason, left)

    def _accept_in_noise(
        self,
        evidence: PixelEvidence,
        candidates: Candidates,
        explaining: ExplanationTest,
        generator: torch.Generator,
    ) -> Acceptance:
        """The candidates if as a set they explain the second layer's update; where noise hides the zeros of the duals,
        from least squares on the first layer, and those that were too rough before are judged once more."""
        defense, layers = evidence.defense, evidence.defense.layers
        acceptance = explaining.judge(candidates.accepted(), generator)
        if not _needs_fit(evidence, candidates, acceptance):
            return acceptance
        rough, count = acceptance.images, evidence.count
        images, left = fit_images(layers.change, layers.initial, rough, count, defense.intervals)
        if left < FIT.most_left * evidence.error:
            images = images.float()
            acceptance = (
                replace(acceptance, images=images) if acceptance.reason is None else explaining.judge(images, generator)
            )
        return replace(acceptance, facts=constants_of(FIT) | {"fit": left})

    def _may_be_mixed(self, evidence: PixelEvidence, candidates: Candidates) -> bool:
        """Whether no image has the zeros of its dual though nothing hides these, as where clients mix their images; the
        range of pixels has to be known, and to bind more pixels than any vertex meets it in."""
        few = 1 < evidence.count <= EXTREME.most_of_rank * evidence.defense.highest_rank(evidence.spectrum)
        told = self.knowledge.pixel_mean is not None
        return candidates.sparsity_tested and not len(candidates.passed) and few and told

    def _with_extreme_points(
        self, candidates: Candidates, acceptance: Acceptance, generator: torch.Generator
    ) -> Acceptance:
        """The images that are certain vertices of the span beside those accepted."""
        rows, shape = candidates.duals.rows, self.observation.input_shape
        low, high = (bound.expand(1, *shape).flatten() for bound in self.knowledge.input_bounds(rows))
        extreme = extreme_images(rows, low, high, EXTREME.directions, generator).float()
        extreme = extreme[beside(acceptance.images, extreme)][: candidates.missing]
        if not len(extreme):
            return acceptance
        return replace(acceptance, images=torch.cat([acceptance.images, extreme]), reason=None)

    def report(self, evidence: PixelEvidence, acceptance: Acceptance) -> Reconstruction:
        """The images with ρ at the initial parameters as their residual."""
        refused = () if acceptance.reason is None else (acceptance.reason,)
        shape, told = self.observation.input_shape, self.knowledge.num_private
        images = acceptance.images.reshape(-1, *shape)
        return Reconstruction(
            images=images,
            held=acceptance.held.reshape(-1, *shape),
            groups=group_views(images, told) if told is not None and told < len(images) else None,
            residual=acceptance.residual,
            num_inferred=None if evidence.like_adam else evidence.inferred,
            relative_residual=acceptance.relative_residual,
            warnings=(*evidence.warnings, *refused),
            facts=evidence.facts | acceptance.facts,
        )


def _needs_fit(evidence: PixelEvidence, candidates: Candidates, acceptance: Acceptance) -> bool:
    """Whether an error hides the zeros of ReLU units, so that too few candidates could pass the sparsity test.

    Images that explain too little are given another chance only where a known defense made them rough.
    """
    images, defense = acceptance.images, evidence.defense
    if not candidates.sparsity_tested or evidence.error <= EVIDENCE.noisy_above:
        return False
    if defense.layers.norms is not None:  # the fit reads off the layer's output which units are inactive
        return False
    hopeful = acceptance.reason is None or (defense.count is not None and len(images) > 0)
    return hopeful and len(candidates.passed) < (1 if defense.intervals is None else len(images))
