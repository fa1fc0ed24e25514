"""The reconstruction loss of a plain MLP in closed form, with its gradients written out: no graph is built.

Per layer the gradient sum is DᵀA (see `attacks.networks.mlp`), with one row of D and A per candidate and kernel, and

    ‖DᵀA − Δ‖² = ⟨DDᵀ, AAᵀ⟩ − 2⟨D, AΔᵀ⟩ + ‖Δ‖²,    ∂/∂D = 2(AAᵀD − AΔᵀ),    ∂/∂A = 2(DDᵀA − DΔ).

For few candidates the right-hand sides are cheaper: no matrix of the layer's size is formed, and products with an
update of low numerical rank, Δ ≈ left rightᵀ, as SGD's are, cost little.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attacks.interface.observation import State
from attacks.networks.mlp import Beta, DenseNetwork, DensePass
from attacks.networks.products import Product, break_even_rank, compress

Terms = tuple[Tensor, Tensor, Tensor]  # a scalar with its gradients in D and A, or in images and duals
Term = Callable[[Tensor, Tensor], Terms]


class DenseObjective:
    """The loss for plain MLPs; see `attacks.ntk.objective.Objective` for the shapes."""

    def __init__(self, network: DenseNetwork, delta: State, views: Sequence[State], kept: State | None = None):
        self.network, self.kept = network, kept
        self.delta = delta if kept is None else {name: value * kept[name] for name, value in delta.items()}
        self.views = [network.layers(view) for view in views]
        self.updates = self._updates(self.delta)

    def loss(self, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        return self._summed([update.squared_distance for update in self.updates], images, duals, beta)

    def inner(self, direction: State, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        if self.kept is not None:
            direction = {name: value * self.kept[name] for name, value in direction.items()}
        return self._summed([update.inner for update in self._updates(direction)], images, duals, beta)

    def _summed(self, terms: Sequence[Term], images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        return _WithGradients.apply(images, duals, lambda x, alpha: self.value_and_gradients(terms, x, alpha, beta))

    def gradient_sum(self, images: Tensor, duals: Tensor, beta: Beta) -> State:
        sums: State = {}
        with torch.no_grad():
            _, factors = self._run(images, duals, beta)
            for weight, bias, (d, a) in zip(self.network.weights, self.network.biases, factors, strict=True):
                if weight in self.delta:
                    sums[weight] = d.T @ a
                if bias in self.delta:
                    sums[bias] = d.sum(0)
        return sums if self.kept is None else {name: value * self.kept[name] for name, value in sums.items()}

    def value_and_gradients(self, terms: Sequence[Term], images: Tensor, duals: Tensor, beta: Beta) -> Terms:
        """Return Σ_l terms_l(D_l, A_l), a scalar, and its gradients in images and duals."""
        passes, factors = self._run(images, duals, beta)
        parts = [term(d, a) for term, (d, a) in zip(terms, factors, strict=True)]
        in_images, in_duals = torch.zeros_like(images), torch.empty_like(duals)
        for v, (layers, run) in enumerate(zip(self.views, passes, strict=True)):
            rows = slice(v * len(images), (v + 1) * len(images))
            signals, inputs = [d[rows] for _, d, _ in parts], [a[rows] for _, _, a in parts]
            in_view, in_duals[v] = self.network.pull_back(layers, run, signals, inputs, beta)
            in_images += in_view.view_as(images)
        return torch.stack([value for value, _, _ in parts]).sum(), in_images, in_duals

    def _run(self, images: Tensor, duals: Tensor, beta: Beta) -> tuple[list[DensePass], list[tuple[Tensor, Tensor]]]:
        """Return the pass of every view, and per layer (D, A), the rows of all views one after the other."""
        passes = [self.network.run(layers, images, dual, beta) for layers, dual in zip(self.views, duals, strict=True)]
        layers = range(len(self.updates))
        return passes, [(_rows([p.signals[i] for p in passes]), _rows([p.inputs[i] for p in passes])) for i in layers]

    def _updates(self, delta: State) -> list["LayerDelta"]:
        kept, biases = self.kept or {}, (bias or "" for bias in self.network.biases)
        return [
            LayerDelta(delta.get(weight), delta.get(bias), kept.get(weight), kept.get(bias))
            for weight, bias in zip(self.network.weights, biases, strict=True)
        ]


class _WithGradients(torch.autograd.Function):
    """A scalar that is computed together with its gradients in images and duals."""

    @staticmethod
    def forward(ctx, images: Tensor, duals: Tensor, compute: Callable[[Tensor, Tensor], Terms]) -> Tensor:
        value, *gradients = compute(images, duals)
        ctx.save_for_backward(*gradients)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx, outer: Tensor):
        return *(outer * gradient for gradient in ctx.saved_tensors), None


@dataclass(frozen=True)
class LayerDelta:
    """Δ of one layer.

    weight: (out, in), bias: (out,); None where frozen or absent.
    kept_weight, kept_bias: 1 for the entries that count, 0 for others, where Δ is 0; None where all count.

    Both methods take D (rows, out) and A (rows, in), and return a scalar and its gradients in D and A.
    """

    weight: Tensor | None
    bias: Tensor | None
    kept_weight: Tensor | None = None
    kept_bias: Tensor | None = None

    def squared_distance(self, d: Tensor, a: Tensor) -> Terms:
        """Return ‖DᵀA − Δ‖² + ‖Dᵀ1 − Δ_bias‖²."""
        product = None if self.kept_weight is not None else self.gram_product(len(d))
        return self._from_residual(d, a) if product is None else self._from_grams(d, a, product)

    def inner(self, d: Tensor, a: Tensor) -> Terms:
        """Return ⟨DᵀA, Δ⟩ + ⟨Dᵀ1, Δ_bias⟩."""
        grad_d = torch.zeros_like(d) if self.weight is None else a @ self.weight.T
        if self.bias is not None:
            grad_d += self.bias
        return _dot(d, grad_d), grad_d, torch.zeros_like(a) if self.weight is None else d @ self.weight

    @cached_property
    def squared_norm(self) -> float:
        return sum(float((part.double() ** 2).sum()) for part in (self.weight, self.bias) if part is not None)

    @cached_property
    def _product(self) -> Product | None:
        return None if self.weight is None else compress(self.weight)

    def gram_product(self, rows: int) -> Product | None:
        """Return Δ for the form with Gram matrices; None where the residual DᵀA − Δ itself is cheaper, by
        multiplications: 4·rows·(rows + rank)·(out + in) against 6·rows·out·in, right at widths 256 and 1024."""
        if self.weight is None:
            return None
        limit = 1.5 * break_even_rank(self.weight.shape)
        if rows >= limit or self._product is None or rows + self._product.rank >= limit:
            return None
        return self._product

    def _from_grams(self, d: Tensor, a: Tensor, product: Product) -> Terms:
        signal_gram, input_gram = d @ d.T, a @ a.T
        grad_d, grad_a = product.forward(a), product.backward(d)
        if self.bias is not None:  # an input of 1
            input_gram += 1
            grad_d += self.bias
        value = self.squared_norm - 2 * _dot(d, grad_d) + _dot(signal_gram, input_gram)
        grad_d.addmm_(input_gram, d, beta=-2, alpha=2)
        grad_a.addmm_(signal_gram, a, beta=-2, alpha=2)
        return value, grad_d, grad_a

    def _from_residual(self, d: Tensor, a: Tensor) -> Terms:
        value, grad_d, grad_a = d.new_zeros(()), torch.zeros_like(d), torch.zeros_like(a)
        if self.weight is not None:
            residual = torch.addmm(self.weight, d.T, a, beta=-1)
            if self.kept_weight is not None:
                residual.mul_(self.kept_weight)
            value = _dot(residual, residual)
            grad_d, grad_a = (a @ residual.T).mul_(2), (d @ residual).mul_(2)
        if self.bias is not None:
            residual = d.sum(0) - self.bias
            if self.kept_bias is not None:
                residual.mul_(self.kept_bias)
            value, grad_d = value + _dot(residual, residual), grad_d.add_(residual, alpha=2)
        return value, grad_d, grad_a


def _rows(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return torch.dot(left.flatten(), right.flatten())
