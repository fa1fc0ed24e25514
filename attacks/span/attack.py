"""Exact reconstruction of a client's images from the row spaces of its update.

Under SGD, with or without momentum, the first layer's row space is the span of the private images and tells their
number; the second layer's holds their features and tells them from other points of that span. The training of the
client is never simulated: learning rate, steps, batches, labels and loss need not be known. The attack goes through

    read      the evidence: which layers, which rounds, how many images; weight decay and known defenses are undone
              (`attacks.span.evidence`)
    search    points of the first layer's span with features in the second layer's (`attacks.span.search`), and the
              sparsity test of their duals, whose zeros make them exact (`attacks.span.sparsity`)
    accept    the images that explain the update, fitted exactly where noise hides zeros (`attacks.span.acceptance`)
    report    what was found, measured and assumed,

which are the four methods of four variants (`attacks.span.variants`): pixels, where linear layers start at the images;
features, where they follow a convolutional body; a frozen body, of which only the head is trained; and maps, where
convolutions tell what they were fed. Every tuned constant stands in `attacks.span.thresholds`.
docs/explanation/span.md and docs/explanation/convnets.md say what the attack withstands.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch

from attacks.base import Attack, Progress, Reconstruction, register
from attacks.interface.knowledge import DEFENSE_FIELDS, Knowledge
from attacks.interface.observation import Observation
from attacks.interface.options import check_values
from attacks.networks.probing import evaluating
from attacks.span.acceptance import Acceptance
from attacks.span.evidence.known_defense import knows_defense
from attacks.span.evidence.pixel_evidence import RoundsApart
from attacks.span.feature_space.network import find_feature_network
from attacks.span.joining import of_rounds, polish_jointly, told_and_untold
from attacks.span.search.candidates import SearchOptions
from attacks.span.variants.features import FeatureVariant, FewFeaturesVariant, has_few_features
from attacks.span.variants.frozen_body import FrozenBodyVariant, head_of
from attacks.span.variants.maps import MapVariant, map_networks_of
from attacks.span.variants.pixels import PixelVariant, linear_layers_of
from attacks.update.private_set import infer_pixel_mean

MOST_STARTS = 10_000  # points that a pass moves at a time, with their features: in memory all of them


class Variant(Protocol):
    """The span attack on one kind of network. Evidence and candidates are of types of its own; the evidence has a
    `refusal`, which says why nothing that is found can be returned, None where it can, and is `hopeless` where nothing
    can be found either.

    Building a variant raises InputError where the network, or what the adversary knows, does not suffice.
    """

    def read(self, generator: torch.Generator) -> Any:
        """What the update shows, once weight decay and known defenses are undone; `RoundsApart` where the rounds have
        to be attacked alone. Raises InputError for an update of zero."""

    def search(self, evidence: Any, generator: torch.Generator, progress: Progress) -> Any:
        """Candidates for private images, those that pass a test by themselves marked as such."""

    def accept(self, evidence: Any, candidates: Any, generator: torch.Generator) -> Acceptance:
        """Which candidates may be returned, made as exact as the evidence allows."""

    def report(self, evidence: Any, acceptance: Acceptance) -> Reconstruction:
        """The result, with what was measured and what is in doubt."""


@register
@dataclass(frozen=True)
class SpanAttack(SearchOptions, Attack):
    """Find the points of the first layer's span whose features lie in the second layer's row space.

    Several pairs of one client are taken together: the span of all first-layer updates, and the second layer's test in
    every round. Where no round shows most of the images that all show together, as in the global checkpoints of a
    federation whose clients take turns, each round is attacked alone.

    starts: random points per pass of the search. steps: of Adam from each, with what is found deflated. settle: further
    ones on the plain ρ. polish: the last ones, at a tenth of the step size. rounds: the most passes. learning_rate: of
    Adam, in the coordinates of the span. joint_polish: steps on images and duals together, with the reconstruction loss
    of the NTK attack, which also yields the duals (0: none). device: auto, cpu or cuda.
    """

    name: ClassVar[str] = "span"
    vouches: ClassVar[bool] = True

    joint_polish: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        numbers = ("steps", "settle", "polish", "rounds", "learning_rate")
        check_values(self, positive=numbers, not_negative=("joint_polish",), at_most={"starts": MOST_STARTS})

    def check_requirements(self, observation: Observation, knowledge: Knowledge) -> None:
        """Raise InputError where no variant suits the network, or the one that does has to know more."""
        with evaluating(observation.model):
            self._variant(observation, knowledge)

    def reconstruct(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Progress
    ) -> Reconstruction:
        """num_private is used where it is known, else inferred. residual is what the variant reports.

        Raises InputError for an update of zero. One that SGD cannot have made gives no images, and a warning.
        """
        if not knows_defense(observation, knowledge):
            return self._attack(observation, knowledge, generator, progress)
        # the update as it was sent may do where the one that knowledge of the defense makes of it does not
        same = torch.Generator().set_state(generator.get_state())
        told = self._attack(observation, knowledge, generator, progress)
        naive = replace(knowledge, **dict.fromkeys(DEFENSE_FIELDS))
        return told_and_untold(told, self._attack(observation, naive, same, progress))

    def _attack(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Progress
    ) -> Reconstruction:
        """Read, search, accept, report, and the joint polish if it is asked for; where the rounds do not share one
        private set, all of it for each round alone."""
        variant = self._variant(observation, knowledge)
        evidence = variant.read(generator)
        if isinstance(evidence, RoundsApart):
            known = replace(knowledge, num_private=None)  # the number that is known is that of the union
            rounds = [replace(observation, pairs=(observation.pairs[r],)) for r in evidence.rounds]
            found = of_rounds(evidence, [self._attack(one, known, generator, progress) for one in rounds])
            mean = knowledge.pixel_mean or infer_pixel_mean(rounds[0], knowledge.pixel_std)
            return replace(found, pixel_mean=mean or ())
        if evidence.hopeless:
            return variant.report(evidence, Acceptance.none(evidence.refusal))
        candidates = variant.search(evidence, generator, progress)
        acceptance = variant.accept(evidence, candidates, generator)
        if evidence.refusal is not None:
            acceptance = acceptance.withheld(evidence.refusal)
        found = variant.report(evidence, acceptance).ranked()
        if self.joint_polish and len(found.images):
            found = polish_jointly(observation, found, self.joint_polish).ranked()
        return found

    def _variant(self, observation: Observation, knowledge: Knowledge) -> Variant:
        """The variant that suits a network in evaluation mode; InputError where none does.

        A feature space needs two fully connected layers, trained with biases, that follow something else.
        """
        network = find_feature_network(observation.model, observation.input_shape)
        layers = () if network is None else network.layers[:2]
        needed = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
        if network is None or len(layers) < 2 or not needed <= set(observation.trainable):
            if pairs := map_networks_of(observation):
                return MapVariant(observation, knowledge, pairs)
            return PixelVariant(observation, knowledge, self, linear_layers_of(observation))
        if len(network.layers) > 2 and (head := head_of(observation, network)) is not None:
            told = Knowledge(num_private=knowledge.num_private)
            return FrozenBodyVariant(head, told, self, linear_layers_of(head), observation, network)
        features = FeatureVariant(observation, knowledge, self, network)
        few = has_few_features(network, math.prod(observation.input_shape))
        return FewFeaturesVariant(features) if few else features
