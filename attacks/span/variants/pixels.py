"""The span attack on plain MLPs: the images themselves lie in the row space of the first layer's update."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from attacks.base import Facts, Progress, Reconstruction
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.interface.torch_tools import cast_state
from attacks.networks.front_layers import read_front_layers
from attacks.networks.mlp import FrontLayers
from attacks.networks.probing import linear_layers, probe
from attacks.span.acceptance import (
    Certainty,
    ExplanationTest,
    certainty,
    fit_images,
    standing_out,
    usual_distance,
    with_means,
)
from attacks.span.evidence.known_defense import undo_defense
from attacks.span.evidence.layers import (
    FirstLayers,
    NoBatchMean,
    directions_shown,
    normalized_by_batch,
    rounds_with_images,
    with_batch_mean,
)
from attacks.span.evidence.pixel_evidence import PixelEvidence, Regime, looks_like_adam
from attacks.span.search.candidates import Candidates, SearchOptions, find_images
from attacks.span.search.descent import beside, extreme_images
from attacks.span.search.problems import SpanTest
from attacks.span.sparse_duals import DualSpace
from attacks.span.stages import Acceptance, CandidatesType, RoundsApart, Variant, check_bias
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
from attacks.update.spectrum import Spectrum, group_views


@dataclass(frozen=True)
class FirstLayerVariant(Variant[PixelEvidence, CandidatesType]):
    """Base of variants whose images lie in the span of the first layer's update. Subclasses search and accept.

    observation: its checkpoints are corrected as if BatchNorm had been in evaluation mode.
    has_zeros: whether a dual is zero on the units that its image leaves inactive. So it is for ReLU, unless BatchNorm
        mixed the signals of a batch.
    """

    evidence_type: ClassVar[type[PixelEvidence]] = PixelEvidence

    observation: Observation
    knowledge: Knowledge
    options: SearchOptions
    network: FrontLayers
    has_zeros: bool

    @classmethod
    def of(cls, observation: Observation, knowledge: Knowledge, options: SearchOptions, network: FrontLayers) -> Self:
        """Make the variant for the layers of a plain MLP. Raises InputError if BatchNorm hides the mean of a batch."""
        has_zeros = network.activation == "relu"
        mixed = [normalized_by_batch(*pair, network) for pair in observation.pairs]
        if not any(mixed):
            return cls(observation, knowledge, options, network, has_zeros)
        try:
            pairs = tuple(with_batch_mean(*pair, network) for pair in observation.pairs)
        except NoBatchMean as error:
            raise InputError(
                "attack 'span' needs BatchNorm in evaluation mode, or the mean of its only batch: in model "
                f"{type(observation.model).__name__!r} it normalized by the batch, so the update shows differences, "
                f"and {error} (use 'gradient_matching')"
            ) from None
        has_zeros = has_zeros and not any(0 in layers for layers in mixed)
        return cls(replace(observation, pairs=pairs), knowledge, options, network, has_zeros)

    def read(self, generator: torch.Generator) -> PixelEvidence:
        """Compute the row spaces of the first two layers' updates; weight decay and a known defense are undone. Raises
        RoundsApart if the rounds hold different images."""
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
                raise RoundsApart(rounds, inferred, most)
        return self.evidence_type.of(defense, spectrum, inferred, self.knowledge.num_private, self.has_zeros)

    def report(self, evidence: PixelEvidence, acceptance: Acceptance) -> Reconstruction:
        """Return the accepted images. Their residual is ρ at the initial parameters."""
        shape, told = self.observation.input_shape, self.knowledge.num_private
        images = acceptance.images.reshape(-1, *shape)
        return acceptance.reported(
            shape,
            evidence.warnings,
            groups=group_views(images, told) if told is not None and told < len(images) else None,
            num_inferred=None if evidence.like_adam else evidence.inferred,
            guessed=evidence.refusal is None and evidence.guessed,
            facts=evidence.facts | acceptance.facts,
        )

    def _duals(self, evidence: PixelEvidence) -> DualSpace:
        layers = evidence.defense.layers
        sent, returned = layers.initial, layers.final
        space = DualSpace.of(sent, returned, evidence.spectrum, evidence.count, layers.rounds, layers.fed)
        return space if layers.bias_error is None else space.with_bias_error(layers.bias_error[layers.change.any(1)])


@dataclass(frozen=True)
class PixelVariant(FirstLayerVariant[Candidates]):
    """Images tested by the second layer's update and by the zeros of their duals."""

    def search(self, evidence: PixelEvidence, generator: torch.Generator, progress: Progress) -> Candidates:
        """Find points of the first layer's span whose features lie in the second's; mark those with a sparse dual."""
        layers, tests = evidence.defense.layers, evidence.tests
        rows = torch.stack([part.vectors[: evidence.directions] for part in tests.values()]).float()
        starts, ends = (layers.by_round(end) for end in layers.fed)
        path = evidence.path
        hidden = torch.cat([torch.lerp(starts[r], ends[r], part) for r in tests for part in path]).float()
        rows = rows.repeat_interleave(len(path), 0)
        test = SpanTest(hidden, rows, self.network.activate, evidence.leading_directions)
        duals = self._duals(evidence)
        tested = self.has_zeros and not evidence.has_left_out_entries
        nothing = Candidates.empty(duals, test, sparsity_tested=tested, crowded=evidence.regime.many_images)
        passes = self.options.rounds if evidence.refusal is None else min(SEARCH.refused_passes, self.options.rounds)
        return find_images(nothing, replace(self.options, rounds=passes), generator, progress)

    def accept(
        self, evidence: PixelEvidence, candidates: Candidates, generator: torch.Generator, progress: Progress
    ) -> Acceptance:
        """Accept candidates, (M, in) in float32. If the update is exact, each image has to be certain by itself. If
        noise or a completion hides the zeros of duals and blurs the second layer, the images are accepted as a set that
        explains the second layer's update."""
        judge = PixelJudge(self, evidence, candidates, generator)
        facts: Facts = constants_of(ACCEPTANCE, SEARCH, DECOY, SPARSITY, DUAL) | {
            "tests": float(len(evidence.tests)),
            "rounds": float(candidates.passes),
            "accepted_up_to": candidates.threshold,
            "certified": float(len(candidates.passed)),
        }
        exact = evidence.regime.exact
        acceptance = judge.certain() if exact else judge.sure_in_noise(judge.in_noise())
        if len(acceptance.images) and (reason := judge.reason_to_hold):
            acceptance = replace(acceptance, reason=reason)
        if exact:
            facts |= constants_of(CERTAINTY)
        if exact and judge.may_be_mixed and not evidence.rough:
            acceptance = judge.with_extreme_points(acceptance)
            facts |= {"extreme": float(len(acceptance.images))} | constants_of(EXTREME)
        images = acceptance.images
        residual, held = candidates.test.residual(images), candidates.held(images)
        acceptance = replace(acceptance, residual=residual, facts=facts | acceptance.facts, held=held)
        return acceptance if acceptance.reason is None else acceptance.withheld(acceptance.reason)

    def fed_again(self, evidence: PixelEvidence, images: Tensor) -> list[Tensor]:
        """Return what images (M, in) feed further uses of the second layer's weight, as where it is tied to the third
        one's, whose update is the sum of all uses; nothing where there are none."""
        observation, second = self.observation, self.network.weights[1].removesuffix(".weight")
        layers = linear_layers(observation.model)
        uses = {name: layer for name, layer in layers.items() if layer.weight is layers[second].weight}
        if len(uses) == 1 == self.network.weights.count(self.network.weights[1]):
            return []
        moved, found = rounds_with_images(observation, self.network), []
        for sent in (observation.pairs[moved[r]][0] for r in evidence.tests for _ in evidence.path):
            state, inputs = cast_state(sent, images.device, images.dtype), images.reshape(-1, *observation.input_shape)
            _, (_, *again) = probe(observation.model, inputs, uses, state)
            found.append(torch.cat([pad(call.given, (0, 1), value=float(call.name == second)) for call in again]))
        return found


@dataclass(frozen=True)
class PixelJudge:
    """Decides which candidates of one search may be returned."""

    variant: PixelVariant
    evidence: PixelEvidence
    candidates: Candidates
    generator: torch.Generator

    @cached_property
    def explaining(self) -> ExplanationTest:
        """The test of candidates as a set, on the second layer's updates in the rounds that test candidates."""
        evidence, tests = self.evidence, self.evidence.tests
        noise = evidence.defense.second_noise(list(tests.values()), evidence.outside)
        update = evidence.defense.layers.second[list(tests)].float().repeat_interleave(len(evidence.path), 0)
        return ExplanationTest(self.candidates, update, noise, len(tests), partial(self.variant.fed_again, evidence))

    def certain(self) -> Acceptance:
        """Accept the images that are certain by the second layer and by the duals of the others."""
        candidates = self.candidates
        passed, loose = candidates.passed, candidates.below(candidates.threshold)
        few = len(passed) < ACCEPTANCE.few_sparse * (len(passed) + len(loose))
        if candidates.sparsity_tested and few and self.evidence.count > 1:
            loose = loose[:0]  # nothing hides zeros, yet few duals have any: the client may have mixed its images
        images = torch.cat([passed, loose])
        if not len(images):
            return self.explaining.judge(images, self.generator)
        certainty = self._certainty(loose)
        sure = certainty.sure(images)
        if self.evidence.rough:
            sure &= self._explained(images)
        doubt = certainty.doubt(images, sure)
        reason = f"nothing returned: the second layer leaves none of {len(images)} candidates certain"
        reason += f", though {len(passed)} passed the sparsity test" if len(passed) else ""
        reason += f": {doubt}" if doubt else ""
        if self.evidence.regime is Regime.PLAIN:
            reason += ": does the network given have the activations of training, or does dropout stand between layers?"
        held = f"{int((~sure).sum())} of {len(images)} candidates are held: {doubt}" if doubt else ""
        images = images[sure].float()
        left = self.explaining.relative_residual(images)
        if not len(images):
            return Acceptance(images, images.new_zeros(0), reason, left)
        return Acceptance(images, images.new_zeros(0), None, left, doubt=held)

    def _certainty(self, loose: Tensor) -> Certainty:
        """Find what determines the candidates that passed the sparsity test, then loose ones (P, in)."""
        evidence, candidates, tests = self.evidence, self.candidates, self.evidence.tests
        layers = evidence.defense.layers
        starts, ends = (layers.by_round(end)[list(tests)].flatten(0, 1) for end in layers.fed)
        rows = torch.stack([part.vectors[: evidence.directions] for part in tests.values()]).float()
        activate = candidates.test.activate
        way = [SpanTest(torch.lerp(starts, ends, part).float(), rows, activate) for part in CERTAINTY.way]
        shown = directions_shown(tests.values())
        found = certainty(way, candidates.duals, candidates.directions, candidates.passed, loose, shown=shown)
        if evidence.rough:
            found = replace(found, complete=False)  # in noise mixtures have zeros of as little leverage as duals
        return (
            found if self.variant.has_zeros else with_means(found, way[0], candidates.duals, candidates.passed, loose)
        )

    def in_noise(self) -> Acceptance:
        """Accept all candidates if as a set they explain the second layer's update. If noise hides the zeros of duals,
        then fit them to the first layer, and judge them again if they were too rough."""
        acceptance = self._fitted(self.explaining.judge(self.candidates.accepted(), self.generator))
        if self.evidence.regime is not Regime.COMPLETED or acceptance.reason is not None:
            return acceptance
        # the set explains the update; zeros of duals confirm no single image of a completed update, so ρ has to
        near = acceptance.images[self.candidates.test.residual(acceptance.images) < self.candidates.threshold]
        return replace(acceptance, images=near) if len(near) else self.explaining.judge(near, self.generator)

    def sure_in_noise(self, acceptance: Acceptance) -> Acceptance:
        """Leave out images that noise moves far or whose ρ is high, and where no zeros vouch for any those that may be
        the mean of two."""
        images, candidates = acceptance.images, self.candidates
        if not len(images):
            return acceptance
        typical, moved, means = usual_distance(images), candidates.duals.moved_by_noise(images), ""
        most = CERTAINTY.error_in_noise * typical
        explained = self._explained(images)
        near = (moved < CERTAINTY.moved * typical) & explained
        loose = candidates.below(candidates.threshold)
        if not len(candidates.passed) and len(images) == len(loose):
            certainty = self._certainty(loose)
            moved = certainty.error.hypot(moved)
            # a far candidate widens `typical`, but no image has a ρ above what the mean of two would have
            near = certainty.no_means(near & (certainty.error < most) & (certainty.mixed < 1))
            means = (
                f", and their ρ is {float(certainty.mixed.median()):.2g} of what the mean of two would have (at most "
                f"{CERTAINTY.mixed:g})"
            )
        far = (
            f"nothing returned: noise moves candidates by {float(moved.median()):.2g}, which lie {typical:.2g} apart, "
            f"{int(explained.sum())} of {len(images)} have a ρ below {candidates.threshold:.2g}"
        )
        facts = acceptance.facts | constants_of(CERTAINTY)
        reason = acceptance.reason if near.any() else far + means
        kept = near | (len(images) == 1)  # the only one stays, to be held for the reason
        return replace(acceptance, images=images[kept], reason=reason, facts=facts)

    def _explained(self, images: Tensor) -> Tensor:
        """Return which images (M, in) have a ρ that would do for a candidate without zeros, (M,) bool. With zeros it is
        needed, too, where noise or mixed precision leaves mixtures of images as many as images have."""
        return self.candidates.test.residual(images.float()) < self.candidates.threshold

    def _fitted(self, acceptance: Acceptance) -> Acceptance:
        """Fit the images to the first layer if noise has blurred them or they are too rough to explain the update."""
        if not self._needs_fit(acceptance):
            return acceptance
        defense = self.evidence.defense
        change, initial = defense.layers.change, defense.layers.initial
        images, left = fit_images(change, initial, acceptance.images, self.evidence.count, defense.intervals)
        if left < FIT.most_left * self.evidence.error:
            images = images.float()
            rough = acceptance.reason is not None
            acceptance = self.explaining.judge(images, self.generator) if rough else replace(acceptance, images=images)
        return replace(acceptance, facts=constants_of(FIT) | {"fit": left})

    def _needs_fit(self, acceptance: Acceptance) -> bool:
        """Return whether an error hides the zeros of duals, so that a fit can improve the images. Images that explain
        too little are fitted only if a known defense made them rough."""
        images, defense, candidates = acceptance.images, self.evidence.defense, self.candidates
        if not candidates.sparsity_tested or self.evidence.error <= EVIDENCE.noisy_above:
            return False
        if defense.layers.norms is not None:  # the fit reads off the layer's output which units are inactive
            return False
        hopeful = acceptance.reason is None or (defense.count is not None and len(images) > 0)
        return hopeful and len(candidates.passed) < (1 if defense.intervals is None else len(images))

    @property
    def reason_to_hold(self) -> str:
        """Why images may be means of several, which are nobody's; "" if zeros of duals vouch for them, or if they are
        as many as they should be and can be compared. Where a network is nearly linear, images that send alike signals
        show as one, their mean, which explains both layers."""
        evidence, told = self.evidence, self.variant.knowledge.num_private
        several = "and what was found may be the mean of several images"
        if len(self.candidates.passed) and evidence.count > 1:
            return ""
        if told is not None and told > evidence.inferred and not evidence.regime.exact:
            return f"nothing returned: {told} images were expected, {evidence.inferred} stand out of noise, {several}"
        if told is not None and told > evidence.count and not self.candidates.sparsity_tested:
            return f"nothing returned: {told} images were expected, {evidence.count} can be told apart, {several}"
        loose = self.candidates.below(self.candidates.threshold)
        if evidence.count > 1 and len(loose) < 2:
            return f"nothing returned: one candidate of {evidence.count} has none to be compared with, {several}"
        if evidence.count == 1 and not (evidence.told or evidence.regime.exact or self.candidates.sparsity_tested):
            return f"nothing returned: noise of {evidence.outside:.2g} may hide images, {several}"
        if evidence.regime is Regime.NOISY and not evidence.told and not self.variant.has_zeros and len(loose) > 1:
            activate, noise = self.candidates.test.activate, float(evidence.spectrum.values[evidence.count])
            if (out := standing_out(evidence.defense.layers, activate, loose, noise)) < CERTAINTY.standing_out:
                return (
                    f"nothing returned: a second image in the place of one would reach {out:.2g} of the noise (not "
                    f"{CERTAINTY.standing_out:g}), {several}"
                )
        return ""

    @property
    def may_be_mixed(self) -> bool:
        """Whether the client may have mixed its images: nothing hides the zeros of duals, and no dual has any. False if
        the pixel range is unknown, or if there are too many images to tell them from other vertices."""
        few = 1 < self.evidence.count <= EXTREME.most_of_rank * self.evidence.rank
        known = self.variant.knowledge.pixel_mean is not None
        return self.candidates.sparsity_tested and not len(self.candidates.passed) and few and known

    def with_extreme_points(self, acceptance: Acceptance) -> Acceptance:
        """Add the images that are certain vertices of the span to those accepted."""
        rows, shape = self.candidates.duals.rows, self.variant.observation.input_shape
        low, high = (bound.expand(1, *shape).flatten() for bound in self.variant.knowledge.input_bounds(rows))
        extreme = extreme_images(rows, low, high, EXTREME.directions, self.generator, shape[0]).float()
        certain = acceptance.images if acceptance.reason is None else acceptance.images[:0]
        extreme = extreme[beside(certain, extreme)][: self.candidates.missing]
        if not len(extreme):
            return acceptance
        return replace(acceptance, images=torch.cat([certain, extreme]), reason=None)


def linear_layers_of(observation: Observation) -> FrontLayers:
    """Read the layers of the network. Raises InputError unless it begins with trained hidden layers: two, or one of
    ReLU."""
    network = read_front_layers(observation.model, observation.input_shape)
    model = f"model {type(observation.model).__name__!r}"
    if isinstance(network, str):
        raise InputError(
            "attack 'span' needs two linear layers with a known activation between them, the first one fed the pixels, "
            f"or two behind others, trained with biases: {model} has neither, but {network} (use 'ntk')"
        )
    if len(network.weights) < 2 or (len(network.weights) == 2 and network.activation != "relu"):
        layers = "no hidden layer" if len(network.weights) < 2 else f"one of {network.activation}"
        raise InputError(
            "attack 'span' needs two hidden layers, the second one to tell images from other points of the first one's "
            f"span, or one of ReLU, whose inactive units tell them: {model} has {layers} (use 'ntk')"
        )
    needed = [*network.weights[:2], *(bias or "" for bias in network.biases[:2])]
    missing = [name for name in needed if name not in observation.trainable]
    if missing:
        raise InputError(
            f"attack 'span' needs the first two layers trained, with biases: {model} lacks "
            f"{', '.join(dict.fromkeys(name or 'biases' for name in missing))} (use 'ntk')"
        )
    if network.norms[0] is None:  # else signals add up to zero
        check_bias(observation, network.weights[0].removesuffix(".weight"))
    return network
