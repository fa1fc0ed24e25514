"""What a client's update shows of the first two layers of an MLP, once weight decay is undone."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attacks.interface.attack import Facts
from attacks.interface.errors import InputError
from attacks.interface.observation import Observation, State
from attacks.networks.mlp import DenseNetwork
from attacks.span.thresholds import EVIDENCE
from attacks.update.spectrum import CLEAR_GAP, ROUNDING, Spectrum
from attacks.update.weight_decay import decay_factor, without_decay

NOTHING = "the update of one of the first two layers is zero: there is nothing to attack"


@dataclass(frozen=True)
class FirstLayers:
    """The first two layers in every round of the federation, in float64.

    initial, final: (R·W, in + 1), the first layer's [W | b], one round below the other; the images span the rows of
    their difference. second: (R, out, W + 1), the change of the second layer's. warnings, facts: of what was undone.
    """

    initial: Tensor
    final: Tensor
    second: Tensor
    warnings: tuple[str, ...] = ()
    facts: Facts = field(default_factory=dict)

    @classmethod
    def of(cls, observation: Observation, network: DenseNetwork, device: torch.device) -> "FirstLayers":
        """Of rounds in which the first layer moved. Raises InputError where the second layer never did."""
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
        layers = cls(torch.cat(starts), torch.cat(ends), torch.stack(seconds))
        if not layers.second.any():
            raise InputError(NOTHING)
        shrunk = f"weight decay was undone: parameters shrank by {1 - kept:.2g} in all, as the first layer shows"
        return layers if kept == 1 else layers.noting((shrunk,), {"decay_factor": kept})

    def noting(self, warnings: tuple[str, ...], facts: Facts) -> "FirstLayers":
        """With further warnings and facts."""
        return replace(self, warnings=(*self.warnings, *warnings), facts=self.facts | facts)

    @property
    def change(self) -> Tensor:
        """The first layer's update (R·W, in + 1)."""
        return self.final - self.initial

    @property
    def width(self) -> int:
        """W, the number of units of the first layer."""
        return len(self.initial) // self.rounds

    @property
    def rounds(self) -> int:
        """R, the number of rounds."""
        return len(self.second)

    def by_round(self, layer: Tensor) -> Tensor:
        """(R, W, in + 1) of a first layer (R·W, in + 1)."""
        return layer.unflatten(0, (self.rounds, -1))

    def most_images(self) -> int:
        """How many images the round shows that shows most of them."""
        return max(Spectrum.of(change).count() for change in self.by_round(self.change))


def rounds_with_images(observation: Observation, network: DenseNetwork) -> tuple[int, ...]:
    """Indices of the pairs whose first layer moved: in the others no image left a trace (only dead units, say).

    Raises InputError where there are none.
    """
    first = (network.weights[0], network.biases[0] or "")
    rounds = tuple(
        i
        for i, (initial, final) in enumerate(observation.pairs)
        if any(not torch.equal(initial[name], final[name]) for name in first)
    )
    if not rounds:
        observation.without_zero_updates()  # raises an error of its own where no layer moved at all
        raise InputError(NOTHING)
    return rounds


def informative_rounds(updates: Tensor, count: int) -> dict[int, Spectrum]:
    """The rounds that test candidates, with the spectra of the second layer's updates (R, out, W + 1).

    An image that leaves no trace above the noise in a round fails its test, and features grow alike as the network fits
    them: only rounds of rank `count` are used, or, where none has it, those of the highest rank.
    """
    spectra = {r: Spectrum.of(update) for r, update in enumerate(updates) if update.any()}
    ranks = {r: spectrum.count() for r, spectrum in spectra.items()}
    enough = min(count, max(ranks.values()))
    return {r: spectrum for r, spectrum in spectra.items() if ranks[r] >= enough}


def at_rest(spectra: Iterable[Spectrum], count: int) -> bool:
    """Whether the second layer's rows hold nothing but the features of `count` images as they were at the start, as
    after a single step: behind so many directions comes rounding in every round."""
    for one in spectra:
        if count >= len(one.values):
            return False
        last, behind = float(one.values[count - 1] / one.values[0]), float(one.values[count] / one.values[0])
        if behind > ROUNDING or last < CLEAR_GAP * behind:
            return False
    return True


def joined_layer(state: State, network: DenseNetwork, index: int, device: torch.device) -> Tensor:
    """[W | b] (out, in + 1) of a layer, in float64."""
    weight, bias = state[network.weights[index]], state[network.biases[index] or ""]
    return torch.cat([weight, bias[:, None]], 1).to(device, torch.float64)
