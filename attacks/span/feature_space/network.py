"""Feature space: read features off the update of the fully connected layers that are fed them.

For the first of them, z = W h(x) + b, any sequence of SGD steps leaves [ΔW | Δb] = Σ_t Σ_i δ_i(t) [h_i(t); 1]ᵀ, whose
row space holds the feature vectors of the private images. The same search finds them (`attacks.span.search`), and the
row space of the next fully connected layer tests them.

**Single SGD steps** (`UpdateFactors`): a rank-deficient update tells which images a step used, with which duals, and
where it led. An image x in the step from θ adds δ gᵀ to the update of the first fully connected layer,
z = W h(x) + b, with g = [h(x); 1] and δ = Jᵀ α: J (K, W) is the derivative of the outputs by z at (x, θ), α (K,) the
step size times the negative derivative of the loss by the outputs. So δ lies in the column space of the update, spanned
by the orthonormal U (W, R), and

    λ(x) = min_α ‖Jᵀα − U Uᵀ Jᵀα‖² / ‖Jᵀα‖²

vanishes. This equation is independent of ρ(x), which asks for g in the row space. If the rank R of the update is less
than its size, both hold exactly, and δ gᵀ is a summand of it if and only if taking it off lowers the rank, that is if

    gᵀ Δ⁺ δ = 1    (Wedderburn's rank reduction),

which gives α its scale. All images of the step together give what it adds to the parameters, Σ_i Σ_k α_ik ∇f_k(x_i):
images first used at a later step are sought at the parameters of then. Momentum makes α too large by a common factor,
which `feature_space.inversion` finds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.interface.observation import State
from attacks.networks.mlp import ACTIVATIONS, Activation
from attacks.networks.probing import captured, linear_layers, probe, random_images, run_network, watched
from attacks.span.search.problems import AffineSpan, SpanProblem
from attacks.span.thresholds import FEATURE

PROBES = 8  # random inputs by which a network is read


@dataclass(frozen=True)
class FeatureNetwork:
    """Where the features of an image enter fully connected layers.

    model: any module.
    layers: names of its linear layers that are fed one vector per image, in the order of their use; the first is not
        fed the pixels themselves.
    activation: σ with σ(first layer's output) = second layer's input, None where there is no second layer or something
        else lies between.
    nonnegative: whether no feature of random images is negative, as behind ReLU and pooling.
    """

    model: nn.Module
    layers: tuple[str, ...]
    activation: Activation | None
    nonnegative: bool

    def features(self, state: State, images: Tensor) -> Tensor:
        """Return h (M, D), the input of the first of the layers, for images (M, C, H, W) at the parameters `state`."""
        if not len(images):  # of which `x.view(len(x), -1)`, as networks have it, can make nothing
            return images.new_zeros(0, linear_layers(self.model)[self.layers[0]].in_features)
        return self.watch(state, images)[0]

    def watch(self, state: State, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (h (M, D), z (M, W), outputs): input and output of the first of the layers, the model's outputs."""
        seen: list[tuple[Tensor, Tensor]] = []
        layer, dtype = self.model.get_submodule(self.layers[0]), images.dtype

        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            seen.append((captured(inputs[0], dtype), z := output.to(dtype)))
            return captured(z, output.dtype)  # what follows may change it in place

        with watched({"first": layer}, lambda name: hook):
            outputs = run_network(self.model, state, images)
        return *seen[0], outputs


def find_feature_network(model: nn.Module, input_shape: tuple[int, int, int]) -> FeatureNetwork | None:
    """Find the fully connected layers of a model by watching its linear layers on random images. None if no layer is
    fed one vector per image, or if the first that is sees the pixels."""
    images = random_images(input_shape, PROBES)
    _, calls = probe(model, images, linear_layers(model))
    seen = [call for call in calls if call.given.dim() == 2 and len(call.given) == PROBES]
    names = tuple(call.name for call in seen)
    if not seen or len(set(names)) < len(names):  # a layer that is used twice has no single input
        return None
    features = seen[0].given
    if torch.equal(features, images.flatten(1).to(features)):
        return None
    activation = None
    if len(seen) > 1 and seen[0].gave.shape == seen[1].given.shape:
        given, fed = seen[0].gave, seen[1].given
        alike = (own for own in ACTIVATIONS.values() if torch.allclose(own(given, None)[0], fed, atol=1e-5))
        activation = next(alike, None)
    return FeatureNetwork(model, names, activation, bool((features >= 0).all()))


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
        """Return ρ + ‖relu(−h)‖² / ‖h‖² (M,) and its gradient (M, n − 1)."""
        value, gradient = self.rho.value_and_gradient(coordinates, found)
        if not self.nonnegative:
            return value, gradient
        h = torch.addmm(self.origin, coordinates, self.directions)
        negative = h.clamp_max(0)
        size = h.square().sum(1)
        share = negative.square().sum(1) / size
        pull = (negative - share[:, None] * h) * (2 * FEATURE.negative_weight / size)[:, None]
        return value + FEATURE.negative_weight * share, gradient.addmm_(pull, self.directions.T)


@dataclass(frozen=True)
class UpdateFactors:
    """The factors U S Vᵀ of the first fully connected layer's update, cut to its rank, in float64.

    left: (W, R).
    values: (R,).
    rows: (R, D + 1).
    exact: whether the rank falls short of the update's size, by a gap.
    """

    left: Tensor
    values: Tensor
    rows: Tensor
    exact: bool

    def duals(self, jacobian: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the duals α (M, K) and the residuals λ (M,) of images with J (M, K, W) and g (M, D + 1)."""
        jacobian, points = jacobian.double(), points.double()
        basis, triangle = torch.linalg.qr(jacobian.mT)  # Jᵀ = Q R: (M, W, K), (M, K, K)
        beside = basis - self.left @ (self.left.T @ basis)
        _, singular, right = torch.linalg.svd(beside, full_matrices=False)
        delta = (basis @ right[:, -1, :, None])[..., 0]
        scale = ((points @ self.rows.T / self.values) * (delta @ self.left)).sum(1)
        duals = torch.linalg.lstsq(triangle, right[:, -1, :, None]).solution[..., 0]
        return duals / scale[:, None], singular[:, -1].square()


def output_jacobian(network: FeatureNetwork, state: State, images: Tensor) -> Tensor:
    """Return ∂f_k / ∂z (M, K, W) at images (M, C, H, W), z the output of the first fully connected layer."""
    with torch.enable_grad():
        _, z, outputs = network.watch(state, images.detach().requires_grad_())
    sums = outputs.reshape(len(images), -1).sum(0)
    rows = [torch.autograd.grad(value, z, retain_graph=True)[0] for value in sums]
    return torch.stack(rows, 1)


def step_of(network: FeatureNetwork, state: State, names: tuple[str, ...], images: Tensor, duals: Tensor) -> State:
    """Return what a step adds to the parameters `names`, Σ_i Σ_k α_ik ∇f_k(x_i), of images (M, C, H, W) and duals
    (M, K)."""
    moved = {name: state[name].detach().clone().requires_grad_() for name in names}
    with torch.enable_grad():
        outputs = run_network(network.model, {**state, **moved}, images).reshape(len(images), -1)
        gradients = torch.autograd.grad((outputs * duals.to(outputs.dtype)).sum(), list(moved.values()))
    return {name: gradient.detach() for name, gradient in zip(moved, gradients, strict=True)}
