"""Plain multilayer perceptrons, recognized in any `nn.Module`, and their gradient sums in closed form.

For z_l = W_l a_{l−1} + b_l and a_l = σ(z_l), with δ_L = α and δ_l = (W_{l+1}ᵀ δ_{l+1}) ∘ σ'(z_l),

    Σ_j Σ_k α_jk ∇_{W_l} f_k(x_j) = δ_lᵀ a_{l−1},    Σ_j Σ_k α_jk ∇_{b_l} f_k(x_j) = Σ_j δ_l(x_j).

These are ordinary expressions in x and α: the reconstruction loss needs one backward pass, no double backward.

BatchNorm between W_l and σ is read as it is in evaluation mode, where it scales and shifts every unit: z_l is its
output.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.dropout import _DropoutNd

from attacks.interface.observation import State
from attacks.networks.probing import evaluating, makes_weight, random_images, run_network
from attacks.networks.products import Product, plain

# βz from which softplus counts as linear; at torch's 20 its value and slope would disagree by 2e-9
SOFTPLUS_THRESHOLD = 40.0

# inverse temperature of softplus for ReLU; None: ReLU; a scalar tensor can change in a CUDA graph
Beta = float | Tensor | None
Activation = Callable[[Tensor, Beta], tuple[Tensor, Tensor]]


def softplus(z: Tensor, beta: float | Tensor) -> Tensor:
    """Return softplus(βz)/β."""
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


def _leaky_relu(z: Tensor, beta: Beta, negative_slope: float = 0.01) -> tuple[Tensor, Tensor]:
    return F.leaky_relu(z, negative_slope), torch.where(z > 0, torch.ones_like(z), negative_slope)


def _elu(z: Tensor, beta: Beta, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    value = F.elu(z, alpha)
    return value, torch.where(z > 0, torch.ones_like(z), value + alpha)


def _silu(z: Tensor, beta: Beta) -> tuple[Tensor, Tensor]:
    gate = torch.sigmoid(z)
    return z * gate, gate * (1 + z * (1 - gate))


def _gelu(z: Tensor, beta: Beta) -> tuple[Tensor, Tensor]:
    below = torch.special.ndtr(z)  # Φ, the standard normal distribution
    return z * below, below + z * torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh(z: Tensor, beta: Beta) -> tuple[Tensor, Tensor]:
    inner = torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))
    rise = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * z**2)
    return z * (1 + inner) / 2, (1 + inner + z * (1 - inner**2) * rise) / 2


# σ and σ' at z; ReLU is replaced by softplus of inverse temperature β where β is given
ACTIVATIONS: dict[str, Activation] = {
    "relu": _relu,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}


# σ''/σ' from σ, σ' and β: no second derivative has to be kept. Those not listed have no closed form here.
CURVATURES: dict[str, Callable[[Tensor, Tensor, Beta], Tensor]] = {
    "relu": lambda value, slope, beta: torch.zeros_like(slope) if beta is None else beta * (1 - slope),
    "tanh": lambda value, slope, beta: -2 * value,
    "sigmoid": lambda value, slope, beta: 1 - 2 * value,
    "softplus": lambda value, slope, beta: 1 - slope,
}

_PASSED_OVER = (nn.Flatten, nn.Identity, _DropoutNd)  # a network is read as it is in evaluation mode
_RESHAPES = {torch.flatten, "flatten", "view", "reshape", "size"}
_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.Softplus: "softplus", nn.LeakyReLU: "leaky_relu",
    nn.ELU: "elu", nn.SiLU: "silu", nn.GELU: "gelu",
}  # fmt: skip
_FUNCTIONS = {
    call: name for name in ("relu", "tanh", "sigmoid") for call in (getattr(torch, name), getattr(F, name), name)
} | {F.leaky_relu: "leaky_relu", F.elu: "elu", F.silu: "silu", F.gelu: "gelu"}
_PARAMETERS = {"leaky_relu": ("negative_slope", 0.01), "elu": ("alpha", 1.0)}  # torch's names and values

_Called = tuple[str, float | None]  # an activation's name and its parameter, if it has one


def _activation_of(node: fx.Node, module: nn.Module | None) -> _Called | None:
    """Return the activation of a graph node, None if it is none. module: the one called; None for a function."""
    name = _FUNCTIONS.get(node.target) if module is None else _MODULES.get(type(module))
    if isinstance(module, nn.Softplus) and module.beta != 1:
        return None
    if name == "gelu":
        approximate = node.kwargs.get("approximate", "none") if module is None else module.approximate
        return "gelu" if approximate == "none" else "gelu_tanh", None
    if name not in _PARAMETERS:
        return None if name is None else (name, None)
    key, default = _PARAMETERS[name]
    called: Any = node.kwargs.get(key, node.args[1] if len(node.args) > 1 else default)
    return name, float(called if module is None else getattr(module, key))


@dataclass(frozen=True)
class BatchNorm:
    """A BatchNorm layer in evaluation mode, by its name in the state dict: z ↦ scale ∘ z + shift.

    momentum: share of a batch in the running statistics, None where all batches count alike.
    """

    name: str
    eps: float
    momentum: float | None = 0.1

    @classmethod
    def of(cls, name: str, module: nn.BatchNorm1d) -> "BatchNorm | None":
        """Make it of a module; None without running statistics."""
        return None if module.running_mean is None else cls(name, module.eps, module.momentum)

    @property
    def statistics(self) -> tuple[str, str]:
        """Names of the running statistics in the state dict."""
        return f"{self.name}.running_mean", f"{self.name}.running_var"

    def scale_and_shift(self, state: State) -> tuple[Tensor, Tensor]:
        """Return (scale, shift), each (W,), at the parameters and running statistics `state`."""
        mean, variance = (state[name] for name in self.statistics)
        scale = state.get(f"{self.name}.weight", torch.ones_like(variance)) * (variance + self.eps).rsqrt()
        return scale, state.get(f"{self.name}.bias", torch.zeros_like(mean)) - scale * mean


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
class FrontLayers:
    """Linear layers of which the first is fed the pixels, and the second what an activation makes of the first one's
    outputs. What becomes of the second one's outputs is left open.

    weights, biases: names in the state dict (None: no bias) of all linear layers in the order of their use.
    norms: the BatchNorm behind each (None: there is none).
    activation: the name of σ.
    parameter: that of σ, if it has one.
    """

    weights: tuple[str, ...]
    biases: tuple[str | None, ...]
    norms: tuple[BatchNorm | None, ...]
    activation: str
    parameter: float | None = None

    @property
    def activate(self) -> Activation:
        """(σ, σ') at z."""
        known = ACTIVATIONS[self.activation]
        return known if self.parameter is None else partial(known, **{_PARAMETERS[self.activation][0]: self.parameter})


@dataclass(frozen=True)
class DenseNetwork(FrontLayers):
    """The layers of a plain MLP: the same activation lies between all of them, and nothing beside."""

    @property
    def has_closed_form(self) -> bool:
        """Whether `run` and `pull_back` give the gradients of all parameters: no BatchNorm, and a known σ''."""
        return self.activation in CURVATURES and not any(self.norms)

    def layers(self, state: State, product: Callable[[Tensor], Product] = plain) -> list[Layer]:
        """Return W_l, as `product` has it, and b_l of every layer at the parameters `state`, BatchNorm folded in."""
        found = []
        for name, bias_name, norm in zip(self.weights, self.biases, self.norms, strict=True):
            weight, bias = state[name], None if bias_name is None else state[bias_name]
            if norm is not None:
                scale, shift = norm.scale_and_shift(state)
                weight, bias = scale[:, None] * weight, shift if bias is None else scale * bias + shift
            found.append(Layer(product(weight), bias))
        return found

    def forward(self, state: State, images: Tensor, beta: Beta = None) -> Tensor:
        """Return outputs (M, K) for images (M, C, H, W)."""
        layers = self.layers(state)
        inputs, _ = self._hidden(layers, images, beta)
        return layers[-1](inputs[-1])

    def run(self, layers: list[Layer], images: Tensor, duals: Tensor, beta: Beta) -> DensePass:
        """Return the factors of every layer's gradient sum δ_lᵀ a_{l−1}, with what `pull_back` needs.

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
        """Turn the gradients of a scalar in every δ_l and a_l into those in the images (M, in) and the duals (M, K).

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
        activate = self.activate
        inputs, slopes = [images.flatten(1)], []
        for layer in layers[:-1]:
            value, slope = activate(layer(inputs[-1]), beta)
            inputs.append(value)
            slopes.append(slope)
        return inputs, slopes


def find_dense_network(model: nn.Module, input_shape: tuple[int, int, int]) -> DenseNetwork | None:
    """Find the plain MLP that `model` is, checked against it on random inputs, or None."""
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
    norms: list[BatchNorm | None] = []
    activations: list[_Called] = []
    modules = dict(traced.named_modules())
    for node in traced.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        module = modules.get(node.target) if node.op == "call_module" else None
        activation = _activation_of(node, module)
        behind_linear = len(activations) == len(weights) - 1  # the last layer has no activation yet
        if isinstance(module, _PASSED_OVER) or (module is None and node.target in _RESHAPES):
            continue
        if isinstance(module, nn.Linear) and makes_weight(module):
            return None
        if isinstance(module, nn.Linear) and not behind_linear and f"{node.target}.weight" not in weights:
            weights.append(f"{node.target}.weight")
            biases.append(None if module.bias is None else f"{node.target}.bias")
            norms.append(None)
        elif isinstance(module, nn.BatchNorm1d) and behind_linear and norms[-1] is None:
            norms[-1] = BatchNorm.of(str(node.target), module)
            if norms[-1] is None:
                return None
        elif activation is not None and behind_linear:
            activations.append(activation)
        else:
            return None
    if len(activations) == len(weights) or len(set(activations)) > 1:
        return None
    name, parameter = activations[0] if activations else ("relu", None)
    return DenseNetwork(tuple(weights), tuple(biases), tuple(norms), name, parameter)
