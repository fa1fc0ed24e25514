"""Compress the update: sparsification, quantization, half precision, signSGD and PowerSGD, with error feedback."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from attacks.interface.observation import State
from attacks.interface.options import POSITIVE, Range, above_zero_to
from clients.defenses.base import (
    Defense,
    DefenseContext,
    Encoding,
    Metrics,
    as_text,
    flat,
    from_text,
    like,
    register,
    rounded,
)

ERROR = "error"  # of the last round, in the defense's memory


def compressed(delta: State, compress: Callable[[State], State], memory: dict[str, Any], feedback: bool) -> State:
    """Return compress(Δθ). With error feedback return compress(Δθ + e), and remember what that leaves as the next e, 0
    at first (Karimireddy et al. 2019)."""
    if not feedback:
        return compress(delta)
    owed = from_text(memory[ERROR]) if ERROR in memory else {}
    whole = {name: value + owed[name] if name in owed else value for name, value in delta.items()}
    sent = compress(whole)
    left = {name: value - sent[name] for name, value in whole.items()}
    if all(bool(value.isfinite().all()) for value in left.values()):  # a round that diverged is not made up for
        memory[ERROR] = as_text(left)
    return sent


@register
@dataclass(frozen=True)
class TopK(Defense):
    """Send only the largest changes of the update, a tenth of them by default, and zeros for the rest.

    Aji and Heafield 2017.

    fraction: share of the update's entries that is sent: the largest ones, with their positions.
    error_feedback: add what was not sent to the next round's update (Stich et al. 2018).
    """

    name: ClassVar[str] = "top_k"

    fraction: Annotated[float, above_zero_to(1)] = 0.1
    error_feedback: bool = False

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        return compressed(delta, self._largest, context.memory, self.error_feedback), {}

    def _largest(self, delta: State) -> State:
        entries = flat(delta)
        kept = torch.zeros_like(entries, dtype=torch.bool)
        kept[entries.abs().topk(max(1, round(self.fraction * len(entries)))).indices] = True
        return _masked(delta, kept)

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        return Encoding(self.fraction * encoding.fraction, encoding.bits, indexed=True)

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {"kept_fraction": self.fraction}


@register
@dataclass(frozen=True)
class RandomK(Defense):
    """Send only a random part of the update, a tenth by default, and zeros for the rest.

    Aji and Heafield 2017.

    fraction: share of entries sent, drawn anew in every round; a seed known to both sides gives their positions.

    rescale: divide what is sent by the fraction, so that the update is right in expectation.
    """

    name: ClassVar[str] = "random_k"

    fraction: Annotated[float, above_zero_to(1)] = 0.1
    rescale: bool = True

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        entries = sum(value.numel() for value in delta.values())
        kept = torch.zeros(entries, dtype=torch.bool)
        order = torch.randperm(entries, generator=context.generator(self.name))
        kept[order[: max(1, round(self.fraction * entries))]] = True
        return _masked(delta, kept, 1 / self.fraction if self.rescale else 1.0), {}

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        return replace(encoding, fraction=self.fraction * encoding.fraction)

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {"kept_fraction": self.fraction}


def _masked(delta: State, kept: Tensor, factor: float = 1.0) -> State:
    return {name: delta[name] * part * factor for name, part in like(kept, delta).items()}


@register
@dataclass(frozen=True)
class Quantization(Defense):
    """Round every number of the update to one of a few levels before it is sent.

    Uniform, for every tensor between its extremes; to the nearest level, or at random (QSGD).

    bits: of each entry, 2^bits levels.
    stochastic: round up or down at random, right in expectation.
    """

    name: ClassVar[str] = "quantization"

    bits: Annotated[int, Range("has to be 1 to 16", 1, 16, with_low=True, with_high=True)] = 8
    stochastic: bool = False

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        generator = context.generator(self.name)
        return {name: self._quantized(value, generator) for name, value in delta.items()}, {}

    def _quantized(self, value: Tensor, generator: torch.Generator) -> Tensor:
        low, high = value.min(), value.max()
        step = (high - low) / (2**self.bits - 1)
        if not step > 0:
            return value
        levels = (value - low) / step
        shift = torch.rand(value.shape, generator=generator) if self.stochastic else 0.5
        return low + step * (levels + shift).floor().clamp(0, 2**self.bits - 1)

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        return replace(encoding, bits=self.bits)

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {"quantization_bits": self.bits}


SIGNIFICANT_BITS = {"bfloat16": 8, "float16": 11}  # the leading one, which is not stored, among them


@register
@dataclass(frozen=True)
class HalfPrecision(Defense):
    """Send parameters in 16 bits in the place of 32, as a federation that trains in bfloat16 does.

    dtype: in which the client sends its parameters (not their change), each rounded to the nearest such number.

    The error is relative to the parameter, not to its change: up to 0.4 % of it in bfloat16.
    """

    name: ClassVar[str] = "half_precision"

    dtype: Literal["bfloat16", "float16"] = "bfloat16"

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        dtype = getattr(torch, self.dtype)
        return rounded(delta, context, lambda parameter: parameter.to(dtype).double()), {}

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        return replace(encoding, bits=min(encoding.bits, 16))

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {"significant_bits": SIGNIFICANT_BITS[self.dtype]}


@register
@dataclass(frozen=True)
class SignSGD(Defense):
    """Send only whether each parameter went up or down, and for each layer by how much on average.

    The scaled sign: it is multiplied by the mean magnitude of its tensor's entries.
    One bit has no zero: an entry of 0 is sent as positive. The server averages what it gets, there is no majority vote.
    error_feedback: add what the signs lack to the next round's update, as the scaled form needs in order to converge.
    """

    name: ClassVar[str] = "sign_sgd"

    error_feedback: bool = False

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        return compressed(delta, signs, context.memory, self.error_feedback), {}

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {} if self.error_feedback else {"quantization_bits": 1}

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        return Encoding(bits=1)


def signs(delta: State) -> State:
    """Return (‖v‖₁ / d) · sign(v) of every tensor v of d entries (Karimireddy et al. 2019)."""
    sent = {}
    for name, value in delta.items():
        scale = value.abs().mean()
        sent[name] = torch.where(value < 0, -scale, scale)
    return sent


FACTORS = "factors"  # of the last round, in the defense's memory


@register
@dataclass(frozen=True)
class PowerSGD(Defense):
    """Send the update of every layer in a compressed form, as the product of two small matrices (PowerSGD).

    M (rows, columns) becomes P Qᵀ by a subspace iteration: P = orthonormal(M Q), Q = Mᵀ P (Vogels et al. 2019).

    Q starts as it ended in the last round, at random in the first. Kernels of convolutions count as columns; tensors
    that would not become smaller, as biases, are sent whole. Each client compresses by itself; workers of a data
    centre would average P before making Q, in a second exchange.

    rank: of the factors.
    error_feedback: add what the factors lack to the next round's update, as published.
    """

    name: ClassVar[str] = "power_sgd"

    rank: Annotated[int, POSITIVE] = 2
    error_feedback: bool = True

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        compress = partial(self._compressed, context=context)
        return compressed(delta, compress, context.memory, self.error_feedback), {}

    def _compressed(self, delta: State, context: DefenseContext) -> State:
        generator, sent = context.generator(self.name), dict(delta)
        factors = from_text(context.memory[FACTORS]) if FACTORS in context.memory else {}
        for name, value in delta.items():
            if self._saves(value):
                matrix = value.flatten(1)
                start = torch.randn((matrix.shape[1], self.rank), generator=generator).to(matrix)
                left = torch.linalg.qr(matrix @ factors.get(name, start)).Q
                factors[name] = matrix.T @ left
                sent[name] = (left @ factors[name].T).view(value.shape)
        if all(bool(right.isfinite().all() and right.any()) for right in factors.values()):
            context.memory[FACTORS] = as_text(factors)
        return sent

    def _saves(self, value: Tensor) -> bool:
        return value.dim() > 1 and self.rank * (len(value) + value[0].numel()) < value.numel()

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        values = [value for value in context.model.state_dict().values() if value.is_floating_point()]
        sent = [self.rank * (len(v) + v[0].numel()) if self._saves(v) else v.numel() for v in values]
        return Encoding(sum(sent) / sum(value.numel() for value in values))
