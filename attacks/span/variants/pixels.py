"""The span attack on plain MLPs: the images themselves lie in the row space of the first layer's update."""

from dataclasses import dataclass, replace

import torch

from attacks.interface.attack import Progress, Reconstruction
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.networks.mlp import ACTIVATIONS, DenseNetwork, find_dense_network
from attacks.span.acceptance import Acceptance, accept_images
from attacks.span.evidence.known_defense import undo_defense
from attacks.span.evidence.layers import FirstLayers, rounds_with_images
from attacks.span.evidence.pixel_evidence import PixelEvidence, RoundsApart
from attacks.span.search.candidates import Candidates
from attacks.span.search.passes import SearchOptions, find_images
from attacks.span.search.problems import SpanTest
from attacks.span.sparsity.dual_space import DualSpace
from attacks.span.thresholds import EVIDENCE
from attacks.update.spectrum import Spectrum


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
        layers = defense.undone(layers)
        spectrum = Spectrum.of(layers.change)
        inferred = spectrum.count()
        if len(rounds) > 1 and (most := layers.most_images()) < EVIDENCE.shared_images * inferred:
            return RoundsApart(rounds, inferred, most)
        return PixelEvidence.of(layers, defense, spectrum, inferred, self.knowledge.num_private)

    def search(self, evidence: PixelEvidence, generator: torch.Generator, progress: Progress) -> Candidates:
        """Points of the first layer's span with features in the second layer's, and which pass the sparsity test."""
        layers, tests = evidence.layers, evidence.tests
        rows = torch.stack([part.vectors[: evidence.directions] for part in tests.values()]).float()
        hidden = torch.cat([layers.by_round(layers.initial)[r] for r in tests]).float()
        test = SpanTest(hidden, rows, ACTIVATIONS[self.network.activation])
        duals = DualSpace.of(layers.initial, layers.final, evidence.spectrum, evidence.count, layers.rounds)
        nothing = Candidates.empty(duals, test, sparsity_tested=self.network.activation == "relu")
        return find_images(nothing, self.options, generator, progress)

    def accept(self, evidence: PixelEvidence, candidates: Candidates, generator: torch.Generator) -> Acceptance:
        """The images that explain the second layer's update, made exact by least squares where noise hides zeros."""
        return accept_images(evidence, candidates, generator)

    def report(self, evidence: PixelEvidence, acceptance: Acceptance) -> Reconstruction:
        """The images with ρ at the initial parameters as their residual."""
        refused = () if acceptance.reason is None else (acceptance.reason,)
        return Reconstruction(
            images=acceptance.images.reshape(-1, *self.observation.input_shape),
            residual=acceptance.residual,
            num_inferred=evidence.inferred,
            relative_residual=acceptance.relative_residual,
            warnings=(*evidence.warnings, *refused),
            facts=evidence.facts | acceptance.facts,
        )
