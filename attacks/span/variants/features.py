"""The span attack on networks whose fully connected layers follow a convolutional body, or anything else.

**Many features of an image** (`FeatureVariant`): feature vectors are found in the span of the first fully connected
layer's update, inverted to pixels and made exact there (`attacks.span.feature_space`). A candidate is accepted if the
update's row space holds its features, and its column space the gradient that it must have sent. The search does not
minimize the second condition. If the rank shows single steps, later ones are searched at their own parameters.

**Much fewer features than pixels** (`FewFeaturesVariant`), as behind max pooling: the features are found exactly, after
one step as vertices of a cone that tells N as well (`attacks.span.feature_space.cone`), but many images have the same.
So the features are accepted, by their ρ against that of decoys, and the images are the likeliest that have them
(`attacks.span.maps.inversion`): all held, as a likely image may be nobody's. If a few decoys do not come back at all
from exact features, no image is looked for. The image of a client of one is found with the updates of the convolutions
beside (`attacks.span.feature_space.single_image`).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.base import Facts, Progress, Reconstruction
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.networks.mlp import ACTIVATIONS
from attacks.networks.probing import linear_layers
from attacks.span.feature_space.cone import cone_features
from attacks.span.feature_space.network import FeatureNetwork
from attacks.span.feature_space.search import FeatureSearch
from attacks.span.feature_space.single_image import FoundImage, find_image, pooled_layers
from attacks.span.feature_space.update import UNKNOWN, FeatureUpdate
from attacks.span.maps.inversion import MapTarget, PixelSpace, decoys_lost, likeliest_images, shared
from attacks.span.search.candidates import SearchOptions, decoys_of
from attacks.span.stages import Acceptance, Variant
from attacks.span.thresholds import (
    CONE,
    FEATURE,
    INVERSION,
    MAP_INVERSION,
    MOMENTUM,
    SEARCH,
    SINGLE_IMAGE,
    constants_of,
)
from attacks.update.private_set import infer_background
from attacks.update.spectrum import layer_update


@dataclass(frozen=True)
class FeatureVariant(Variant[FeatureUpdate, FeatureSearch]):
    """Feature vectors in the span of the first fully connected layer's update, then the images that have them.

    Only the first round whose update is not zero is used.
    """

    observation: Observation
    knowledge: Knowledge
    options: SearchOptions
    network: FeatureNetwork

    def read(self, generator: torch.Generator) -> FeatureUpdate:
        """Compute the row spaces of the first two fully connected layers' updates, and the first one's column space."""
        return FeatureUpdate.of(self.network, self.observation, self.knowledge)

    def search(self, evidence: FeatureUpdate, generator: torch.Generator, progress: Progress) -> FeatureSearch:
        """Find images whose features and gradients the update holds, step by step."""
        search = FeatureSearch.of(evidence, self.options)
        search.run(generator, progress)
        return search

    def accept(
        self, evidence: FeatureUpdate, candidates: FeatureSearch, generator: torch.Generator, progress: Progress
    ) -> Acceptance:
        """Accept the images that passed by ρ and λ. residual: λ."""
        found, bounds, best = candidates.found, candidates.bounds, candidates.best
        facts = constants_of(FEATURE, INVERSION, MOMENTUM, SEARCH) | {
            "steps": float(len(candidates.states)),
            "momentum": candidates.momentum.value,
            "accepted_up_to": bounds.residual,
            "gradient_threshold": bounds.gradient,
        }
        reason = None
        if not len(found.images):
            reason = (
                f"nothing returned: none of {candidates.tried} candidates passes both tests: their least ρ is "
                f"{best.residual:.2g} (below {bounds.residual:.2g} is asked), their least λ {best.gradient:.2g} "
                f"(below {bounds.gradient:.2g})"
            )
            if not candidates.tried:
                reason = "nothing returned: the search found no candidate"
        if candidates.undetermined:
            reason = (
                f"{candidates.undetermined} images are not returned: they pass both tests, but their features leave "
                "other images open"
            )
        left = evidence.relative_residual(candidates.points()) if len(found.images) else 1.0
        return Acceptance(found.images, found.gradient, reason, left, facts, candidates.beside())

    def report(self, evidence: FeatureUpdate, acceptance: Acceptance) -> Reconstruction:
        """Return the images. Their residual is λ."""
        images, reason = acceptance.images, acceptance.reason
        if 0 < len(images) < evidence.count and reason is None:
            reason = f"{len(images)} of {evidence.count} images found: the others pass neither test or one only"
        mean = self.knowledge.pixel_mean
        if mean is None and len(images):
            mean = infer_background(images, self.knowledge.pixel_std)
        facts: Facts = {
            "used_num_private": float(evidence.count),
            "rank": float(len(evidence.rows)),
            "steps": 1.0,
            "accepted_up_to": UNKNOWN.residual,
            "gradient_threshold": UNKNOWN.gradient,
        }
        return replace(acceptance, reason=reason).reported(
            self.observation.input_shape,
            evidence.warnings,
            pixel_mean=mean or (),
            relative_residual=acceptance.relative_residual if len(images) else 1.0,
            facts=facts | acceptance.facts,
        )


@dataclass(frozen=True)
class FoundFeatures:
    """Feature vectors of low ρ.

    features: (F, D), best first.
    residual: (F,), their ρ.
    bound: on ρ, a tenth of what decoys have, which are means of two of them.
    certified: whether they are vertices of the cone; residual is then their share of silent units.
    """

    features: Tensor
    residual: Tensor
    bound: float
    certified: bool = False
    likeliest: Tensor | None = None
    """Images (F', C, H, W) that have the accepted ones; None if none is accepted, or decoys do not come back."""
    single: FoundImage | None = None
    """What the convolutions' updates tell of the image of a client with one."""

    @property
    def accepted(self) -> Tensor:
        """(F,) bool: whether their ρ is below the bound."""
        return self.residual < self.bound


@dataclass(frozen=True)
class FewFeaturesVariant(Variant[FeatureUpdate, FoundFeatures]):
    """Feature vectors accepted by ρ, at the parameters that were sent, and images that have them.

    features: the variant for networks with more of them, which reads and reports in the same way.
    """

    features: FeatureVariant

    def read(self, generator: torch.Generator) -> FeatureUpdate:
        """Compute the row spaces of the first two fully connected layers' updates."""
        return self.features.read(generator)

    def search(self, evidence: FeatureUpdate, generator: torch.Generator, progress: Progress) -> FoundFeatures:
        """Find the features of as many images as the update shows, and the likeliest images of those accepted."""
        found = self._features(evidence, generator)
        if not found.accepted.any():
            return found
        if evidence.count == 1 and found.certified:
            single = self._single(evidence, generator, progress)
            if single is not None:
                return replace(found, single=single)
        return replace(found, likeliest=self._likeliest(evidence, found.features[found.accepted], generator, progress))

    def _features(self, evidence: FeatureUpdate, generator: torch.Generator) -> FoundFeatures:
        """Return the vertices of the cone, or, if they are few, feature vectors of low ρ if more of these pass."""
        none = evidence.rows.new_zeros(0, evidence.rows.shape[1] - 1)
        cone = self._cone(evidence, generator) or FoundFeatures(none, none.new_zeros(0), 0.0)
        if evidence.test is None or 2 * len(cone.features) > evidence.count:
            return cone
        features = FeatureSearch.of(evidence, self.features.options).feature_vectors(generator)
        test = evidence.span_test(evidence.initial)
        features = features[test.residual(features).argsort(stable=True)][: evidence.count]
        decoys = test.residual(decoys_of(features, FEATURE.decoys, generator))
        usual = float(decoys.quantile(FEATURE.accepting_quantile)) if len(decoys) else 0.0
        bound = FEATURE.few_margin * usual  # even a search that finds nothing ends below most decoys
        searched = FoundFeatures(features, test.residual(features), bound)
        return searched if not len(cone.features) or searched.accepted.sum() > len(cone.features) else cone

    def accept(
        self, evidence: FeatureUpdate, candidates: FoundFeatures, generator: torch.Generator, progress: Progress
    ) -> Acceptance:
        """Accept features, and hold the likeliest images that have them. residual: ρ of a single image's."""
        facts: Facts = {**constants_of(CONE, FEATURE, MAP_INVERSION, SEARCH), "accepted_up_to": candidates.bound}
        kept = candidates.accepted
        features, residual = candidates.features[kept], candidates.residual[kept]
        facts["features_accepted"] = float(len(features))
        nothing = features.new_zeros(0, *evidence.shape)
        vetoed = None
        if evidence.test is None and not candidates.certified:
            vetoed = f"no second fully connected layer is wide enough to test the features of {evidence.count} images"
        elif not len(kept):
            vetoed = f"no candidate for the features of {evidence.count} images was found"
        elif not len(features):
            lowest = float(candidates.residual.min())
            vetoed = f"the lowest ρ of features is {lowest:.2g}, and has to be below {candidates.bound:.2g}"
        if vetoed is not None:
            return Acceptance(nothing, residual, f"nothing returned: {vetoed}", 1.0, facts, nothing, features)
        left = evidence.relative_residual(torch.cat([features, features.new_ones(len(features), 1)], 1))
        if candidates.single is not None:
            return _of_single(candidates.single, Acceptance(nothing, residual, None, left, facts, nothing, features))
        reason = f"{len(features)} images are not returned: their features were found, but other images have the same"
        held = nothing if candidates.likeliest is None else candidates.likeliest
        return Acceptance(nothing, residual[:0], reason, left, facts, held, features)

    def _likeliest(
        self, evidence: FeatureUpdate, features: Tensor, generator: torch.Generator, progress: Progress
    ) -> Tensor | None:
        """Return images that have these features (F, D); None if a few decoys do not come back from their own."""
        target = MapTarget(lambda images: evidence.network.features(evidence.initial, images), features)
        pixels, descent = PixelSpace(evidence.shape, evidence.pixel_range), FEATURE.few_descent
        pilot, images = FEATURE.pilot_decoys, MAP_INVERSION.starts * len(features)
        share = shared(progress, 0, pilot, pilot + images)
        if decoys_lost(target, pixels, descent, pilot, generator, share) >= FEATURE.pilot_error:
            return None
        share = shared(progress, pilot, images, pilot + images)
        return likeliest_images(target, pixels, descent, generator, share)[0]

    def report(self, evidence: FeatureUpdate, acceptance: Acceptance) -> Reconstruction:
        """Return the images, with the ρ of their features as residual, and all accepted features."""
        said = () if acceptance.reason is None else (acceptance.reason,)
        return replace(self.features.report(evidence, acceptance), warnings=(*evidence.ignored, *said))

    def _cone(self, evidence: FeatureUpdate, generator: torch.Generator) -> FoundFeatures | None:
        """Return the features that one step's signals certify; None if features may be negative or no ReLU follows."""
        network, factors = evidence.network, evidence.factors
        if not (factors.exact and network.nonnegative and network.activation is ACTIVATIONS["relu"]):
            return None
        layer = layer_update(evidence.initial, network.layers[0]).double()
        features, shares = cone_features(factors, layer, generator)
        return FoundFeatures(features.float(), shares.float(), CONE.silent_share, certified=True)

    def _single(self, evidence: FeatureUpdate, generator: torch.Generator, progress: Progress) -> FoundImage | None:
        """Return the image of a client with one; None unless the body is a narrow chain of pooled convolutions."""
        layers = pooled_layers(evidence.network, evidence.initial, evidence.shape)
        if layers is None or max(layer.inputs for layer in layers) > SINGLE_IMAGE.most_inputs:
            return None
        delta = self.features.observation.one_round()[0].delta()
        if not {f"{layer.name}.weight" for layer in layers} <= set(evidence.trained):
            return None
        bounds = evidence.pixel_range
        pixels = PixelSpace(evidence.shape, None if bounds is None else (bounds[0].cpu(), bounds[1].cpu()))
        head = evidence.network.layers[0]
        return find_image(layers, delta, evidence.initial, head, pixels, generator, progress=progress)


def _of_single(found: FoundImage, accepted: Acceptance) -> Acceptance:
    """Accept the image of a client with one, beside its features: return it if a decoy came back, else hold it."""
    facts: Facts = accepted.facts | constants_of(SINGLE_IMAGE)
    facts |= {"misfit": found.misfit, "decoy_misfit": found.decoy_misfit, "decoy_error": found.decoy_error}
    accepted = replace(accepted, facts=facts)
    features = "its features were found, but"
    if found.image is None:
        lost = f"the best input of {found.layer!r} leaves {found.misfit:.2g} of its update"
        return replace(accepted, residual=accepted.residual[:0], reason=f"no image returned: {features} {lost}")
    shown = replace(accepted, images=found.image.to(accepted.images))
    if found.trusted:
        return shown
    lost = f"a known image lost {found.decoy_error**2:.2g} of its contrast's energy"
    said = f"the image leaves {found.misfit:.2g} of the update of {found.layer!r}, that one {found.decoy_misfit:.2g}"
    return shown.withheld(f"1 of 1 images is not returned: {features} {lost}, and {said}")


def has_few_features(network: FeatureNetwork, pixels: int) -> bool:
    """Return whether two linear layers are fed too few numbers of so many pixels to tell an image from others."""
    features = linear_layers(network.model)[network.layers[0]].in_features
    return network.activation is not None and features < FEATURE.few_features * pixels
