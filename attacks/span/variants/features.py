"""The span attack on networks whose fully connected layers follow a convolutional body, or anything else.

Feature vectors are found in the span of the first fully connected layer's update, inverted to pixels and made exact
there (`attacks.span.feature_space`). A candidate is accepted where the update's row space holds its features and its
column space the gradient it must have sent: two independent equations, of which only the first was ever minimized, so
that wrong candidates are told even when all are wrong. Where the update's rank shows single steps, images first used at
a later step are sought at the parameters of that step.
"""

from dataclasses import dataclass

import torch

from attacks.interface.attack import Facts, Progress, Reconstruction
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.span.acceptance import Acceptance
from attacks.span.feature_space.found_images import UNKNOWN, FoundImages
from attacks.span.feature_space.network import FeatureNetwork
from attacks.span.feature_space.search import FeatureSearch
from attacks.span.feature_space.update import FeatureUpdate
from attacks.span.search.passes import SearchOptions
from attacks.span.thresholds import FEATURE, INVERSION, MOMENTUM, SEARCH, constants_of
from attacks.update.pixel_mean import infer_background


@dataclass(frozen=True)
class FeatureVariant:
    """Feature vectors in the span of the first fully connected layer's update, then the images that have them.

    Only the first round whose update is not zero is used. num_private has to be known.
    """

    observation: Observation
    knowledge: Knowledge
    options: SearchOptions
    network: FeatureNetwork

    def __post_init__(self) -> None:
        self.knowledge.require("span", "num_private", because="the spectrum of features has no gap at their number")

    def read(self, generator: torch.Generator) -> FeatureUpdate:
        """The row spaces of the first two fully connected layers' updates, and the first one's column space."""
        return FeatureUpdate.of(self.network, self.observation, self.knowledge)

    def search(self, evidence: FeatureUpdate, generator: torch.Generator, progress: Progress) -> FeatureSearch:
        """Images whose features and gradients the update holds, step by step."""
        search = FeatureSearch(evidence, self.options, [evidence.initial], FoundImages.none(evidence))
        search.run(generator, progress)
        return search

    def accept(self, evidence: FeatureUpdate, candidates: FeatureSearch, generator: torch.Generator) -> Acceptance:
        """The images that every pass accepted by ρ and λ. residual: λ."""
        found, bounds, best = candidates.found, candidates.bounds, candidates.best
        facts = constants_of(FEATURE, INVERSION, MOMENTUM, SEARCH) | {
            "steps": float(len(candidates.states)),
            "momentum": candidates.momentum.value,
            "threshold": bounds.residual,
            "gradient_threshold": bounds.gradient,
        }
        reason = None
        if not len(found.images):
            reason = (
                f"nothing returned: of {candidates.tried} candidates the best has ρ {best.residual:.2g} and λ "
                f"{best.gradient:.2g}; decoys demand less than {bounds.residual:.2g} and {bounds.gradient:.2g} of one "
                "image"
            )
        left = evidence.relative_residual(candidates.points()) if len(found.images) else 1.0
        return Acceptance(found.images, found.gradient, reason, left, facts, candidates.beside())

    def report(self, evidence: FeatureUpdate, acceptance: Acceptance) -> Reconstruction:
        """The images with λ as their residual."""
        images, shape = acceptance.images, self.observation.input_shape
        said = () if acceptance.reason is None else (acceptance.reason,)
        if 0 < len(images) < evidence.count:
            said = (f"{len(images)} of {evidence.count} images found: the others pass neither test or one only",)
        mean = self.knowledge.pixel_mean
        if mean is None and len(images):
            mean = infer_background(images, self.knowledge.pixel_std)
        facts: Facts = {
            "used_num_private": float(evidence.count),
            "rank": float(len(evidence.rows)),
            "steps": 1.0,
            "threshold": UNKNOWN.residual,
            "gradient_threshold": UNKNOWN.gradient,
        }
        return Reconstruction(
            images=images.reshape(-1, *shape),
            held=acceptance.held.reshape(-1, *shape),
            residual=acceptance.residual,
            pixel_mean=mean or (),
            relative_residual=acceptance.relative_residual if len(images) else 1.0,
            warnings=(*evidence.warnings, *said),
            facts=facts | acceptance.facts,
        )
