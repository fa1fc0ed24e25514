"""What a client's update shows of the first two layers of an MLP, and whether the span attack can use it."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.interface.observation import Observation, State
from attacks.networks.mlp import DenseNetwork, find_dense_network
from attacks.span.known_defense import Undefended, above_edge
from attacks.update.spectrum import Spectrum
from attacks.update.weight_decay import decay_factor, without_decay

DRIFT = 4.0  # directions of the second layer's row space that an image takes while its features move
NOISY_DIRECTIONS = 2.0  # per image, at least, where noise hides the smaller ones
WIDEST = 0.4  # of the width: the most directions that ρ may use and still tell images apart
NARROWEST = 1.2  # directions per image below which ρ cannot hold
FULL_RANK = 0.1  # ‖Δ − Δ_N‖ / ‖Δ‖ of the first layer from which its row space is not that of N images
NOISY = 1e-3  # the same: from here on images are less exact
UNCLEAN = 1e-4  # the same: from here on weight decay is looked for
CLEAR = 1.5  # ratio of the N-th singular value to the next above which noise leaves no doubt about N
CAPPED = 0.8  # of the rank that pixels allow: from here on the rank is a lower bound on N
NOTHING = "the update of one of the first two layers is zero: there is nothing to attack"


@dataclass(frozen=True)
class FirstLayers:
    """The first two layers in every round, float64: [W | b] one round below the other, and what the second gained.

    initial, final: two (R·W, in + 1); the images span the rows of every round's first layer. second: (R, out, W + 1).
    warnings, facts: of what had to be undone to read them.
    """

    initial: Tensor
    final: Tensor
    second: Tensor
    warnings: tuple[str, ...] = ()
    facts: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, observation: Observation, network: DenseNetwork, device: torch.device) -> "FirstLayers":
        """Raises InputError where one of them did not change."""
        observation, warnings, facts = _without_decay(
            _with_images(observation.without_zero_updates(), network), network, device
        )
        before, after = ([_layers(pair[end], network, device) for pair in observation.pairs] for end in (0, 1))
        initial, final = (torch.cat([layers[0] for layers in end]) for end in (before, after))
        second = torch.stack([new[1] - old[1] for old, new in zip(before, after, strict=True)])
        if not second.any():
            raise InputError(NOTHING)
        return cls(initial, final, second, tuple(warnings), facts)

    @property
    def change(self) -> Tensor:
        """(R·W, in + 1)."""
        return self.final - self.initial

    @property
    def width(self) -> int:
        """W."""
        return len(self.initial) // self.rounds

    @property
    def rounds(self) -> int:
        return len(self.second)

    def by_round(self, layer: Tensor) -> Tensor:
        """(R, W, in + 1) of one of (R·W, in + 1)."""
        return layer.unflatten(0, (self.rounds, -1))

    def most_images(self) -> int:
        """How many images the round that shows most of them shows."""
        return max(Spectrum.of(change).count() for change in self.by_round(self.change))

    def without_defense(self, known: Undefended) -> "FirstLayers":
        """With the updates as they were before the defense, as far as it is known."""
        warnings, facts = (*self.warnings, *known.warnings), self.facts | known.facts
        return FirstLayers(self.initial, self.initial + known.first, known.second, warnings, facts)


def plain_network(observation: Observation) -> DenseNetwork:
    """The plain MLP under attack, or InputError with what is missing."""
    network = find_dense_network(observation.model, observation.input_shape)
    name = type(observation.model).__name__
    if network is None or len(network.weights) < 3:
        raise InputError(
            f"attack 'span' needs linear layers from the pixels on, two of them hidden, or hidden ones with biases "
            f"behind other layers: model {name!r} has neither (use 'ntk')"
        )
    needed = [*network.weights[:2], *(bias or "" for bias in network.biases[:2])]
    missing = [name for name in needed if name not in observation.trainable]
    if missing:
        raise InputError(
            f"attack 'span' needs the first two layers trained, with biases: model {name!r} lacks "
            f"{', '.join(name or 'a bias' for name in missing)} (use 'ntk')"
        )
    return network


def telling(updates: Tensor, count: int) -> tuple[dict[int, Spectrum], list[int]]:
    """(spectra, which rounds test candidates) of the second layer's updates (R, out, W + 1).

    An image that leaves no trace above the noise in a round fails its test, and features grow alike as the network fits
    them: only rounds of rank `count` are used, or, where none has it, those of the highest rank.
    """
    spectra = {r: Spectrum.of(update) for r, update in enumerate(updates) if update.any()}
    ranks = {r: found.count() for r, found in spectra.items()}
    enough = min(count, max(ranks.values()))
    return spectra, [r for r, rank in ranks.items() if rank >= enough]


def test_directions(
    layers: FirstLayers, second: list[Spectrum], count: int, outside: float, known: Undefended | None
) -> int:
    """k: how many directions of the second layer's row space hold the features of `count` images.

    second: of the rounds that test. outside: ‖Δ − Δ_N‖ / ‖Δ‖ of the first layer.
    """
    if known is not None and known.rank is not None:
        return known.rank
    most = int(min(DRIFT * count, WIDEST * layers.width, layers.second.shape[1]))
    if known is not None and known.noisy:
        clear = max(above_edge(part, known.deviations[1]) for part in second)
    elif outside > NOISY:
        clear = max(part.above_noise() for part in second)
    else:
        return most
    return max(min(most, clear), min(most, int(NOISY_DIRECTIONS * count)))


def second_noise(second: list[Spectrum], outside: float, known: Undefended | None) -> float:
    """‖E‖ / ‖Δ‖ of the noise in the second layer's updates, 0 where the first layer shows none."""
    if known is not None and known.rank is not None:
        return known.remaining
    noise = max(part.median_noise() for part in second) if outside > NOISY else 0.0
    if known is not None and known.noisy:
        noise = min(noise, max(part.share(known.deviations[1]) for part in second))
    return noise


def assess(
    spectrum: Spectrum, count: int, directions: int, width: int, outside: float, known: Undefended | None
) -> tuple[list[str], bool]:
    """(warnings, whether a search makes sense), from what the first layer's spectrum tells."""
    rank = min(spectrum.rows, spectrum.columns)
    explained = known is not None and (known.noisy or known.rank is not None)
    if known is not None and known.rank is not None:
        rank = min(known.first.shape)  # the completed update's own rank is the number of images
    if count < 1 or count >= rank or (outside > FULL_RANK and not explained):
        return [
            f"nothing returned: the first layer's update has rank {rank} and {outside:.2g} of its norm lies outside "
            f"{count} directions (at most {FULL_RANK:g}): it is not a sum over few images, as after SGD "
            "(local Adam, much added noise, entries left out, more images than units or pixels?)"
        ], False
    if directions < NARROWEST * count:
        return [
            f"nothing returned: {count} images need {NARROWEST * count:.0f} directions of the second layer's rows, "
            f"{directions} can tell ({WIDEST:g} of the width {width}, and no more than the layer's outputs)"
        ], False
    warnings = []
    if outside > NOISY:
        gap = float(spectrum.values[count - 1] / spectrum.values[count])
        gap = CLEAR if explained else gap
        warnings.append(
            f"{outside:.2g} of the first layer's update lies outside {count} directions: it is noisy"
            + (f", and a gap of {gap:.2g} between singular values makes {count} images a guess" if gap < CLEAR else "")
        )
    if count >= CAPPED * rank:
        warnings.append(f"{count} is near {rank}, the highest rank these pixels allow: a lower bound on the number")
    return warnings, True


def _layers(state: State, network: DenseNetwork, device: torch.device) -> tuple[Tensor, Tensor]:
    """[W | b] of the first two layers, (out, in + 1) each, float64."""
    first, second = (
        torch.cat([state[weight], state[bias or ""][:, None]], 1).to(device, torch.float64)
        for weight, bias in list(zip(network.weights, network.biases, strict=True))[:2]
    )
    return first, second


def _with_images(observation: Observation, network: DenseNetwork) -> Observation:
    """Without the pairs whose first layer did not move (only dead units, say): no image left a trace there.

    Raises InputError where none did."""
    first = (network.weights[0], network.biases[0] or "")
    pairs = tuple(
        (initial, final)
        for initial, final in observation.pairs
        if any(not torch.equal(initial[name], final[name]) for name in first)
    )
    if not pairs:
        raise InputError(NOTHING)
    return replace(observation, pairs=pairs)


def _without_decay(
    observation: Observation, network: DenseNetwork, device: torch.device
) -> tuple[Observation, list[str], dict[str, float]]:
    """(the observation as without weight decay, warnings, facts); as it is where no first layer shows any."""
    pairs, factors = [], []
    for pair in observation.pairs:
        first, last = (_layers(state, network, device)[0] for state in pair)
        spectrum, factor = Spectrum.of(last - first), 1.0
        if spectrum.relative_residual(spectrum.count()) > UNCLEAN:
            factor = decay_factor(first[:, :-1], last[:, :-1])
        own = replace(observation, pairs=(pair,))
        pairs.append((without_decay(own, factor) if factor < 1 else own).pairs[0])
        factors.append(factor)
    if min(factors) == 1:
        return observation, [], {}
    shrunk = f"weight decay was undone: parameters shrank by {1 - min(factors):.2g} in all, as the first layer shows"
    return replace(observation, pairs=tuple(pairs)), [shrunk], {"decay_factor": min(factors)}
