"""Feature space: what fully connected layers behind a convolutional body tell about the features that they are fed.

For the first of them, z = W h(x) + b, any sequence of SGD steps leaves [ΔW | Δb] = Σ_t Σ_i δ_i(t) [h_i(t); 1]ᵀ: its
row space holds the feature vectors of the private images, as that of a multilayer perceptron's first layer holds the
images. They are found there by the same search (`attacks.span.search`), with the row space of the next fully connected
layer as the test.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.interface.observation import State
from attacks.networks.mlp import ACTIVATIONS, Activation
from attacks.networks.probing import linear_layers, probe, random_images, run_network, watched
from attacks.span.search.problems import AffineSpan, SpanProblem
from attacks.span.thresholds import FEATURE

PROBES = 8  # random inputs by which a network is read


@dataclass(frozen=True)
class FeatureNetwork:
    """Where the features of an image enter fully connected layers.

    model: any module. layers: names of its linear layers that are fed one vector per image, in the order of their use;
    the first is not fed the pixels themselves. activation: σ with σ(first layer's output) = second layer's input, None
    where there is no second layer or something else lies between. nonnegative: whether no feature of random images is
    negative, as behind ReLU and pooling.
    """

    model: nn.Module
    layers: tuple[str, ...]
    activation: Activation | None
    nonnegative: bool

    def features(self, state: State, images: Tensor) -> Tensor:
        """h (M, D), what the first of the layers is fed, for images (M, C, H, W) at the parameters `state`."""
        return self.watch(state, images)[0]

    def watch(self, state: State, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(h (M, D), z (M, W), outputs): what the first of the layers is fed and gives, and what the model gives."""
        seen: list[tuple[Tensor, Tensor]] = []
        layer = {"first": self.model.get_submodule(self.layers[0])}

        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            seen.append((inputs[0].clone(), output))
            return output.clone()  # what follows may change it in place

        with watched(layer, lambda name: hook):
            outputs = run_network(self.model, state, images)
        return *seen[0], outputs


def find_feature_network(model: nn.Module, input_shape: tuple[int, int, int]) -> FeatureNetwork | None:
    """The fully connected layers of a model, found by watching what every linear layer is given and gives on random
    images, whatever surrounds it.

    None where no linear layer is fed one vector per image, or where the first of them sees the pixels.
    """
    seen: list[tuple[str, Tensor, Tensor]] = []
    images = random_images(input_shape, PROBES)
    probe(model, images, linear_layers(model), lambda *call: seen.append(call))
    seen = [(name, fed, given) for name, fed, given in seen if fed.dim() == 2 and len(fed) == PROBES]
    names = tuple(name for name, _, _ in seen)
    if not seen or len(set(names)) < len(names):  # a layer that is used twice has no single input
        return None
    features = seen[0][1]
    if torch.equal(features, images.flatten(1).to(features)):
        return None
    return FeatureNetwork(model, names, _between(seen), bool((features >= 0).all()))


def _between(seen: list[tuple[str, Tensor, Tensor]]) -> Activation | None:
    """The activation that leads from what the first layer gives to what the second is fed, if it is one."""
    if len(seen) < 2 or seen[0][2].shape != seen[1][1].shape:
        return None
    given, fed = seen[0][2], seen[1][1]
    return next((own for own in ACTIVATIONS.values() if torch.allclose(own(given, None)[0], fed, atol=1e-5)), None)


@dataclass(frozen=True)
class FeatureProblem:
    """ρ of the second fully connected layer in the span of the first one's rows, and a penalty on negative features.

    origin: (D,), and directions: (n − 1, D), of the points h with [h; 1] in the first layer's row space.
    """

    rho: SpanProblem
    origin: Tensor
    directions: Tensor
    nonnegative: bool

    @classmethod
    def of(cls, rho: SpanProblem, span: AffineSpan, nonnegative: bool) -> "FeatureProblem":
        dtype = rho.rows.dtype
        return cls(rho, span.origin[:-1].to(dtype), span.directions[:, :-1].to(dtype).contiguous(), nonnegative)

    def value_and_gradient(self, coordinates: Tensor, found: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """ρ + ‖relu(−h)‖² / ‖h‖² (M,) and its gradient (M, n − 1)."""
        value, gradient = self.rho.value_and_gradient(coordinates, found)
        if not self.nonnegative:
            return value, gradient
        h = torch.addmm(self.origin, coordinates, self.directions)
        negative = h.clamp_max(0)
        size = h.square().sum(1)
        share = negative.square().sum(1) / size
        pull = (negative - share[:, None] * h) * (2 * FEATURE.negative_weight / size)[:, None]
        return value + FEATURE.negative_weight * share, gradient.addmm_(pull, self.directions.T)
