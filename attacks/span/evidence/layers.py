"""What a client's update shows of the first two layers of an MLP, once weight decay is undone."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attacks.base import Facts
from attacks.interface.errors import InputError
from attacks.interface.observation import Observation, State
from attacks.interface.torch_tools import torch_generator
from attacks.networks.mlp import BatchNorm, FrontLayers
from attacks.span.evidence.rounding import steady_bias
from attacks.span.thresholds import EVIDENCE
from attacks.update.spectrum import CLEAR_GAP, ROUNDING, Spectrum, decay_factor, without_decay

NOTHING = "the update of one of the first two layers is zero: there is nothing to attack"


@dataclass(frozen=True)
class FirstLayers:
    """The first two layers in every round of the federation, in float64.

    initial, final: (R·W, in + 1), [W | b] of the first layer before and after training, the rounds stacked; the images
        span the rows of their difference.
    second: (R, out, W + 1), the change of [W | b] of the second layer.
    warnings, facts: on what was undone.
    norms: [scale | shift] (R·W, 2) of the BatchNorm behind the first layer, before and after; None without one.
    bias_error: (R·W,), standard deviation of the entries of Δb, where rounding was undone; None where not.
    """

    initial: Tensor
    final: Tensor
    second: Tensor
    warnings: tuple[str, ...] = ()
    facts: Facts = field(default_factory=dict)
    norms: tuple[Tensor, Tensor] | None = None
    bias_error: Tensor | None = None

    @classmethod
    def of(cls, observation: Observation, network: FrontLayers, device: torch.device) -> "FirstLayers":
        """Read the layers in rounds that moved the first one. Raises InputError if none moved the second one."""
        starts, ends, seconds, kept = [], [], [], 1.0
        for pair in observation.pairs:
            start, end = (joined_layer(state, network, 0, device) for state in pair)
            second, moved = (joined_layer(state, network, 1, device) for state in pair)
            spectrum = Spectrum.of(end - start)
            decayed = spectrum.relative_residual(spectrum.count()) > EVIDENCE.decay_sought_above
            factor = decay_factor(start[:, :-1], end[:, :-1]) if decayed else 1.0
            starts.append(start)
            ends.append(without_decay(start, end, factor))
            seconds.append(without_decay(second, moved, factor) - second)
            kept = min(kept, factor)
        norms = _norms(observation, network, device)
        layers = cls(torch.cat(starts), torch.cat(ends), torch.stack(seconds), norms=norms)
        if not layers.second.any():
            raise InputError(NOTHING)
        shrunk = f"weight decay was undone: parameters shrank by {1 - kept:.2g} in all, as the first layer shows"
        return layers if kept == 1 else layers.noting((shrunk,), {"decay_factor": kept})

    def noting(self, warnings: tuple[str, ...], facts: Facts) -> "FirstLayers":
        """Return a copy with further warnings and facts."""
        return replace(self, warnings=(*self.warnings, *warnings), facts=self.facts | facts)

    def steadied(self, spectrum: Spectrum, count: int) -> "FirstLayers":
        """Return a copy whose bias moved within the `count` directions of the update, if rounding took much of how it
        did. spectrum: of the update."""
        if (found := steady_bias(self.initial, self.final, spectrum, count)) is None:
            return self
        moved, error = found
        final = torch.cat([self.final[:, :-1], (self.initial[:, -1] + moved)[:, None]], 1)
        return replace(self, final=final, bias_error=error)

    @property
    def change(self) -> Tensor:
        """The first layer's update (R·W, in + 1)."""
        return self.final - self.initial

    @property
    def fed(self) -> tuple[Tensor, Tensor]:
        """[W | b] (R·W, in + 1) before and after training, with BatchNorm folded in: the activation's input is
        W x + b."""
        if self.norms is None:
            return self.initial, self.final
        first, last = (
            norm[:, :1] * layer + torch.nn.functional.pad(norm[:, 1:], (layer.shape[1] - 1, 0))
            for norm, layer in zip(self.norms, (self.initial, self.final), strict=True)
        )
        return first, last

    @property
    def width(self) -> int:
        """W, the number of units of the first layer."""
        return len(self.initial) // self.rounds

    @property
    def rounds(self) -> int:
        """R, the number of rounds."""
        return len(self.second)

    def by_round(self, layer: Tensor) -> Tensor:
        """Split a first layer (R·W, in + 1) into its rounds, (R, W, in + 1)."""
        return layer.unflatten(0, (self.rounds, -1))

    def most_images(self) -> int:
        """Return the largest number of images that a single round shows."""
        return max(Spectrum.of(change).count() for change in self.by_round(self.change))


def rounds_with_images(observation: Observation, network: FrontLayers) -> tuple[int, ...]:
    """Return the indices of the pairs whose first layer moved: in the others no image left a trace. Raises InputError
    if no pair's first layer moved."""
    rounds = observation.pairs_that_move((network.weights[0], network.biases[0] or ""))
    if not rounds:
        observation.without_zero_updates()  # raises an error of its own where no layer moved at all
        raise InputError(NOTHING)
    return rounds


def informative_rounds(updates: Tensor, count: int) -> dict[int, Spectrum]:
    """Choose the rounds that test candidates; return the spectrum of the second layer's update in each. Chosen are the
    rounds of rank `count`, in which every image left a trace above the noise; if there are none, those of the highest
    rank. updates: (R, out, W + 1)."""
    spectra = {r: Spectrum.of(update) for r, update in enumerate(updates) if update.any()}
    ranks = {r: spectrum.count() for r, spectrum in spectra.items()}
    enough = min(count, max(ranks.values()))
    return {r: spectrum for r, spectrum in spectra.items() if ranks[r] >= enough}


def at_rest(spectra: Iterable[Spectrum], count: int) -> bool:
    """Return whether the features of `count` images did not move during training: `count` directions hold the second
    layer's update, and only rounding lies behind them."""
    for one in spectra:
        if count >= len(one.values):
            return False
        last, behind = float(one.values[count - 1] / one.values[0]), float(one.values[count] / one.values[0])
        if behind > ROUNDING or last < CLEAR_GAP * behind:
            return False
    return True


def directions_shown(spectra: Iterable[Spectrum]) -> int:
    """Return how many directions above rounding the second layer's update has in the round with the most. Images that
    activate the same units share one, as in a task of two classes, where they do not move in training."""
    return max((int((one.values > ROUNDING * one.values[0]).sum()) for one in spectra), default=0)


def joined_layer(state: State, network: FrontLayers, index: int, device: torch.device) -> Tensor:
    """Return [W | b] (out, in + 1) of a layer, in float64."""
    weight, bias = state[network.weights[index]], state[network.biases[index] or ""]
    return torch.cat([weight, bias[:, None]], 1).to(device, torch.float64)


def normalized_by_batch(initial: State, final: State, network: FrontLayers) -> list[int]:
    """Return which of the first two layers (0, 1) a BatchNorm in training mode follows, which normalizes a batch by its
    own statistics. It shows in two ways: its running statistics moved, or the layer's bias hardly moved beside its
    weights, as the signals of a unit then add up to zero."""
    found = []
    for layer, norm in enumerate(network.norms[:2]):
        weight, bias = network.weights[layer], network.biases[layer] or ""
        if norm is not None and (
            any(not torch.equal(initial[name], final[name]) for name in norm.statistics)
            or (final[bias] - initial[bias]).norm() < ROUNDING * (final[weight] - initial[weight]).norm()
        ):
            found.append(layer)
    return found


class NoBatchMean(Exception):
    """The mean of a batch that BatchNorm normalized by its own statistics cannot be computed; the text says why."""


def with_batch_mean(initial: State, final: State, network: FrontLayers) -> tuple[State, State]:
    """Return the parameters before and after training as if BatchNorm had been in evaluation mode, with the statistics
    of the client's one batch.

    BatchNorm in training mode makes the signals of a unit ahead of it add up to zero. So the layer's update spans only
    differences of its inputs, Σ_i δ_i x_iᵀ = Σ_i δ_i (x_i − x̄)ᵀ. The running mean gives the mean of the batch,

        W x̄ + b = (running mean after − (1 − momentum) · running mean before) / momentum,

    and with more units than inputs, least squares gives x̄ and an error bar. The update returned has one more row,
    along [x̄ | 1], in a direction of units that no difference has. Raises NoBatchMean if there were several batches, if
    the running mean was not sent, or if x̄ is not determined.
    """
    initial, final, images = dict(initial), dict(final), 0
    for layer in normalized_by_batch(initial, final, network):
        norm, weight, bias = network.norms[layer], network.weights[layer], network.biases[layer] or ""
        assert norm is not None
        start, moved = initial[weight].double(), final[weight].double()
        mean, variance = _batch_statistics(initial, final, norm)
        center = _mean_input(start, mean - initial[bias].double(), check=layer == 0)
        signals, values, _ = torch.linalg.svd(moved - start, full_matrices=False)
        rank = Spectrum.of(moved - start).count()
        if rank == len(values):
            raise NoBatchMean(f"the update of layer {weight!r} has full rank")
        images = images or rank + 1
        seen = signals[:, :rank]  # the further columns are rounding and differ from run to run
        drawn = torch.randn(len(seen), generator=torch_generator(0, "batch mean"), dtype=seen.dtype).to(seen.device)
        unseen = drawn - seen @ (seen.T @ drawn)
        added = unseen / unseen.norm() * values[rank - 1] / (1 + center.square().sum()).sqrt()
        ends = moved + added[:, None] * center, initial[bias].double() + added
        # in the parameters' own type: the last digits of float64 depend on where arrays lie in memory
        final[weight], final[bias] = (end.to(initial[weight].dtype) for end in ends)
        biased = variance * (images - 1) / images  # BatchNorm divides by this one, and keeps the unbiased one
        for name, value in zip(norm.statistics, (mean, biased), strict=True):
            initial[name] = final[name] = value
    return initial, final


def _batch_statistics(initial: State, final: State, norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """Return (mean, unbiased variance), each (W,) in float64, of the one batch that moved the running statistics."""
    counter = f"{norm.name}.num_batches_tracked"
    batches = int(final[counter] - initial[counter])
    if batches != 1:
        seen = f"saw {batches} batches" if batches else "are not in the client's reply"
        raise NoBatchMean(f"the running statistics, which tell the mean of a single batch, {seen}")
    share = 1 / float(final[counter]) if norm.momentum is None else norm.momentum
    mean, variance = ((final[name].double() - (1 - share) * initial[name].double()) / share for name in norm.statistics)
    return mean, variance


def _mean_input(weight: Tensor, outputs: Tensor, check: bool) -> Tensor:
    """Solve W x̄ = outputs (W,) for x̄ (in,) by least squares. check: whether to refuse an inexact x̄, as nothing that
    follows would show its error."""
    units, inputs = weight.shape
    if units < inputs + check:
        raise NoBatchMean(f"{units} units do not tell the mean of a batch's {inputs} inputs")
    center = torch.linalg.lstsq(weight, outputs[:, None]).solution[:, 0]
    if check:
        deviation = (weight @ center - outputs).norm() / (units - inputs) ** 0.5
        error = float(deviation * torch.linalg.pinv(weight).norm() / center.norm())
        if error > EVIDENCE.batch_mean_error:
            raise NoBatchMean(f"the running mean tells the mean of the batch to {error:.2g} of its length only")
    return center


def _norms(observation: Observation, network: FrontLayers, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return [scale | shift] (R·W, 2) of the BatchNorm behind the first layer, before and after, the rounds stacked."""
    norm = network.norms[0]
    if norm is None:
        return None
    before, after = (
        torch.cat([torch.stack(norm.scale_and_shift(pair[end]), 1) for pair in observation.pairs]) for end in (0, 1)
    )
    return before.to(device, torch.float64), after.to(device, torch.float64)
