"""Exact reconstruction of a client's images from the row spaces of its update.

Under SGD, with or without momentum, the first layer's row space is the span of the private images and tells their
number; the second layer's holds their features and tells them from other points of that span. The training of the
client is never simulated: learning rate, steps, batches, labels and loss need not be known. docs/explanation/span.md
and docs/explanation/convnets.md say what the attack withstands.

This file chooses the variant for a network and runs it, round by round where needed. The rest, in reading order:

    stages.py          what every variant does: read, search, accept, report; the types handed from one to the next
    variants/          the variants: pixels, where linear layers start at the images (read this one first);
                       one_hidden, where there is no second hidden layer; features, where they follow a convolutional
                       body; frozen_body, where only a head is trained; maps, where pairs of layers tell what
                       they were fed; vectors, where single ones do; patch_embedding, for vision transformers, and
                       several_patches, where their client has several images; last_layer, where none of them suits
    evidence/          read: layers (the first two layers' updates, without weight decay), known_defense (without what
                       is known of a defense), pixel_evidence (the number of images and the regime of the update)
    search/            search: problems (ρ, lowest at private images), descent (of many points at once), candidates
                       (what the passes of the search have found)
    sparse_duals.py    search: the sparsity test of a candidate, whose zeros make it exact
    acceptance.py      accept: as a set, one by one, or fitted in noise
    feature_space/     the same stages for features: network, update, inversion to pixels, search; and single_image,
                       the inversion where the client has one
    tokens.py          search: tokens of a vision transformer, put together to images
    maps/              the same stages for maps of convolutions: network, patches, update, search, inversion to pixels;
                       and projections and places, which put together what a 1x1 convolution was fed
    joining.py         one result of several
    thresholds.py      every tuned constant
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn

from attacks.base import Attack, Progress, Reconstruction, register
from attacks.interface.errors import InputError
from attacks.interface.knowledge import DEFENSE_FIELDS, Knowledge
from attacks.interface.observation import Observation
from attacks.networks.own_forward import layer_of_other_products
from attacks.networks.probing import (
    DRAWN,
    OTHER,
    check_differentiable,
    check_float64,
    evaluating,
    fed_in_training,
    made_of_others,
    parameter_names,
)
from attacks.networks.vision_transformer import find_patch_embedding
from attacks.span.evidence.known_defense import knows_defense
from attacks.span.feature_space.network import find_feature_network
from attacks.span.joining import of_rounds, told_and_untold
from attacks.span.search.candidates import SearchOptions
from attacks.span.stages import RoundsApart, Variant, check_bias
from attacks.span.thresholds import EVIDENCE
from attacks.span.variants.features import FeatureVariant, FewFeaturesVariant, has_few_features
from attacks.span.variants.frozen_body import FrozenBodyVariant, head_of
from attacks.span.variants.last_layer import last_layer_of
from attacks.span.variants.maps import MapVariant, map_networks_of
from attacks.span.variants.one_hidden import OneHiddenVariant
from attacks.span.variants.patch_embedding import PatchVariant
from attacks.span.variants.pixels import PixelVariant, linear_layers_of
from attacks.span.variants.several_patches import several_of
from attacks.span.variants.vectors import VectorVariant, vector_layers_of
from attacks.update.intervals import seen_compression
from attacks.update.private_set import infer_pixel_mean
from attacks.update.spectrum import TINY


@register
@dataclass(frozen=True)
class SpanAttack(SearchOptions, Attack):
    """Compute the exact images of a small client from what its first layers changed by.

    Where these are fully connected, they are the points of the first layer's span whose features lie in the second
    layer's row space.

    Several pairs of one client are taken together: the span of all first-layer updates, and the second layer's test in
    every round. Where no round shows most of the images that all show together, as in the global checkpoints of a
    federation whose clients take turns, each round is attacked alone.

    starts: random points per pass of the search.
    steps: of Adam from each, with what is found deflated.
    settle: further steps, on the plain ρ.
    polish: the last steps, at a tenth of the step size.
    rounds: most passes of the search.
    learning_rate: of Adam, in the coordinates of the span.
    device: auto, cpu or cuda.
    """

    name: ClassVar[str] = "span"
    vouches: ClassVar[bool] = True

    device: str = "auto"

    def check_requirements(self, observation: Observation, knowledge: Knowledge) -> None:
        """Raise InputError where no variant suits the network, or the one that does has to know more."""
        model = observation.model
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Linear | nn.Conv2d) and (made := made_of_others(layer)) is not None:
                raise InputError(
                    f"attack 'span' needs layers whose weights and biases are parameters: model "
                    f"{type(model).__name__!r} makes the {made} of {name!r} of others, as weight_norm and other "
                    "parametrizations do (use 'ntk')"
                )
        try:
            with evaluating(model):
                self._variant(observation, knowledge)
        except InputError:
            if (rank := observation.adapter_rank) is None:
                raise
            raise InputError(
                f"attack 'span' reads what a layer was fed off the rows of its update: model {type(model).__name__!r} "
                f"trains adapters (LoRA), and those of rank {rank} have {rank} rows (use 'gradient_matching', and test "
                "candidates with `fedspill member`)"
            ) from None

    def reconstruct(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Progress
    ) -> Reconstruction:
        """Use num_private where it is known, else infer it. residual is what the variant reports. Raises InputError for
        an update of zero."""
        if not knows_defense(observation, knowledge):
            return _as_trained(self._attack(observation, knowledge, generator, progress), observation, knowledge)
        # the update as it was sent may do where the one that knowledge of the defense makes of it does not
        same = torch.Generator().set_state(generator.get_state())
        told = self._attack(observation, knowledge, generator, progress)
        naive = replace(knowledge, **dict.fromkeys(DEFENSE_FIELDS))
        found = told_and_untold(told, self._attack(observation, naive, same, progress))
        return _as_trained(found, observation, knowledge)

    def _attack(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Progress
    ) -> Reconstruction:
        """Read, search, accept and report; each round alone where they do not share one private set. Where nothing
        comes back, ask the last layer."""
        try:
            found = self._variant(observation, knowledge).attack(generator, progress)
            if len(found.images) or found.num_features:
                return found
            last = last_layer_of(observation, "nothing was found ahead of it")
            return found if last is None else _with_features(found, last.attack(generator, progress))
        except RoundsApart as apart:
            known = replace(knowledge, num_private=None)  # the number that is known is that of the union
            rounds = [replace(observation, pairs=(observation.pairs[r],)) for r in apart.rounds]
            joined = of_rounds(apart, [self._attack(one, known, generator, progress) for one in rounds])
            mean = knowledge.pixel_mean or infer_pixel_mean(rounds[0], knowledge.pixel_std)
            return replace(joined, pixel_mean=mean or ())

    def _variant(self, observation: Observation, knowledge: Knowledge) -> Variant[Any, Any]:
        """Return the variant that suits a network in evaluation mode; raise InputError where none does."""
        try:
            return self._by_front(observation, knowledge)
        except InputError as refused:
            others = str(refused).removeprefix("attack 'span' needs ").partition(" (use ")[0]
            if (last := last_layer_of(observation, f"more than features needs {others}")) is None:
                raise
            return last

    def _by_front(self, observation: Observation, knowledge: Knowledge) -> Variant[Any, Any]:
        """Return the variant for what a network begins with."""
        model = observation.model
        if (name := layer_of_other_products(model, observation.input_shape, observation.moved)) is not None:
            raise InputError(
                "attack 'span' needs layers whose update is made of their signals and what they are fed: the `forward` "
                f"of {type(model.get_submodule(name)).__name__} {name!r} of model {type(model).__name__!r} makes it of "
                "others, as where it normalizes inputs or weights (use 'ntk')"
            )
        patches = find_patch_embedding(observation.model, observation.input_shape)
        if patches is not None and {patches.weight, patches.positions} <= observation.moved:
            return PatchVariant(observation, patches)
        network = find_feature_network(observation.model, observation.input_shape)
        layers = () if network is None else network.layers[:2]
        needed = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
        if network is None or len(layers) < 2 or not needed <= set(observation.trainable):
            if patches is not None and (several := several_of(observation, patches)) is not None:
                return several
            if pairs := map_networks_of(observation):
                check_differentiable(self.name, observation.model, observation.input_shape)
                check_float64(self.name, observation.model, observation.input_shape)
                return MapVariant(observation, knowledge, pairs)
            if patches is not None:
                return PatchVariant(observation, patches)
            if fed := vector_layers_of(observation):
                return VectorVariant(observation, knowledge, fed)
            layers_of_pixels = linear_layers_of(observation)
            variant = OneHiddenVariant if len(layers_of_pixels.weights) == 2 else PixelVariant
            return variant.of(observation, knowledge, self, layers_of_pixels)
        check_bias(observation, layers[0])
        check_differentiable(self.name, observation.model, observation.input_shape)
        check_float64(self.name, observation.model, observation.input_shape)
        if len(network.layers) > 2 and (head := head_of(observation, network)) is not None:
            # mean and range are those of pixels, and the head is fed features
            told = Knowledge(num_private=knowledge.num_private)
            return FrozenBodyVariant(head, told, self, linear_layers_of(head), True, observation, network)
        features = FeatureVariant(observation, knowledge, self, network)
        if has_few_features(network, math.prod(observation.input_shape)):
            return FewFeaturesVariant(features)
        knowledge.require(self.name, "num_private", because="behind convolutions, an image shows once for every step")
        return features


def _with_features(found: Reconstruction, last: Reconstruction) -> Reconstruction:
    """Add the features that the last layer told, if it did, to the result of a variant that found nothing."""
    if not last.num_features:
        return found
    warnings = tuple(dict.fromkeys((*found.warnings, *last.warnings)))
    count = last.num_inferred
    return replace(found, features=last.features, num_inferred=count, facts=found.facts | last.facts, warnings=warnings)


def _as_trained(found: Reconstruction, observation: Observation, knowledge: Knowledge) -> Reconstruction:
    """Hold images that are nobody's because training fed a layer otherwise than evaluation mode does.

    Behind dropout a layer is fed what was drawn at random: images of some pixels only, or with noise, which are held,
    and features, which are left out. Where training fed it something else, features are brought back to wrong images,
    which are held. Where nothing came back, say what may read an update that was compressed.
    """
    if not len(found.images) and not found.num_features:
        if (seen := seen_compression(observation, knowledge)) is None:
            return found
        if knows_defense(observation, knowledge):
            return replace(found, warnings=(*found.warnings, f"nothing returned: {seen}"))
        return replace(found, num_inferred=None, warnings=(f"nothing returned: {seen}", *found.warnings))
    fed = fed_in_training(observation.model, observation.input_shape)
    network = find_feature_network(observation.model, observation.input_shape)
    of_features = str(found.facts.get("layer", network.layers[0] if network is not None else ""))
    layer = of_features if found.num_features else next(iter(fed), "")
    if fed.get(layer) == DRAWN:
        held = _without_images(found, f"nothing returned: what {layer!r} is fed is {DRAWN}, and what came back is that")
        return replace(held, features=None)
    if len(found.images) and _centralized(observation):
        said = "the rows of all layers' updates add up to zero, as where gradients are centralized: means are lost"
        return _without_images(found, f"no image is returned: {said}")
    others = [layer for layer in (next(iter(fed), ""), of_features) if fed.get(layer) == OTHER]
    if not len(found.images) or not others:
        return found
    said = f"no image is returned: what {others[0]!r} is fed is {OTHER}, and images came back from that"
    return _without_images(found, said)


def _centralized(observation: Observation) -> bool:
    """Return whether the rows of every layer's update add up to zero, of two layers or more. No layer's do without
    centralization that is fed pixels or what ReLU leaves."""
    delta, layers = observation.one_round()[0].delta(), observation.model.named_modules()
    names = (parameter_names(name)[0] for name, layer in layers if isinstance(layer, nn.Linear | nn.Conv2d))
    updates = [delta[name].double().flatten(1) for name in names if name in observation.moved]
    shares = [float(one.sum(1).norm() / one.norm().clamp_min(TINY)) / one.shape[1] ** 0.5 for one in updates]
    return len(shares) > 1 and max(shares) < EVIDENCE.centred


def _without_images(found: Reconstruction, said: str) -> Reconstruction:
    """Hold all images, and say why."""
    held = found.images if found.held is None else torch.cat([found.images, found.held])
    left = replace(found, images=found.images[:0], residual=found.residual[:0], duals=None, groups=None)
    return replace(left, held=held, warnings=(*found.warnings, said))
