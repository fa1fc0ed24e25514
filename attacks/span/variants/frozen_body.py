"""The span attack on a trained head behind a frozen body, as where a pretrained network is only given a new head.

The body's features h(x) never move, so the head is a multilayer perceptron whose inputs are the features: they are
found exactly, as images are where linear layers start at the pixels. Each feature vector is then inverted to pixels
through the body, min ‖h(x) − h‖² / ‖h‖² from a smooth start. That tells of an image what its features tell: a ResNet-18
has 512 of them for the 3,072 numbers of a small image.
"""

from dataclasses import dataclass, replace

import torch
from torch import nn

from attacks.interface.attack import Progress, Reconstruction
from attacks.interface.devices import cast_state
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.networks.probing import random_images
from attacks.span.evidence.pixel_evidence import PixelEvidence
from attacks.span.feature_space.inversion import invert_features
from attacks.span.feature_space.network import PROBES, FeatureNetwork, first_input
from attacks.span.search.candidates import Candidates
from attacks.span.search.passes import SearchOptions
from attacks.span.stages import Acceptance, RoundsApart, mean_or_half
from attacks.span.thresholds import FROZEN_BODY
from attacks.span.variants.pixels import PixelVariant


@dataclass(frozen=True)
class FrozenBodyVariant:
    """Features found exactly by the head, as `PixelVariant` finds images, then pixels by inversion through the body.

    Of the knowledge num_private and pixel_mean alone are used. network: the whole one. head: the attack on the head
    alone, whose input shape is (D, 1, 1).
    """

    observation: Observation
    knowledge: Knowledge
    network: FeatureNetwork
    head: PixelVariant

    @classmethod
    def of(
        cls, observation: Observation, knowledge: Knowledge, options: SearchOptions, network: FeatureNetwork
    ) -> "FrozenBodyVariant | None":
        """None where more is trained than linear layers with ReLU between; as `PixelVariant` raises InputError."""
        head = head_of(observation, network)
        if head is None:
            return None
        mean = (0.0,) * head.input_shape[0]  # none is removed from features
        told = Knowledge(num_private=knowledge.num_private, pixel_mean=mean)
        return cls(observation, knowledge, network, PixelVariant.of(head, told, options))

    def read(self, generator: torch.Generator) -> PixelEvidence | RoundsApart:
        """What the first two layers of the head show."""
        return self.head.read(generator)

    def search(self, evidence: PixelEvidence, generator: torch.Generator, progress: Progress) -> Candidates:
        """Candidates for feature vectors."""
        return self.head.search(evidence, generator, progress)

    def accept(self, evidence: PixelEvidence, candidates: Candidates, generator: torch.Generator) -> Acceptance:
        """The accepted feature vectors, best first, inverted to images (M, C, H, W); residual: ‖h(x) − h‖² / ‖h‖²."""
        accepted = self.head.accept(evidence, candidates, generator)
        order = accepted.residual.argsort(stable=True)
        features = accepted.images[order]
        if accepted.reason is not None:
            return accepted
        device = next(self.network.model.parameters()).device
        state = cast_state(self.observation.initial, device, torch.float32)
        shape = (len(features), *self.observation.input_shape)
        images = (FROZEN_BODY.start_deviation * torch.randn(shape, generator=generator)).to(device)
        for descent, blur in (
            (FROZEN_BODY.smooth, FROZEN_BODY.smooth_blur),
            (FROZEN_BODY.exact, FROZEN_BODY.exact_blur),
        ):
            images = invert_features(self.network, state, features, images, descent, blur)
        with torch.no_grad():
            missed = (self.network.features(state, images) - features).square().sum(1)
        residual = missed / features.square().sum(1)
        return replace(accepted, images=images, residual=residual, facts=accepted.facts | FROZEN_BODY.facts())

    def report(self, evidence: PixelEvidence, acceptance: Acceptance) -> Reconstruction:
        """The images, with what was found of their features."""
        shape = self.observation.input_shape
        mean, unsure = mean_or_half(self.knowledge.pixel_mean, shape[0], "no pixel tells it")
        found = self.head.report(evidence, replace(acceptance, images=acceptance.images[:0]))
        warnings = (*found.warnings, *unsure)
        if number := len(acceptance.images):
            warnings += (
                f"the body is frozen: {number} feature vectors of {self.head.observation.input_shape[0]} numbers were "
                f"found, {int(acceptance.facts['certified'])} passed the sparsity test, and inverted; a pixel is known "
                "as far as they tell it",
            )
        return replace(found, images=acceptance.images.reshape(-1, *shape), pixel_mean=mean, warnings=warnings)


def head_of(observation: Observation, network: FeatureNetwork) -> Observation | None:
    """The observation of the head alone, where nothing else is trained and it is linear layers with ReLU between.

    What is built is checked against the model on random inputs.
    """
    known = {f"{layer}.{part}": (i, part) for i, layer in enumerate(network.layers) for part in ("weight", "bias")}
    if not set(observation.trainable) <= set(known):
        return None
    initial = observation.initial
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):  # for initial values, which nobody reads
        for layer in network.layers:
            out, into = initial[f"{layer}.weight"].shape
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
        features = first_input(network.model, network.layers[0], initial, probe)
        expected = torch.func.functional_call(network.model, initial, (probe,))
        found = torch.func.functional_call(head, of_head(initial), (features,))
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=1e-4, atol=1e-5):
        return None
    pairs = tuple((of_head(first), of_head(last)) for first, last in observation.pairs)
    return replace(observation, model=head, pairs=pairs, input_shape=(features.shape[1], 1, 1))
