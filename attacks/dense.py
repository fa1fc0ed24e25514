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

from attacks.observation import State

Activation = Callable[[Tensor, float | None], tuple[Tensor, Tensor]]


def _relu(z: Tensor, beta: float | None) -> tuple[Tensor, Tensor]:
    if beta is None:
        return torch.relu(z), (z > 0).to(z.dtype)
    return F.softplus(z, beta), torch.sigmoid(beta * z)


def _tanh(z: Tensor, beta: float | None) -> tuple[Tensor, Tensor]:
    value = torch.tanh(z)
    return value, 1 - value**2


def _sigmoid(z: Tensor, beta: float | None) -> tuple[Tensor, Tensor]:
    value = torch.sigmoid(z)
    return value, value * (1 - value)


def _softplus(z: Tensor, beta: float | None) -> tuple[Tensor, Tensor]:
    return F.softplus(z), torch.sigmoid(z)


# σ and σ' at z; ReLU is replaced by softplus of inverse temperature β where β is given
ACTIVATIONS: dict[str, Activation] = {"relu": _relu, "tanh": _tanh, "sigmoid": _sigmoid, "softplus": _softplus}

_RESHAPES = {torch.flatten, "flatten", "view", "reshape", "size"}
_FUNCTIONS = {
    torch.relu: "relu",
    F.relu: "relu",
    "relu": "relu",
    torch.tanh: "tanh",
    F.tanh: "tanh",
    "tanh": "tanh",
    torch.sigmoid: "sigmoid",
    F.sigmoid: "sigmoid",
    "sigmoid": "sigmoid",
}


def _activation_of(module: nn.Module) -> str | None:
    if isinstance(module, nn.Softplus):
        return "softplus" if module.beta == 1 else None
    return {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}.get(type(module))


@dataclass(frozen=True)
class DenseNetwork:
    """The layers of a plain MLP. weights, biases: names in the state dict (None: no bias); activation: its σ."""

    weights: tuple[str, ...]
    biases: tuple[str | None, ...]
    activation: str

    def forward(self, state: State, images: Tensor, beta: float | None = None) -> Tensor:
        """Outputs (M, K) for images (M, C, H, W)."""
        inputs, _, (weight, bias) = self._hidden(state, images, beta)
        return F.linear(inputs[-1], weight, bias)

    def factors(
        self, state: State, images: Tensor, duals: Tensor, beta: float | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """(δ_l, a_{l−1}) of every layer: their product δᵀa is the layer's gradient sum.

        images: (M, C, H, W). duals: (M, K). δ_l: (M, out_l), a_{l−1}: (M, in_l).
        """
        inputs, slopes, _ = self._hidden(state, images, beta)
        signals = [duals]
        for weight, slope in zip(reversed(self.weights[1:]), reversed(slopes), strict=True):
            signals.append((signals[-1] @ state[weight]) * slope)
        return list(zip(reversed(signals), inputs, strict=True))

    def _hidden(
        self, state: State, images: Tensor, beta: float | None
    ) -> tuple[list[Tensor], list[Tensor], tuple[Tensor, Tensor | None]]:
        activate = ACTIVATIONS[self.activation]
        inputs, slopes = [images.flatten(1)], []
        layers = [(state[w], None if b is None else state[b]) for w, b in zip(self.weights, self.biases, strict=True)]
        for weight, bias in layers[:-1]:
            value, slope = activate(F.linear(inputs[-1], weight, bias), beta)
            inputs.append(value)
            slopes.append(slope)
        return inputs, slopes, layers[-1]


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
    state = {name: tensor.detach().double() for name, tensor in model.state_dict().items()}
    probe = torch.randn((4, *input_shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        try:
            expected = torch.func.functional_call(model, state, (probe,))
            found = network.forward(state, probe)
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
        elif isinstance(module, nn.Flatten | nn.Identity) or (module is None and node.target in _RESHAPES):
            continue
        else:
            return None
    plain = len(weights) >= 1 and len(activations) == len(weights) - 1 and len(set(activations)) <= 1
    return DenseNetwork(tuple(weights), tuple(biases), activations[0] if activations else "relu") if plain else None
