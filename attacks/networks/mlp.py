"""Plain multilayer perceptrons, recognized in any `nn.Module`, and their gradient sums in closed form.

For z_l = W_l a_{l−1} + b_l and a_l = σ(z_l), with δ_L = α and δ_l = (W_{l+1}ᵀ δ_{l+1}) ∘ σ'(z_l),

    Σ_j Σ_k α_jk ∇_{W_l} f_k(x_j) = δ_lᵀ a_{l−1},    Σ_j Σ_k α_jk ∇_{b_l} f_k(x_j) = Σ_j δ_l(x_j).

These are ordinary expressions in x and α: the reconstruction loss needs one backward pass, no double backward.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from attacks.interface.observation import State
from attacks.networks.probing import evaluating, random_images, run_network
from attacks.networks.products import Product, plain

# βz from which softplus counts as linear; at torch's 20 its value and slope would disagree by 2e-9
SOFTPLUS_THRESHOLD = 40.0

# inverse temperature of the softplus in place of ReLU: a scalar tensor can change inside a CUDA graph
Beta = float | Tensor | None
Activation = Callable[[Tensor, Beta], tuple[Tensor, Tensor]]


def softplus(z: Tensor, beta: float | Tensor) -> Tensor:
    """softplus(βz)/β."""
    return F.softplus(beta * z, 1.0, SOFTPLUS_THRESHOLD) / beta


def _relu(z: Tensor, beta: Beta) -> tuple[Tensor, Tensor]:
    if beta is None:
        return torch.relu(z), (z > 0).to(z.dtype)
    return softplus(z, beta), torch.sigmoid(beta * z)


def _tanh(z: Tensor, beta: Beta) -> tuple[Tensor, Tensor]:
    value = torch.tanh(z)
    return value, 1 - value**2


def _sigmoid(z: Tensor, beta: Beta) -> tuple[Tensor, Tensor]:
    value = torch.sigmoid(z)
    return value, value * (1 - value)


def _softplus(z: Tensor, beta: Beta) -> tuple[Tensor, Tensor]:
    return F.softplus(z), torch.sigmoid(z)


# σ and σ' at z; ReLU is replaced by softplus of inverse temperature β where β is given
ACTIVATIONS: dict[str, Activation] = {"relu": _relu, "tanh": _tanh, "sigmoid": _sigmoid, "softplus": _softplus}


# σ''/σ' from σ, σ' and β: no second derivative has to be kept
CURVATURES: dict[str, Callable[[Tensor, Tensor, Beta], Tensor]] = {
    "relu": lambda value, slope, beta: torch.zeros_like(slope) if beta is None else beta * (1 - slope),
    "tanh": lambda value, slope, beta: -2 * value,
    "sigmoid": lambda value, slope, beta: 1 - 2 * value,
    "softplus": lambda value, slope, beta: 1 - slope,
}

_PASSED_OVER = (nn.Flatten, nn.Identity, nn.Dropout)  # a network is read as it is in evaluation mode
_RESHAPES = {torch.flatten, "flatten", "view", "reshape", "size"}
_FUNCTIONS = {
    call: name for name in ("relu", "tanh", "sigmoid") for call in (getattr(torch, name), getattr(F, name), name)
}


def _activation_of(module: nn.Module) -> str | None:
    if isinstance(module, nn.Softplus):
        return "softplus" if module.beta == 1 else None
    return {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}.get(type(module))


@dataclass(frozen=True)
class Layer:
    """x ↦ xWᵀ + b."""

    weight: Product
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        value = self.weight.forward(x)
        return value if self.bias is None else value + self.bias


@dataclass(frozen=True)
class DensePass:
    """One run through the network and back. inputs[l]: a_l of layer l + 1, (M, in); signals[l]: its δ, (M, out);
    slopes[l]: σ' of hidden layer l + 1."""

    inputs: list[Tensor]
    signals: list[Tensor]
    slopes: list[Tensor]


@dataclass(frozen=True)
class DenseNetwork:
    """The layers of a plain MLP. weights, biases: names in the state dict (None: no bias); activation: its σ."""

    weights: tuple[str, ...]
    biases: tuple[str | None, ...]
    activation: str

    def layers(self, state: State, product: Callable[[Tensor], Product] = plain) -> list[Layer]:
        """W_l, ready for products in the form of `product`, and b_l of every layer at the parameters `state`."""
        names = zip(self.weights, self.biases, strict=True)
        return [Layer(product(state[weight]), None if bias is None else state[bias]) for weight, bias in names]

    def forward(self, state: State, images: Tensor, beta: Beta = None) -> Tensor:
        """Outputs (M, K) for images (M, C, H, W)."""
        layers = self.layers(state)
        inputs, _ = self._hidden(layers, images, beta)
        return layers[-1](inputs[-1])

    def run(self, layers: list[Layer], images: Tensor, duals: Tensor, beta: Beta) -> DensePass:
        """The factors of every layer's gradient sum δ_lᵀ a_{l−1}, with what `pull_back` needs.

        layers: those of `layers`. images: (M, C, H, W). duals: (M, K).
        """
        inputs, slopes = self._hidden(layers, images, beta)
        signals = [duals]
        for layer, slope in zip(reversed(layers[1:]), reversed(slopes), strict=True):
            signals.append(layer.weight.backward(signals[-1]) * slope)
        return DensePass(inputs, signals[::-1], slopes)

    def pull_back(
        self, layers: list[Layer], run: DensePass, signals: list[Tensor], inputs: list[Tensor], beta: Beta
    ) -> tuple[Tensor, Tensor]:
        """From the gradients of a scalar in every δ_l and a_l to those in the images (M, in) and the duals (M, K).

        signals, inputs: those gradients, ordered as in `run`; they are overwritten. The two recursions are reversed:
        upwards, with s_l for ∂/∂δ_l, s_{l+1} += (s_l ∘ σ'(z_l)) W_{l+1}ᵀ; then downwards, with r_l for ∂/∂a_l and
        ∂/∂z_l = s_l ∘ δ_l ∘ (σ''/σ')(z_l) + r_l ∘ σ'(z_l), r_{l−1} += (∂/∂z_l) W_l.
        """
        bend = CURVATURES[self.activation]
        grads = []
        for layer, slope in enumerate(run.slopes):
            signals[layer + 1] += layers[layer + 1].weight.forward(signals[layer] * slope)
            grads.append(bend(run.inputs[layer + 1], slope, beta).mul_(signals[layer]).mul_(run.signals[layer]))
        for layer in reversed(range(len(grads))):
            grads[layer].addcmul_(inputs[layer + 1], run.slopes[layer])
            inputs[layer] += layers[layer].weight.backward(grads[layer])
        return inputs[0], signals[-1]

    def _hidden(self, layers: list[Layer], images: Tensor, beta: Beta) -> tuple[list[Tensor], list[Tensor]]:
        activate = ACTIVATIONS[self.activation]
        inputs, slopes = [images.flatten(1)], []
        for layer in layers[:-1]:
            value, slope = activate(layer(inputs[-1]), beta)
            inputs.append(value)
            slopes.append(slope)
        return inputs, slopes


def find_dense_network(model: nn.Module, input_shape: tuple[int, int, int]) -> DenseNetwork | None:
    """The plain MLP that `model` is, or None. Modules and functional calls are both understood.

    The reading is checked against the model on random inputs, so a wrong one is never returned.
    """
    try:
        traced = fx.symbolic_trace(model)
    except Exception:  # user code under a tracer may raise anything; such a model takes the general path
        return None
    network = _read_chain(traced)
    if network is None:
        return None
    state = {name: tensor.detach().cpu().double() for name, tensor in model.state_dict().items()}
    images = random_images(input_shape, 4, torch.float64)
    with torch.no_grad(), evaluating(model):
        try:
            expected = run_network(model, state, images)
            found = network.forward(state, images)
        except RuntimeError:  # shapes do not chain as read
            return None
    return network if found.shape == expected.shape and torch.allclose(found, expected, atol=1e-9) else None


def _read_chain(traced: fx.GraphModule) -> DenseNetwork | None:
    weights: list[str] = []
    biases: list[str | None] = []
    activations: list[str] = []
    modules = dict(traced.named_modules())
    for node in traced.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        module = modules.get(node.target) if node.op == "call_module" else None
        activation = _activation_of(module) if module is not None else _FUNCTIONS.get(node.target)
        if isinstance(module, nn.Linear):
            if len(activations) != len(weights):  # two linear layers without an activation between them
                return None
            weights.append(f"{node.target}.weight")
            biases.append(None if module.bias is None else f"{node.target}.bias")
        elif activation is not None and len(activations) == len(weights) - 1:
            activations.append(activation)
        elif isinstance(module, _PASSED_OVER) or (module is None and node.target in _RESHAPES):
            continue
        else:
            return None
    plain = len(weights) >= 1 and len(activations) == len(weights) - 1 and len(set(activations)) <= 1
    return DenseNetwork(tuple(weights), tuple(biases), activations[0] if activations else "relu") if plain else None
