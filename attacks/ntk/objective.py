"""The reconstruction loss ‖Δθ − Σ_v Σ_j Σ_k α^v_jk ∇_θ f^k_{θ_v}(x_j)‖² (Loo et al. 2024, eq. 7, appendices F, I).

v runs over the kernels in use: one (final or initial parameters), two (hybrid) or three (path). Three implementations
share one interface: `DenseObjective` for plain MLPs, in closed form, `AutogradObjective` for every other network, and
`StackedObjective` for several rounds.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attacks.base import Solution
from attacks.interface.observation import Observation, State
from attacks.networks.front_layers import find_dense_network
from attacks.networks.mlp import Beta, DenseNetwork, softplus
from attacks.networks.probing import check_differentiable, run_network
from attacks.networks.relaxation import RELUS, in_place_of_relu
from attacks.ntk.mlp_objective import DenseObjective

ANNEALED = 200.0  # inverse temperature from 57 % of the iterations on
TRACE_EVERY = 100  # iterations between two looks at the loss: each look waits for a GPU


class Objective(Protocol):
    """images: (M, C, H, W). duals: (V, M, K). beta: inverse temperature of softplus in place of ReLU, a
    number or a scalar tensor, or None."""

    delta: State

    def loss(self, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        """Return the squared residual, a scalar in squared parameter units, differentiable in images and duals."""

    def gradient_sum(self, images: Tensor, duals: Tensor, beta: Beta) -> State:
        """Return Σ_v Σ_j Σ_k α^v_jk ∇f^k(x_j), by parameter; no graph is kept."""

    def inner(self, direction: State, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        """Return ⟨direction, gradient sum⟩, a scalar, differentiable in images and duals."""


class SoftplusForReLU(TorchFunctionMode):
    """While active, every ReLU, module or function, is softplus(βx)/β: its gradient is smooth in the input."""

    def __init__(self, beta: Beta):
        super().__init__()
        self.beta = beta

    def __torch_function__(self, func, types, args=(), kwargs=None):
        beta, given = self.beta, kwargs or {}
        if beta is not None and func in RELUS:
            return in_place_of_relu(lambda x: softplus(x, beta), func, args, given)
        return func(*args, **given)


class AutogradObjective:
    """Any network: Σ_j α_j ∇f(x_j) = ∇ Σ_j α_j f(x_j), one backward pass; the loss differentiates it again."""

    def __init__(self, model: nn.Module, delta: State, views: Sequence[State], kept: State | None = None):
        self.model, self.kept = model, kept
        self.delta = delta if kept is None else {name: value * kept[name] for name, value in delta.items()}
        self.views = [
            {name: value.detach().requires_grad_(name in delta) for name, value in view.items()} for view in views
        ]

    def _sums(self, images: Tensor, duals: Tensor, beta: Beta, create_graph: bool) -> State:
        sums: State = {}
        for view, dual in zip(self.views, duals, strict=True):
            with SoftplusForReLU(beta):
                outputs = run_network(self.model, view, images)
            scalar = (outputs.reshape(len(images), -1) * dual).sum()
            wanted = [view[name] for name in self.delta]
            grads = torch.autograd.grad(scalar, wanted, create_graph=create_graph, materialize_grads=True)
            for name, grad in zip(self.delta, grads, strict=True):
                counted = grad if self.kept is None else grad * self.kept[name]
                sums[name] = sums[name] + counted if name in sums else counted
        return sums

    def loss(self, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        sums = self._sums(images, duals, beta, create_graph=True)
        return torch.stack([((sums[name] - delta) ** 2).sum() for name, delta in self.delta.items()]).sum()

    def gradient_sum(self, images: Tensor, duals: Tensor, beta: Beta) -> State:
        with torch.enable_grad():
            return {k: v.detach() for k, v in self._sums(images, duals, beta, create_graph=False).items()}

    def inner(self, direction: State, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        sums = self._sums(images, duals, beta, create_graph=True)
        return torch.stack([(sums[name] * direction[name]).sum() for name in direction]).sum()


class StackedObjective:
    """Several rounds as one problem: the images are shared, every round and kernel has duals of its own.

        L(x̂, α) = Σ_r s_r² ‖Δθ_r − Σ_v Σ_j α^{rv}_j φ_{θ_rv}(x̂_j)‖²

    is eq. 7 of Loo et al. (2024) with the rounds of a federation as the "multiple checkpoints along the trajectory"
    that the paper leaves to future work. A client's updates shrink as it fits its images, so every update is brought
    to the same length (`round_scales`).

    images: (M, C, H, W). duals: (V, M, K), the V / R kernels of the first round, then those of the second, and so on.
    Parameters are called "round:name", counted from 0.
    """

    def __init__(self, rounds: Sequence[Objective]):
        self.rounds = list(rounds)
        self.delta = _joined([part.delta for part in self.rounds])

    def loss(self, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        return torch.stack([part.loss(images, dual, beta) for part, dual in self._parts(duals)]).sum()

    def gradient_sum(self, images: Tensor, duals: Tensor, beta: Beta) -> State:
        return _joined([part.gradient_sum(images, dual, beta) for part, dual in self._parts(duals)])

    def inner(self, direction: State, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        values = []
        for i, (part, dual) in enumerate(self._parts(duals)):
            along = {name: direction[f"{i}:{name}"] for name in part.delta}
            values.append(part.inner(along, images, dual, beta))
        return torch.stack(values).sum()

    def _parts(self, duals: Tensor) -> list[tuple[Objective, Tensor]]:
        return list(zip(self.rounds, duals.split(len(duals) // len(self.rounds)), strict=True))


def _joined(states: Sequence[State]) -> State:
    return {f"{i}:{name}": value for i, state in enumerate(states) for name, value in state.items()}


def round_scales(deltas: Sequence[State], unit_length: bool = False) -> list[float]:
    """Return s_r, one factor per update: all updates equally long, and together as long as one is in the root mean
    square, or of length 1. The loss then is in the units of a single round, or relative to ‖Δθ‖²."""
    squares = [squared_norm(delta) for delta in deltas]
    mean = 1.0 if unit_length else sum(squares) / len(squares)
    return [(mean / (square * len(squares))) ** 0.5 for square in squares]


def make_objective(
    model: nn.Module,
    input_shape: tuple[int, int, int],
    delta: State,
    views: Sequence[State],
    double_backward: bool = False,
    kept: State | None = None,
) -> Objective:
    """Make the objective: the closed form where `model` is an MLP that has one and nothing beside it was trained, such
    as a second head; autograd elsewhere (or everywhere, with `double_backward`).

    delta: trained parameters only. views: full state dicts, one per kernel, of the dtype and device to compute in.
    kept: 1 for the entries of delta that count and 0 for the others, None where all do.
    """
    network = None if double_backward else _in_closed_form(model, input_shape, delta.keys())
    if network is None:
        return AutogradObjective(model, delta, views, kept)
    return DenseObjective(network, delta, views, kept)


def check_objective(attack: str, observation: Observation) -> None:
    """Raise InputError where the loss has no closed form, nor a gradient that autograd gives."""
    model, shape = observation.model, observation.input_shape
    if _in_closed_form(model, shape, observation.trainable) is None:
        check_differentiable(attack, model, shape)


def _in_closed_form(
    model: nn.Module, input_shape: tuple[int, int, int], trained: Collection[str]
) -> DenseNetwork | None:
    network = find_dense_network(model, input_shape)
    return network if network and {*network.weights, *network.biases}.issuperset(trained) else None


def backward_in_batches(objective: Objective, images: Tensor, duals: Tensor, beta: Beta, batch_size: int) -> Tensor:
    """Add up gradients batch by batch; return the loss, a scalar without graph (Loo et al. 2024, algorithm 2, app. B).

    The buffer G = Σ_j α_j φ(x_j) is summed first; then, for each batch B, the gradient of
    ‖Δθ − (G − detach(G_B) + G_B)‖² is that of 2⟨G − Δθ, G_B⟩. Memory is O(P + batch).
    """
    sums = gradient_sum_in_batches(objective, images.detach(), duals.detach(), beta, batch_size)
    residual = {name: sums[name] - delta for name, delta in objective.delta.items()}
    for batch in batches_of(len(images), batch_size):
        (2 * objective.inner(residual, images[batch], duals[:, batch], beta)).backward(inputs=[images, duals])
    return torch.stack([(value**2).sum() for value in residual.values()]).sum()


def gradient_sum_in_batches(
    objective: Objective, images: Tensor, duals: Tensor, beta: Beta, batch_size: int | None
) -> State:
    """Return Σ_v Σ_j Σ_k α^v_jk ∇f^k(x_j), holding the activations of one batch at a time; of all at once if
    batch_size is None."""
    first, *others = batches_of(len(images), batch_size)
    sums = objective.gradient_sum(images[first], duals[:, first], beta)
    for batch in others:
        for name, value in objective.gradient_sum(images[batch], duals[:, batch], beta).items():
            sums[name] += value
    return sums


def batches_of(count: int, batch_size: int | None) -> list[slice]:
    """Cut `count` into slices of `batch_size`; one slice where batch_size is None."""
    size = batch_size or count
    return [slice(i, i + size) for i in range(0, count, size)]


def relative_residual(objective: Objective, images: Tensor, duals: Tensor, batch_size: int | None = None) -> float:
    """Return ‖Δθ − Σ‖ / ‖Δθ‖: what images (M, C, H, W) and duals (V, M, K) leave of the update, without softplus."""
    return (squared_norm(_rest(objective, images, duals, batch_size)) / squared_norm(objective.delta)) ** 0.5


def relative_residual_without(
    objective: Objective, images: Tensor, duals: Tensor, batch_size: int | None = None
) -> Tensor:
    """Return ‖R‖ / ‖R + g_j‖ of every candidate, (M,), where g_j is its part of the gradient sum and R what all
    together leave of the update. images: (M, C, H, W). duals: (V, M, K)."""
    rest = _rest(objective, images, duals, batch_size)
    squared = torch.stack([(value**2).sum() for value in rest.values()]).sum()
    ratios = []
    for j in range(len(images)):
        part = objective.gradient_sum(images[j : j + 1], duals[:, j : j + 1], None)
        without = torch.stack([((rest[name] + part[name]) ** 2).sum() for name in rest]).sum()
        ratios.append((squared / without.clamp_min(torch.finfo(without.dtype).tiny)).sqrt())
    return torch.stack(ratios)


def _rest(objective: Objective, images: Tensor, duals: Tensor, batch_size: int | None) -> State:
    sums = gradient_sum_in_batches(objective, images, duals, None, batch_size)
    return {name: delta - sums[name] for name, delta in objective.delta.items()}


def squared_norm(state: State) -> float:
    """Return ‖·‖² over all tensors of a state dict, summed in float64."""
    return sum(torch.stack([(value.double() ** 2).sum() for value in state.values()]).tolist())


@dataclass(frozen=True)
class DualSolution(Solution):
    """A solution of the NTK attack.

    duals: (V, M, K). The residual is ‖Δθ − Σ‖ / ‖Δθ‖, the losses of the trace are relative to ‖Δθ‖².
    """

    duals: Tensor

    @classmethod
    def of(
        cls,
        objective: Objective,
        images: Tensor,
        duals: Tensor,
        trace: list[tuple[int, float]],
        batch_size: int | None = None,
    ) -> "DualSolution":
        """Judge where an optimization ended, without the softplus."""
        images, duals = images.detach(), duals.detach()
        return cls(images, relative_residual(objective, images, duals, batch_size), tuple(trace), duals)


def inverse_temperature(iteration: int, iterations: int) -> float:
    """Return β of the softplus that stands for ReLU: min(10 + 10^(4i/T), 200), 11 at first (app. H.3, rescaled to
    T)."""
    return min(10.0 + 10.0 ** (4.0 * iteration / iterations), ANNEALED)


def outside_range(images: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return M · mean(relu(x − max)² + relu(min − x)²), the penalty of app. H.3 without its factor 0.1."""
    return len(images) * (torch.relu(images - high) ** 2 + torch.relu(low - images) ** 2).mean()


def high_frequencies(images: Tensor) -> Tensor:
    """Return M · mean((x − b∗x)²) of x (M, C, H, W), b the blur [1 2 1]ᵀ[1 2 1] / 16 of every channel, edges repeated.

    At frequencies (u, v), in radians per pixel, the weight is (1 − cos²(u/2) cos²(v/2))²: none at 0, 1 at the highest.
    """
    # computed on the device: a CUDA graph cannot hold a copy from the host, nor a number that is set in a tensor
    line = 0.5 - 0.25 * torch.arange(-1, 2, device=images.device, dtype=images.dtype).abs()
    channels = images.shape[1]
    kernel = (line[:, None] * line).expand(channels, 1, 3, 3)
    blurred = F.conv2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), kernel, groups=channels)
    return len(images) * ((images - blurred) ** 2).mean()
