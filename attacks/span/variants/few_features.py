"""The span attack where fully connected layers are fed much fewer numbers of an image than it has pixels.

A small network with max pooling gives its linear layers 400 features of 3,072 pixels. The features are found exactly,
as behind any other body, but many images have them: ρ and λ cannot tell a wrong image from the private one. So it is
the features that are accepted, by their ρ against that of decoys, and the images are the likeliest that have them
(`attacks.span.maps.inversion`): returned where decoys come back from their features, and held otherwise.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attacks.interface.attack import Facts, Progress, Reconstruction
from attacks.networks.probing import linear_layers
from attacks.span.acceptance import Acceptance
from attacks.span.feature_space.network import FeatureNetwork
from attacks.span.feature_space.found_images import FoundImages
from attacks.span.feature_space.search import FeatureSearch
from attacks.span.feature_space.update import FeatureUpdate
from attacks.span.maps.inversion import MapTarget, invert_maps
from attacks.span.search.candidates import decoys_of
from attacks.span.search.problems import SpanTest
from attacks.span.thresholds import FEATURE, MAP_INVERSION, SEARCH, constants_of
from attacks.span.variants.features import FeatureVariant
from attacks.update.first_layer import layer_update


@dataclass(frozen=True)
class FoundFeatures:
    """Feature vectors of low ρ. features: (F, D), best first. residual: (F,), their ρ. bound: the ρ that decoys, the
    means of two of them, demand."""

    features: Tensor
    residual: Tensor
    bound: float


@dataclass(frozen=True)
class FeatureAcceptance(Acceptance):
    """features: (F, D), those that were accepted, of all images returned or held."""

    features: Tensor = field(default_factory=lambda: torch.zeros(0))


@dataclass(frozen=True)
class FewFeaturesVariant:
    """Feature vectors accepted by ρ, at the parameters that were sent, and images that have them.

    features: the variant for networks with more of them, which reads and reports in the same way.
    """

    features: FeatureVariant

    def read(self, generator: torch.Generator) -> FeatureUpdate:
        """The row spaces of the first two fully connected layers' updates."""
        return self.features.read(generator)

    def search(self, evidence: FeatureUpdate, generator: torch.Generator, progress: Progress) -> FoundFeatures:
        """The feature vectors of lowest ρ in the first layer's span, as many as there are images."""
        if evidence.test is None:
            none = evidence.rows.new_zeros(0, evidence.rows.shape[1] - 1)
            return FoundFeatures(none, none.new_zeros(0), 0.0)
        search = FeatureSearch(evidence, self.features.options, [evidence.initial], FoundImages.none(evidence))
        features = search.feature_vectors(evidence.test, generator)
        test = self._test(evidence)
        features = features[test.residual(features).argsort(stable=True)][: evidence.count]
        decoys = test.residual(decoys_of(features, FEATURE.decoys, generator))
        bound = float(decoys.quantile(FEATURE.accepting_quantile)) if len(decoys) else 0.0
        return FoundFeatures(features, test.residual(features), bound)

    def accept(
        self, evidence: FeatureUpdate, candidates: FoundFeatures, generator: torch.Generator
    ) -> FeatureAcceptance:
        """The images of accepted features that decoys vouch for. residual: ρ of their features."""
        facts: Facts = {**constants_of(FEATURE, MAP_INVERSION, SEARCH), "threshold": candidates.bound}
        kept = candidates.residual < candidates.bound
        features, residual = candidates.features[kept], candidates.residual[kept]
        facts["features_accepted"] = float(len(features))
        nothing = features.new_zeros(0, *evidence.shape)
        if evidence.test is None:
            wanted = f"no second fully connected layer is wide enough to test the features of {evidence.count} images"
            vetoed = f"nothing returned: {wanted}"
            return FeatureAcceptance(nothing, residual, vetoed, 1.0, facts, nothing, features)
        if not len(features):
            lowest = float(candidates.residual.min()) if len(kept) else float("nan")
            vetoed = f"nothing returned: the lowest ρ of features is {lowest:.2g}, decoys demand {candidates.bound:.2g}"
            return FeatureAcceptance(nothing, residual, vetoed, 1.0, facts, nothing, features)
        left = evidence.relative_residual(torch.cat([features, features.new_ones(len(features), 1)], 1))
        target = MapTarget(lambda images: evidence.network.features(evidence.initial, images), features)
        found = invert_maps(target, evidence.shape, evidence.pixel_range, generator)
        trusted = torch.zeros(len(features), dtype=torch.bool) if found is None else found.trusted.cpu()
        images = nothing if found is None else found.images
        reason: str | None = None
        if not trusted.all():
            reason = (
                f"{int((~trusted).sum())} of {len(features)} images are not returned: their features were found, but "
                "decoys do not come back from such features"
            )
        shown, held = (images[trusted], images[~trusted]) if found is not None else (nothing, nothing)
        return FeatureAcceptance(shown, residual[trusted.to(residual.device)], reason, left, facts, held, features)

    def report(self, evidence: FeatureUpdate, acceptance: Acceptance) -> Reconstruction:
        """The images with the ρ of their features as residual, and the features of all."""
        found = self.features.report(evidence, acceptance)
        features = acceptance.features if isinstance(acceptance, FeatureAcceptance) else None
        said = () if acceptance.reason is None else (acceptance.reason,)
        return replace(found, features=features, warnings=(*evidence.ignored, *said))

    def _test(self, evidence: FeatureUpdate) -> SpanTest:
        """ρ of the second layer's rows at the parameters that were sent."""
        assert evidence.test is not None and evidence.network.activation is not None
        first = layer_update(evidence.initial, evidence.network.layers[0])
        return SpanTest(first, evidence.test[None], evidence.network.activation)


def has_few_features(network: FeatureNetwork, pixels: int) -> bool:
    """Whether the fully connected layers are fed too few numbers of an image of so many pixels to tell it from others;
    two such layers are needed, with an activation between."""
    features = linear_layers(network.model)[network.layers[0]].in_features
    return network.activation is not None and features < FEATURE.few_features * pixels
