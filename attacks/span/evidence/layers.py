"""What a client's update shows of the first two layers of an MLP, once weight decay is undone."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.interface.observation import Observation, State
from attacks.networks.mlp import DenseNetwork
from attacks.span.thresholds import EVIDENCE
from attacks.update.spectrum import Spectrum
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
    facts: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, observation: Observation, network: DenseNetwork, device: torch.device) -> "FirstLayers":
        """Of rounds in which the first layer moved. Raises InputError where the second layer never did."""
        observation, warnings, facts = _without_decay(observation, network, device)
        before, after = ([_layers(pair[end], network, device) for pair in observation.pairs] for end in (0, 1))
        initial, final = (torch.cat([layers[0] for layers in end]) for end in (before, after))
        second = torch.stack([new[1] - old[1] for old, new in zip(before, after, strict=True)])
        if not second.any():
            raise InputError(NOTHING)
        return cls(initial, final, second, warnings, facts)

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


def informative_rounds(updates: Tensor, count: int) -> tuple[dict[int, Spectrum], list[int]]:
    """The spectra by round of the second layer's updates (R, out, W + 1), and the rounds that test candidates.

    An image that leaves no trace above the noise in a round fails its test, and features grow alike as the network fits
    them: only rounds of rank `count` are used, or, where none has it, those of the highest rank.
    """
    spectra = {r: Spectrum.of(update) for r, update in enumerate(updates) if update.any()}
    ranks = {r: spectrum.count() for r, spectrum in spectra.items()}
    enough = min(count, max(ranks.values()))
    return spectra, [r for r, rank in ranks.items() if rank >= enough]


def layer_matrix(state: State, weight: str, bias: str, device: torch.device) -> Tensor:
    """[W | b] (out, in + 1) of the linear layer with these parameters, in float64."""
    return torch.cat([state[weight], state[bias][:, None]], 1).to(device, torch.float64)


def _layers(state: State, network: DenseNetwork, device: torch.device) -> list[Tensor]:
    """[W | b] of the first two layers, (out, in + 1) each, in float64."""
    return [layer_matrix(state, network.weights[i], network.biases[i] or "", device) for i in (0, 1)]


def _without_decay(
    observation: Observation, network: DenseNetwork, device: torch.device
) -> tuple[Observation, tuple[str, ...], dict[str, float]]:
    """The observation as without weight decay, with warnings and facts; as it is where no first layer shows any."""
    pairs, factors = [], []
    for pair in observation.pairs:
        first, last = (_layers(state, network, device)[0] for state in pair)
        spectrum, factor = Spectrum.of(last - first), 1.0
        if spectrum.relative_residual(spectrum.count()) > EVIDENCE.decay_sought_above:
            factor = decay_factor(first[:, :-1], last[:, :-1])
        own = replace(observation, pairs=(pair,))
        pairs.append((without_decay(own, factor) if factor < 1 else own).pairs[0])
        factors.append(factor)
    if min(factors) == 1:
        return observation, (), {}
    shrunk = f"weight decay was undone: parameters shrank by {1 - min(factors):.2g} in all, as the first layer shows"
    return replace(observation, pairs=tuple(pairs)), (shrunk,), {"decay_factor": min(factors)}
