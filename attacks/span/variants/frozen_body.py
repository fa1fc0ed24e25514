"""The span attack on a trained head behind a frozen body, as where a pretrained network is only given a new head.

The body's features h(x) never move, so the head is a multilayer perceptron whose inputs are the features: they are
found exactly, as images are where linear layers start at the pixels. Each feature vector is then inverted to pixels
through the body, min ‖h(x) − h‖² / ‖h‖² from a smooth start. That tells of an image what its features tell: a ResNet-18
has 512 of them for the 3,072 numbers of a small image. So features are the proof, and an image is returned only where
they leave no other one open.
"""

import itertools
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from attacks.base import Progress, Reconstruction
from attacks.interface.observation import Observation, State
from attacks.interface.torch_tools import cast_state
from attacks.networks.probing import random_images
from attacks.span.evidence.pixel_evidence import PixelEvidence
from attacks.span.feature_space.inversion import PixelTest, determined, invert_features
from attacks.span.feature_space.network import PROBES, FeatureNetwork
from attacks.span.maps.inversion import dead_leaves
from attacks.span.search.candidates import Candidates
from attacks.span.stages import Acceptance
from attacks.span.thresholds import FEATURE, FROZEN_BODY, constants_of
from attacks.span.variants.pixels import PixelVariant


@dataclass(frozen=True)
class FrozenBodyVariant(PixelVariant):
    """Features found exactly by the head, as `PixelVariant` finds images, then pixels by inversion through the body.

    observation, network: of the head alone, whose input shape is (D, 1, 1). Of the knowledge num_private alone is used.
    whole, body: of the network with its body.
    """

    whole: Observation
    body: FeatureNetwork

    def accept(
        self, evidence: PixelEvidence, candidates: Candidates, generator: torch.Generator, progress: Progress
    ) -> Acceptance:
        """Invert the accepted and the held feature vectors to images (M, C, H, W); hold those that their features do
        not determine. residual: ‖h(x) − h‖² / ‖h‖²."""
        accepted = super().accept(evidence, candidates, generator, progress)
        features = accepted.images[accepted.residual.argsort(stable=True)]
        images, residual = self._inverted(features, generator)
        held, _ = self._inverted(accepted.held, generator)
        rows = normalize(pad(features, (0, 1), value=1.0))
        tests = [PixelTest(self.body, self._state, row[None]) for row in rows]
        kept = determined(tests, images, images[:0])
        if kept.any():
            kept &= self._lost(images, residual, generator) < FEATURE.left_open
        return replace(
            accepted,
            images=images[kept],
            residual=residual[kept],
            facts=accepted.facts | constants_of(FROZEN_BODY, FEATURE),
            held=torch.cat([images[~kept], held]),
            features=features,
        )

    @cached_property
    def _state(self) -> State:
        device = next(self.body.model.parameters()).device
        return cast_state(self.whole.initial, device, torch.float32)

    def _inverted(self, features: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Find images (M, C, H, W) with features (M, D), and how far each misses them, (M,)."""
        shape = (len(features), *self.whole.input_shape)
        images = (FROZEN_BODY.start_deviation * torch.randn(shape, generator=generator)).to(features.device)
        invert = partial(invert_features, self.body, self._state, features)
        images = invert(images, FROZEN_BODY.smooth, FROZEN_BODY.smooth_blur)
        images = invert(images, FROZEN_BODY.exact, FROZEN_BODY.exact_blur)
        with torch.no_grad():
            missed = (self.body.features(self._state, images) - features).square().sum(1)
        return images, missed / features.square().sum(1)

    def _lost(self, images: Tensor, residual: Tensor, generator: torch.Generator) -> Tensor:
        """Return the largest ‖x − d‖ / ‖d − its mean‖ (M,) of images x from the features of decoys d, as bright and of
        as much contrast as `images`, and as many times more as an image misses its features by more than they do. They
        do not come back where images far from each other have the same features, as where a body squares its input;
        and images miss their features, which are exact, where the client's body is another than the one known."""
        leaves = dead_leaves(FROZEN_BODY.decoys, self.whole.input_shape, generator).to(images)
        decoys = images.mean() + images.std() * leaves
        with torch.no_grad():
            features = self.body.features(self._state, decoys)
        inverted, left = self._inverted(features, generator)
        missed, size = (
            part.flatten(1).norm(dim=1) for part in (inverted - decoys, decoys - decoys.mean((1, 2, 3), keepdim=True))
        )
        return (missed / size).max() * (residual / left.max()).clamp_min(1).sqrt()

    def report(self, evidence: PixelEvidence, acceptance: Acceptance) -> Reconstruction:
        """Return the images, and the features."""
        found = super().report(evidence, replace(acceptance, images=acceptance.images[:0], held=acceptance.held[:0]))
        warnings, features = found.warnings, f"feature vectors of {self.observation.input_shape[0]} numbers"
        if acceptance.features is not None and (number := len(acceptance.features)):
            passed = f"{int(acceptance.facts['certified'])} passed the sparsity test"
            told = f"the body is frozen: {number} {features} were found, {passed}"
            left = number - len(acceptance.images)
            why = "their features leave other images open, or are another body's"
            lost = f"; {left} images are not returned: {why}" if left else ""
            warnings += (f"{told}, and inverted{lost}",)
        images, held = (part.reshape(-1, *self.whole.input_shape) for part in (acceptance.images, acceptance.held))
        return replace(found, images=images, held=held, warnings=warnings)


def head_of(observation: Observation, network: FeatureNetwork) -> Observation | None:
    """Return the observation of the head alone, where nothing else moved and, on random inputs, it is linear layers
    with ReLU between. A body that nobody marked as frozen, and whose optimizer was given the head alone, is frozen."""
    known = {f"{layer}.{part}": (i, part) for i, layer in enumerate(network.layers) for part in ("weight", "bias")}
    if not observation.moved <= set(known):
        return None
    initial = observation.initial
    sizes = [initial[f"{layer}.weight"].shape for layer in network.layers]
    if any(into != out for (out, _), (_, into) in itertools.pairwise(sizes)):  # they stand beside each other
        return None
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):  # for initial values, which nobody reads
        for layer, (out, into) in zip(network.layers, sizes, strict=True):
            layers += [nn.Linear(into, out, bias=f"{layer}.bias" in initial), nn.ReLU()]
    head = nn.Sequential(nn.Flatten(), *layers[:-1]).to(next(network.model.parameters()).device)
    for name, (i, part) in known.items():
        if name in initial:
            head.get_parameter(f"{2 * i + 1}.{part}").requires_grad_(name in observation.trainable)

    def of_head(state: State) -> State:
        return {f"{2 * i + 1}.{part}": state[name] for name, (i, part) in known.items() if name in state}

    probe = random_images(observation.input_shape, PROBES)
    probe = probe.to(initial[f"{network.layers[0]}.weight"])
    with torch.no_grad():
        features, _, expected = network.watch(initial, probe)
        found = torch.func.functional_call(head, of_head(initial), (features,))
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=1e-4, atol=1e-5):
        return None
    pairs = tuple((of_head(first), of_head(last)) for first, last in observation.pairs)
    return replace(observation, model=head, pairs=pairs, input_shape=(features.shape[1], 1, 1))
