"""Plain multilayer perceptrons, and their gradient sums in closed form.

For z_l = W_l a_{l−1} + b_l and a_l = σ(z_l), with δ_L = α and δ_l = (W_{l+1}ᵀ δ_{l+1}) ∘ σ'(z_l),

    Σ_j Σ_k α_jk ∇_{W_l} f_k(x_j) = δ_lᵀ a_{l−1},    Σ_j Σ_k α_jk ∇_{b_l} f_k(x_j) = Σ_j δ_l(x_j).

These are ordinary expressions in x and α: the reconstruction loss needs one backward pass, no double backward.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.interface.observation import State

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

_PARAMETERS = {"leaky_relu": "negative_slope", "elu": "alpha"}


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

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        value = x @ self.weight.T
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
        return known if self.parameter is None else partial(known, **{_PARAMETERS[self.activation]: self.parameter})


@dataclass(frozen=True)
class DenseNetwork(FrontLayers):
    """The layers of a plain MLP: the same activation of `CURVATURES` lies between all of them, and nothing beside."""

    def layers(self, state: State) -> list[Layer]:
        """Return W_l and b_l of every layer at the parameters `state`."""
        names = zip(self.weights, self.biases, strict=True)
        return [Layer(state[weight], None if bias is None else state[bias]) for weight, bias in names]

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
            signals.append(signals[-1] @ layer.weight * slope)
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
            signals[layer + 1] += (signals[layer] * slope) @ layers[layer + 1].weight.T
            grads.append(bend(run.inputs[layer + 1], slope, beta).mul_(signals[layer]).mul_(run.signals[layer]))
        for layer in reversed(range(len(grads))):
            grads[layer].addcmul_(inputs[layer + 1], run.slopes[layer])
            inputs[layer] += grads[layer] @ layers[layer].weight
        return inputs[0], signals[-1]

    def _hidden(self, layers: list[Layer], images: Tensor, beta: Beta) -> tuple[list[Tensor], list[Tensor]]:
        activate = self.activate
        inputs, slopes = [images.flatten(1)], []
        for layer in layers[:-1]:
            value, slope = activate(layer(inputs[-1]), beta)
            inputs.append(value)
            slopes.append(slope)
        return inputs, slopes
