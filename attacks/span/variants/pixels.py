"""The span attack on plain MLPs: the images themselves lie in the row space of the first layer's update."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.interface.attack import Facts, Progress, Reconstruction
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.networks.mlp import ACTIVATIONS, DenseNetwork, find_dense_network
from attacks.span.acceptance import Acceptance, ExplanationTest
from attacks.span.evidence.known_defense import UndoneDefense, undo_defense
from attacks.span.evidence.layers import FirstLayers, at_rest, informative_rounds, rounds_with_images
from attacks.span.least_squares import fit_images
from attacks.span.search.candidates import Candidates
from attacks.span.search.descent import beside
from attacks.span.search.extreme_points import extreme_images
from attacks.span.search.passes import SearchOptions, find_images
from attacks.span.search.problems import SpanTest
from attacks.span.sparsity.dual_space import DualSpace
from attacks.span.thresholds import (
    ACCEPTANCE,
    CROWDED,
    DECOY,
    DUAL,
    EVIDENCE,
    EXTREME,
    FIT,
    SEARCH,
    SPARSITY,
    constants_of,
)
from attacks.update.pixel_mean import CONSTANT_MISFIT
from attacks.update.spectrum import ROUNDING, Spectrum
from attacks.update.views import group_views


def linear_layers_of(observation: Observation) -> DenseNetwork:
    """The layers of the network; InputError, with what is missing, where it is no plain MLP with two trained hidden
    layers."""
    network = find_dense_network(observation.model, observation.input_shape)
    name = type(observation.model).__name__
    if network is None or len(network.weights) < 3:
        raise InputError(
            f"attack 'span' needs linear layers from the pixels on, two of them hidden, or hidden ones with biases "
            f"behind other layers: model {name!r} has neither (use 'ntk')"
        )
    needed = [*network.weights[:2], *(bias or "" for bias in network.biases[:2])]
    missing = [name for name in needed if name not in observation.trainable]
    if missing:
        raise InputError(
            f"attack 'span' needs the first two layers trained, with biases: model {name!r} lacks "
            f"{', '.join(name or 'a bias' for name in missing)} (use 'ntk')"
        )
    return network


@dataclass(frozen=True)
class RoundsApart:
    """Evidence that the rounds do not share one private set, as where clients take turns: each is attacked alone.

    rounds: indices of the pairs that images left a trace in. together: how many images all of them show. most: how
    many the round shows that shows most of them.
    """

    rounds: tuple[int, ...]
    together: int
    most: int


@dataclass(frozen=True)
class PixelEvidence:
    """The rank and the row spaces of the first two layers' updates.

    spectrum: of the first layer, in all rounds together. inferred: N as the spectrum shows it. count: N as it is used.
    tests: the rounds whose second layer tests candidates, with its spectrum. directions: k, how many directions of each
    of these hold the images' features. outside: ‖Δ − Δ_N‖ / ‖Δ‖ of the first layer. doubts: warnings on the number.
    crowded: whether there are so many images for the width that the search goes a way of its own, and still: whether
    their features did not move, so that N directions hold them exactly.
    """

    defense: UndoneDefense
    spectrum: Spectrum
    inferred: int
    count: int
    tests: dict[int, Spectrum]
    directions: int
    outside: float
    doubts: tuple[str, ...] = ()
    crowded: bool = False
    still: bool = False

    @classmethod
    def of(
        cls, defense: UndoneDefense, spectrum: Spectrum, inferred: int, num_private: int | None, relu: bool
    ) -> "PixelEvidence":
        """inferred: the rank of the first layer before the defense. num_private: N where known. relu: whether the
        network's activation is ReLU."""
        count = num_private or inferred
        doubts: tuple[str, ...] = ()
        if defense.count is not None:
            inferred = count = defense.count
        elif inferred < count < len(spectrum.values) and spectrum.values[count - 1] < ROUNDING * spectrum.values[0]:
            doubts = (
                f"{count} images were expected, the first layer's update has {inferred} directions above rounding: "
                "so many were looked for (images seen twice, or more than the pixels can tell apart)",
            )
            count = inferred
        elif count < inferred and _shows_all(defense.layers.change, spectrum, inferred):
            doubts = (
                f"{count} images were expected, the first layer's update has {inferred} directions and nothing behind "
                "them: so many were looked for (every view of an augmented image is one)",
            )
            count = inferred
        layers, outside = defense.layers, spectrum.relative_residual(count)
        tests = informative_rounds(layers.second, count)
        size = layers.second.shape[1]
        most = int(min(EVIDENCE.directions_per_image * count, EVIDENCE.directions_of_width * layers.width, size))
        exact = relu and not defense.explains_error and outside <= EVIDENCE.noisy_above
        crowded = exact and count > CROWDED.images_of_width * layers.width
        still = crowded and count <= CROWDED.still_of_width * layers.width and at_rest(tests.values(), count)
        if crowded:
            wanted = min(EVIDENCE.directions_needed * count, CROWDED.directions_of_width * layers.width)
            most = count if still else max(most, min(math.ceil(wanted), size))
        directions = defense.directions(list(tests.values()), count, most, outside)
        return cls(defense, spectrum, inferred, count, tests, directions, outside, doubts, crowded, still)

    @property
    def path(self) -> tuple[float, ...]:
        """Where features are tested on the way from the sent parameters (0) to the returned ones (1)."""
        return CROWDED.path if self.crowded and not self.still else CROWDED.path[:1]

    @property
    def leading_directions(self) -> int | None:
        """How many directions hold nearly all of the second layer's updates, as features that hardly moved need; None
        where that takes all of them."""
        few = math.ceil(SEARCH.leading_per_image * self.count)
        left = max(part.relative_residual(few) for part in self.tests.values())
        return few if few < self.directions and left < SEARCH.leading_misses else None

    @property
    def enough_directions(self) -> bool:
        """Whether the second layer's rows can test candidates."""
        return self.still or self.directions >= EVIDENCE.directions_needed * self.count

    @property
    def error(self) -> float:
        """‖E‖ / ‖Δ‖ of the error in the first layer's update."""
        return max(self.outside, self.defense.distortion)

    @property
    def zeros_tell(self) -> bool:
        """Whether zeros of a dual are units that its image left inactive. Where entries of the update were left out,
        any dual has zeros; such an update has nearly as many directions as pixels can have, where a sum over few images
        that are black in places has few."""
        few = self.count < EVIDENCE.left_out_rank * self.defense.highest_rank(self.spectrum)
        return few or not leaves_entries_out(self.defense.layers.change)

    @property
    def refusal(self) -> str | None:
        """Why a search makes no sense."""
        rank, width = self.defense.highest_rank(self.spectrum), self.defense.layers.width
        no_sum = self.outside > EVIDENCE.refused_above and not self.defense.explains_error
        if self.count < 1 or self.count >= rank or no_sum:
            return (
                f"nothing returned: the first layer's update has rank {rank} and {self.outside:.2g} of its norm lies "
                f"outside {self.count} directions (at most {EVIDENCE.refused_above:g}): it is not a sum over few "
                "images, as after SGD (local Adam, much added noise, entries left out, more images than units or "
                "pixels?)"
            )
        if not self.enough_directions:
            needed = EVIDENCE.directions_needed * self.count
            share = CROWDED.directions_of_width if self.crowded else EVIDENCE.directions_of_width
            return (
                f"nothing returned: {self.count} images need {needed:.0f} directions of the second layer's rows, "
                f"{self.directions} can tell ({share:g} of the width {width}, and "
                "no more than the layer's outputs)"
            )
        return None

    @property
    def hopeless(self) -> bool:
        """Whether a search cannot even give candidates to hold: no span of few images, or nothing that tests them."""
        return not (self.enough_directions and 1 <= self.count < self.defense.highest_rank(self.spectrum))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was undone, and what is in doubt where a search makes sense."""
        found, rank = [*self.defense.layers.warnings, *self.doubts], self.defense.highest_rank(self.spectrum)
        if self.refusal is not None:
            return tuple(found)
        if self.outside > EVIDENCE.noisy_above:
            gap = float(self.spectrum.values[self.count - 1] / self.spectrum.values[self.count])
            sure = self.defense.explains_error or gap >= EVIDENCE.clear_gap
            guess = f", and a gap of {gap:.2g} between singular values makes {self.count} images a guess"
            found.append(
                f"{self.outside:.2g} of the first layer's update lies outside {self.count} directions: it is noisy"
                f"{'' if sure else guess}"
            )
        if self.count >= EVIDENCE.rank_exhausted * rank:
            found.append(
                f"{self.count} is near {rank}, the highest rank these pixels allow: a lower bound on the number"
            )
        return tuple(found)

    @property
    def facts(self) -> Facts:
        read = {"k": float(self.directions), "used_num_private": float(self.count), "outside_span": self.outside}
        used = (EVIDENCE, CROWDED) if self.crowded else (EVIDENCE,)
        return self.defense.layers.facts | read | constants_of(*used)


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
        if len(rounds) > 1 and (most := defense.layers.most_images()) < EVIDENCE.shared_images * inferred:
            return RoundsApart(rounds, inferred, most)
        return PixelEvidence.of(
            defense, spectrum, inferred, self.knowledge.num_private, self.network.activation == "relu"
        )

    def search(self, evidence: PixelEvidence, generator: torch.Generator, progress: Progress) -> Candidates:
        """Points of the first layer's span with features in the second layer's, and which pass the sparsity test."""
        layers, tests = evidence.defense.layers, evidence.tests
        rows = torch.stack([part.vectors[: evidence.directions] for part in tests.values()]).float()
        starts, ends = layers.by_round(layers.initial), layers.by_round(layers.final)
        path = evidence.path
        hidden = torch.cat([torch.lerp(starts[r], ends[r], part) for r in tests for part in path]).float()
        rows = rows.repeat_interleave(len(path), 0)
        test = SpanTest(hidden, rows, ACTIVATIONS[self.network.activation], evidence.leading_directions)
        duals = DualSpace.of(layers.initial, layers.final, evidence.spectrum, evidence.count, layers.rounds)
        tested = self.network.activation == "relu" and evidence.zeros_tell
        nothing = Candidates.empty(duals, test, sparsity_tested=tested, crowded=evidence.crowded)
        passes = self.options.rounds if evidence.refusal is None else min(SEARCH.refused_passes, self.options.rounds)
        return find_images(nothing, replace(self.options, rounds=passes), generator, progress)

    def accept(self, evidence: PixelEvidence, candidates: Candidates, generator: torch.Generator) -> Acceptance:
        """The accepted candidates, (M, in) in float32, if as a set they explain the second layer's update.

        Where noise hides the zeros of the duals, the images come from least squares on the first layer, and those that
        were too rough to explain the second layer are judged once more.
        """
        defense, layers = evidence.defense, evidence.defense.layers
        noise = defense.second_noise(list(evidence.tests.values()), evidence.outside)
        update = layers.second[list(evidence.tests)].float().repeat_interleave(len(evidence.path), 0)
        test = ExplanationTest(candidates, update, noise, len(evidence.tests))
        acceptance = test.judge(candidates.accepted(), generator)
        facts = constants_of(ACCEPTANCE, SEARCH, DECOY, SPARSITY, DUAL) | {
            "tests": float(len(evidence.tests)),
            "rounds": float(candidates.passes),
            "threshold": candidates.threshold,
            "certified": float(len(candidates.passed)),
        }
        if _needs_fit(evidence, candidates, acceptance):
            rough, count = acceptance.images, evidence.count
            images, left = fit_images(layers.change, layers.initial, rough, count, defense.intervals)
            facts |= {"fit": left} | constants_of(FIT)
            if left < FIT.most_left * evidence.error:
                images = images.float()
                acceptance = (
                    replace(acceptance, images=images) if acceptance.reason is None else test.judge(images, generator)
                )
        if self._may_be_mixed(evidence, candidates):
            acceptance = self._with_extreme_points(candidates, acceptance, generator)
            facts |= {"extreme": float(acceptance.facts["extreme"])} | constants_of(EXTREME)
        images = acceptance.images
        residual, held = candidates.test.residual(images), candidates.held(images)
        acceptance = replace(acceptance, residual=residual, facts=facts, held=held)
        return acceptance if acceptance.reason is None else acceptance.withheld(acceptance.reason)

    def _may_be_mixed(self, evidence: PixelEvidence, candidates: Candidates) -> bool:
        """Whether images lack the zeros of their duals though nothing hides these, as where clients mix their images;
        the range of pixels has to be known, and to bind more pixels than any vertex meets it in."""
        exact = evidence.error <= EVIDENCE.noisy_above and candidates.sparsity_tested
        few = evidence.count <= EXTREME.most_of_rank * evidence.defense.highest_rank(evidence.spectrum)
        return exact and few and candidates.missing > 0 and self.knowledge.pixel_mean is not None

    def _with_extreme_points(
        self, candidates: Candidates, acceptance: Acceptance, generator: torch.Generator
    ) -> Acceptance:
        """The images that are extreme points of the span, and as many of those accepted as are missing beside them."""
        rows, shape = candidates.duals.rows, self.observation.input_shape
        low, high = (bound.expand(1, *shape).flatten() for bound in self.knowledge.input_bounds(rows))
        extreme = extreme_images(rows, low, high, EXTREME.directions, generator).float()
        others = acceptance.images if acceptance.reason is None else acceptance.images[:0]
        others = others[beside(extreme, others)][: candidates.duals.count - len(extreme)]
        facts = acceptance.facts | {"extreme": float(len(extreme))}
        if not len(extreme):
            return replace(acceptance, facts=facts)
        return replace(acceptance, images=torch.cat([extreme, others]), reason=None, facts=facts)

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
            num_inferred=evidence.inferred,
            relative_residual=acceptance.relative_residual,
            warnings=(*evidence.warnings, *refused),
            facts=evidence.facts | acceptance.facts,
        )


def leaves_entries_out(change: Tensor) -> bool:
    """Whether the first layer's update (W, in + 1) has zeros that are none of a whole row or column."""
    moved = change[change.any(1)][:, change.any(0)]
    return bool((moved == 0).float().mean() > EVIDENCE.entries_left_out)


def _shows_all(change: Tensor, spectrum: Spectrum, inferred: int) -> bool:
    """Whether the first layer's update (W, in + 1) is a sum over so many inputs: nothing but rounding lies behind, the
    pixels allow a much higher rank, and no entries were left out, as those of a sum are 0 by rows and columns only.
    Constant pixels say what the bias says, whatever made the update."""
    if leaves_entries_out(change):
        return False
    bias = change[:, -1:]
    rest = change - bias * (bias.T @ change) / bias.square().sum()
    varying = int((rest.norm(dim=0) > CONSTANT_MISFIT * change.norm(dim=0)).sum())
    return spectrum.relative_residual(inferred) <= EVIDENCE.noisy_above and inferred < EVIDENCE.rank_exhausted * varying


def _needs_fit(evidence: PixelEvidence, candidates: Candidates, acceptance: Acceptance) -> bool:
    """Whether an error hides the zeros of ReLU units, so that too few candidates could pass the sparsity test.

    Images that explain too little are given another chance only where a known defense made them rough.
    """
    images, defense = acceptance.images, evidence.defense
    if not candidates.sparsity_tested or evidence.error <= EVIDENCE.noisy_above:
        return False
    hopeful = acceptance.reason is None or (defense.count is not None and len(images) > 0)
    return hopeful and len(candidates.passed) < (1 if defense.intervals is None else len(images))
