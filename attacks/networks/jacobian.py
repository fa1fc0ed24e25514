"""The Jacobian of a network's outputs in its parameters, factored where a layer allows it.

That of a linear layer is an outer product, δ of its output times its input: a kernel needs only the Gram matrices of
the two, and no gradient of the layer's size is ever formed (Novak et al. 2022). Other parameters get one gradient per
image and output.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from attacks.interface.observation import State, trained_names
from attacks.networks.probing import (
    evaluating,
    for_each,
    linear_layers,
    parameter_names,
    probe,
    random_images,
    run_network,
    watched,
)

PROBED = 4  # random inputs that show what a layer computes, and whether its parameters are used elsewhere too


@dataclass(frozen=True)
class Factors:
    """The Jacobian of one parameter, signals ⊗ inputs.

    signals: (N, K, S).
    inputs: (N, I), or None for the number 1.
    """

    signals: Tensor
    inputs: Tensor | None = None

    def trace(self, other: "Factors") -> Tensor:
        """Return Σ_k ⟨∇f_k(x), ∇f_k(x')⟩ over this parameter, (N, M)."""
        gram = self.signals.flatten(1) @ other.signals.flatten(1).T
        return gram if self.inputs is None or other.inputs is None else gram.mul_(self.inputs @ other.inputs.T)

    def blocks(self, other: "Factors") -> Tensor:
        """Return ⟨∇f_k(x), ∇f_k'(x')⟩ over this parameter, (N, K, M, K)."""
        gram = torch.einsum("nks,mls->nkml", self.signals, other.signals)
        if self.inputs is None or other.inputs is None:
            return gram
        return gram * (self.inputs @ other.inputs.T)[:, None, :, None]

    @property
    def numel(self) -> int:
        return self.signals.numel() + (0 if self.inputs is None else self.inputs.numel())


@dataclass(frozen=True)
class LinearCall:
    """What a linear layer z = scale·Wx + b was given and what the outputs say of it.

    inputs: (N, I).
    signals: (N, K, S), δ = ∂f_k/∂z; after a forward pass alone (N, S), zeros that were added to z: their gradient is δ.
        So ∂f_k/∂W = scale·δ xᵀ and ∂f_k/∂b = δ.
    """

    inputs: Tensor
    signals: Tensor
    scale: float


class Jacobian:
    """The trained parameters' Jacobian of `model`, in evaluation mode, at the parameters `state`, for given images."""

    def __init__(self, model: nn.Module, state: State):
        self.model = model
        self.state = {name: value.detach() for name, value in state.items()}
        self.trained = trained_names(model)
        self.linear = linear_layers(model)
        self.scales: dict[str, float] = {}
        self.probed = False

    def __call__(self, images: Tensor) -> list[Factors]:
        """Return factors for images (N, C, H, W), in the same order for every batch."""
        outputs, calls = self.linear_calls(images)
        factors, rest = [], set(self.trained)
        for name, call in calls.items():
            weight, bias = parameter_names(name)
            if weight in rest:
                factors.append(Factors(call.signals * call.scale, call.inputs))
            if bias in rest:
                factors.append(Factors(call.signals))
            rest -= {weight, bias}
        return factors + self._gradients(images, outputs, sorted(rest))

    def linear_calls(self, images: Tensor) -> tuple[int, dict[str, LinearCall]]:
        """Return (number of outputs, by name the linear layers that are called once with one vector per image)."""
        if not self.probed:
            self._probe(images)
        with torch.enable_grad():
            outputs, calls = self._forward(images, self.state)
            probes = [call.signals for call in calls.values()]
            by_output = [
                torch.autograd.grad(outputs[:, k].sum(), probes, retain_graph=True, materialize_grads=True)
                for k in range(outputs.shape[1] if probes else 0)
            ]
        signals = [torch.stack(parts, 1) for parts in zip(*by_output, strict=True)]
        found = zip(calls.items(), signals, strict=True)
        return outputs.shape[1], {name: replace(call, signals=delta) for (name, call), delta in found}

    def _probe(self, like: Tensor) -> None:
        """Keep the layers that compute scale·Wx + b and whose parameters the model uses nowhere else."""
        images = random_images(like.shape[1:], PROBED, torch.float64).to(like)
        for name, given, gave in probe(self.model, images, self.linear, self.state)[1]:
            scale = _scale(self.linear[name], given, gave)
            if scale is not None:
                self.scales[name] = scale
        self._leave_out_shared(images)
        self.probed = True

    def _leave_out_shared(self, images: Tensor) -> None:
        """Leave out layers whose parameters have other uses, by the gradient of Σ f in all uses together."""
        own = {name: parameter_names(name) for name in self.linear}
        names = [part for parts in own.values() for part in parts if part in self.trained]
        parameters = {name: self.state[name].clone().requires_grad_() for name in names}
        with torch.enable_grad():
            outputs, calls = self._forward(images, {**self.state, **parameters})
            wanted = [call.signals for call in calls.values()] + list(parameters.values())
            found = torch.autograd.grad(outputs.sum(), wanted, materialize_grads=True) if wanted else ()
        signals = dict(zip(calls, found, strict=False))
        whole = dict(zip(names, found[len(calls) :], strict=True))
        for name, call in calls.items():
            weight, bias = own[name]
            expected = {weight: call.scale * signals[name].T @ call.inputs, bias: signals[name].sum(0)}
            if any(_differ(whole[part], value) for part, value in expected.items() if part in whole):
                del self.linear[name]

    def _forward(self, images: Tensor, state: State) -> tuple[Tensor, dict[str, LinearCall]]:
        """Return outputs (N, K), and what every linear layer did that was called once, with one vector per image."""
        calls: dict[str, LinearCall | None] = {}

        def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
            def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
                scale = None if name in calls else self.scales.get(name)
                calls[name] = None
                if scale is None or inputs[0].shape[0] != len(images):
                    return output
                zeros = torch.zeros_like(output, requires_grad=True)
                calls[name] = LinearCall(inputs[0].detach().clone(), zeros, scale)
                return output + zeros

            return hook

        with watched(self.linear, watch), evaluating(self.model):
            outputs = run_network(self.model, state, images)
        return outputs.reshape(len(images), -1), {name: call for name, call in calls.items() if call is not None}

    def _gradients(self, images: Tensor, outputs: int, names: list[str]) -> list[Factors]:
        """Return the factors of the parameters `names` without any structure: one gradient per image and output."""
        if not names:
            return []
        parameters = {name: self.state[name] for name in names}
        fixed = {name: value for name, value in self.state.items() if name not in parameters}

        def output(parameters: State, image: Tensor, k: int) -> Tensor:
            return run_network(self.model, {**parameters, **fixed}, image[None]).reshape(-1)[k]

        def gradients(k: int) -> State:
            of_one = torch.func.grad(output)
            return for_each(lambda own: cast(State, of_one(parameters, own["image"], k)), {"image": images})

        with evaluating(self.model):
            by_output = [gradients(k) for k in range(outputs)]
        return [Factors(torch.stack([grads[name].flatten(1) for grads in by_output], 1)) for name in names]


def _differ(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors differ beyond rounding."""
    return bool((left - right).norm() > torch.finfo(left.dtype).eps ** 0.5 * (left.norm() + right.norm()))


def _scale(layer: nn.Linear, inputs: Tensor, output: Tensor) -> float | None:
    """Return s of a layer that computes s·xWᵀ + b on vectors x (N, I), as in NTK parameterization; else None."""
    if inputs.dim() != 2:
        return None
    if type(layer) is nn.Linear:
        return 1.0
    product = inputs @ layer.weight.detach().T
    value = output if layer.bias is None else output - layer.bias.detach()
    scale = float((value * product).sum() / product.square().sum())
    error = (value - scale * product).norm()
    return scale if error <= 1e3 * torch.finfo(value.dtype).eps * output.norm() else None
