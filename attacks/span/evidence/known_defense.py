"""What knowledge of the defense makes of the first two layers' updates: noise of a known size, or a completed update.

Quantized and sparsified updates are replaced by the matrices of low rank in the intervals in which their entries are
known to have lain (`attacks.update.completion`): of rank N in the first layer, of twice as many in the second.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attacks.interface.knowledge import DEFENSE_FIELDS, Knowledge
from attacks.interface.observation import Observation
from attacks.networks.mlp import DenseNetwork
from attacks.span.evidence.layers import FirstLayers, joined_layer
from attacks.span.thresholds import DEFENSE, EVIDENCE, constants_of
from attacks.update.completion import Completed, complete, find_rank, unknowns
from attacks.update.intervals import EntryIntervals, known_intervals, noise_deviation, noise_edge
from attacks.update.spectrum import Spectrum


@dataclass(frozen=True, kw_only=True)
class UpdateAsSent:
    """The update as it was sent: nothing is known of a defense, or too few entries were sent to undo it.

    count: N as the defense leaves it to be told; None where nothing is known of one. warnings, facts: of what was
    undone. intervals: of the first layer's entries, None where they are as sent. distortion: ‖E‖ / ‖Δ‖ of what the
    intervals took from the first layer. explains_error: whether the defense explains what lies outside N directions.
    """

    count: int | None = None
    warnings: tuple[str, ...] = ()
    facts: dict[str, float] = field(default_factory=dict)
    intervals: EntryIntervals | None = None
    distortion: float = 0.0
    explains_error: bool = False

    def undone(self, layers: FirstLayers) -> FirstLayers:
        """The layers as they were before the defense, as far as it is known."""
        return replace(layers, warnings=(*layers.warnings, *self.warnings), facts=layers.facts | self.facts)

    def highest_rank(self, spectrum: Spectrum) -> int:
        """The rank that the first layer's update has if it is not that of N images."""
        return min(spectrum.rows, spectrum.columns)

    def directions(self, second: list[Spectrum], count: int, most: int, outside: float) -> int:
        """How many directions of the second layer's row space hold the features of `count` images, at most `most`.

        second: the spectra of the rounds that test. outside: ‖Δ − Δ_N‖ / ‖Δ‖ of the first layer.
        """
        if outside <= EVIDENCE.noisy_above:
            return most
        return _directions_in_noise(max(part.above_noise() for part in second), count, most)

    def second_noise(self, second: list[Spectrum], outside: float) -> float:
        """‖E‖ / ‖Δ‖ of the noise in the second layer's updates; 0 where the first layer shows none."""
        return max(part.median_noise() for part in second) if outside > EVIDENCE.noisy_above else 0.0


@dataclass(frozen=True, kw_only=True)
class KnownNoise(UpdateAsSent):
    """Gaussian noise is known to have been added. second_deviation: on an entry of the second layer's update."""

    second_deviation: float
    explains_error: bool = True

    def directions(self, second: list[Spectrum], count: int, most: int, outside: float) -> int:
        return _directions_in_noise(max(_above_edge(part, self.second_deviation) for part in second), count, most)

    def second_noise(self, second: list[Spectrum], outside: float) -> float:
        known = max(part.share(self.second_deviation) for part in second)
        return min(super().second_noise(second, outside), known)


@dataclass(frozen=True, kw_only=True)
class CompletedUpdate(UpdateAsSent):
    """Quantized or sparsified updates, completed.

    first: (R·W, in + 1), of rank N, and second: (R, out, W + 1), of rank `rank`, both in float64. remaining: ‖E‖ / ‖Δ‖
    of the second as an error of equal variance would leave it: the share of its square along matrices of that rank.
    """

    first: Tensor
    second: Tensor
    rank: int
    remaining: float
    explains_error: bool = True

    def undone(self, layers: FirstLayers) -> FirstLayers:
        return replace(super().undone(layers), final=layers.initial + self.first, second=self.second)

    def highest_rank(self, spectrum: Spectrum) -> int:
        return min(self.first.shape)  # the completed update's own rank is the number of images

    def directions(self, second: list[Spectrum], count: int, most: int, outside: float) -> int:
        return self.rank

    def second_noise(self, second: list[Spectrum], outside: float) -> float:
        return self.remaining


def undo_defense(
    observation: Observation,
    network: DenseNetwork,
    knowledge: Knowledge,
    layers: FirstLayers,
    generator: torch.Generator,
) -> UpdateAsSent:
    """What is known of the defense, and what training made of the updates as far as that tells."""
    deviations, intervals = _known(observation, knowledge)
    if intervals:
        device = layers.initial.device
        first, second = ([_joined(own, network, layer, device) for own in intervals] for layer in (0, 1))
        stacked = EntryIntervals(torch.cat([own.lowest for own in first]), torch.cat([own.highest for own in first]))
        return _complete(stacked, second, knowledge, generator)
    if any(deviations):
        return _noise(layers, (sum(own**2 for own in deviations) / len(deviations)) ** 0.5, knowledge.num_private)
    return UpdateAsSent()


def knows_defense(observation: Observation, knowledge: Knowledge) -> bool:
    """Whether the adversary knows anything of the defense that `undo_defense` would use."""
    deviations, intervals = _known(observation, knowledge)
    return bool(intervals) or any(deviations)


def without_defense(knowledge: Knowledge) -> Knowledge:
    """The same knowledge but for the defense, of which nothing is known."""
    return replace(knowledge, **dict.fromkeys(DEFENSE_FIELDS))


def _known(observation: Observation, knowledge: Knowledge) -> tuple[list[float], list[dict[str, EntryIntervals]]]:
    """The noise's standard deviation in every round, and the intervals of every round; none where one has none."""
    deltas = [observation.delta(pair) for pair in range(len(observation.pairs))]
    intervals = [own for own in (known_intervals(delta, knowledge) for delta in deltas) if own is not None]
    complete = intervals if len(intervals) == len(deltas) else []
    return [noise_deviation(delta, knowledge) for delta in deltas], complete


def _noise(layers: FirstLayers, deviation: float, num_private: int | None) -> KnownNoise:
    """Noise of a known standard deviation; the mean of several clients' updates has less than each, and shows it."""
    spectrum = Spectrum.of(layers.change)
    first = min(deviation, _median_deviation(spectrum))
    seconds = [Spectrum.of(update) for update in layers.second if update.any()]
    second = max(min(deviation, _median_deviation(part)) for part in seconds)
    above = _above_edge(spectrum, first)
    count = min(num_private or above, above)
    warnings: tuple[str, ...] = ()
    if num_private and count < num_private:
        warnings = (f"{num_private} images were expected, {count} directions stand above the noise that is known",)
    return KnownNoise(count=count, second_deviation=second, warnings=warnings, facts={"noise_std": first})


def _complete(
    first: EntryIntervals, second: list[EntryIntervals], knowledge: Knowledge, generator: torch.Generator
) -> UpdateAsSent:
    """Both layers completed from the intervals of their entries, where enough of them were sent."""
    rows, columns = _filled(first)
    most = max(1, int(DEFENSE.highest_rank * min(rows, columns)))
    count = knowledge.num_private or _count(first, most, knowledge, generator)
    kept, needed = int(first.sent().sum()), unknowns(rows, columns, count)
    facts = {"kept": float(kept), "needed": float(needed)} | constants_of(DEFENSE)
    if count > most or (kept < needed and not bool(first.bounded().all())):
        return UpdateAsSent(count=count, warnings=(_too_few(kept, "first", count, needed),), facts=facts)
    completed = complete(first, count)
    doubtful = DEFENSE.random_rounding_misfit * _distortion(first, completed)
    if knowledge.kept_fraction is None and completed.misfit > doubtful:  # levels were drawn, not the nearest ones
        first, second = first.wider(), [own.wider() for own in second]
        completed = complete(first, count)
    matrices, rank, remaining = [], 0, 0.0
    for own in second:
        (rows, columns), kept = _filled(own), int(own.sent().sum())
        ranks = [max(1, round(share * count)) for share in DEFENSE.second_layer_ranks]
        fitting = [rank for rank in ranks if rank <= min(rows, columns) and unknowns(rows, columns, rank) <= kept]
        rank = fitting[0] if fitting else ranks[-1]
        if not fitting and not bool(own.bounded().all()):
            warnings = (_too_few(kept, "second", count, unknowns(rows, columns, rank)),)
            return UpdateAsSent(count=count, warnings=warnings, facts=facts)
        found = complete(own, rank)
        matrices.append(found.matrix)
        remaining = max(remaining, (unknowns(rows, columns, rank) / (rows * columns)) ** 0.5 * _distortion(own, found))
    return CompletedUpdate(
        count=count,
        facts=facts | {"misfit": completed.misfit},
        intervals=first,
        distortion=_distortion(first, completed),
        first=completed.matrix,
        second=torch.stack(matrices),
        rank=rank,
        remaining=remaining,
    )


def _count(intervals: EntryIntervals, most: int, knowledge: Knowledge, generator: torch.Generator) -> int:
    """N, of quantized entries by the singular values above the rounding error, step / √12, else by held-out entries."""
    if knowledge.kept_fraction is not None:
        return find_rank(intervals, most, generator)
    deviation = float((intervals.highest - intervals.lowest).square().mean().sqrt()) / 12**0.5
    return max(1, _above_edge(Spectrum.of(intervals.middle()), deviation))


def _too_few(kept: int, layer: str, count: int, needed: int) -> str:
    return f"{kept} of the {layer} layer's entries are kept, {count} images need {needed}: the update was not completed"


def _filled(intervals: EntryIntervals) -> tuple[int, int]:
    """How many rows, and how many columns, have an entry that was sent."""
    sent = intervals.sent()
    return int(sent.any(1).sum()), int(sent.any(0).sum())


def _distortion(intervals: EntryIntervals, completed: Completed) -> float:
    """‖Δ − X‖ / ‖X‖ of the update as it was sent, over the entries of which something is known."""
    difference = (intervals.middle() - completed.matrix)[intervals.bounded()]
    return float(difference.norm() / completed.matrix.norm())


def _above_edge(spectrum: Spectrum, deviation: float) -> int:
    """How many singular values noise of a known deviation does not explain."""
    return int((spectrum.values > deviation * noise_edge(spectrum.rows, spectrum.columns)).sum())


def _directions_in_noise(clear: int, count: int, most: int) -> int:
    """As many directions as stand clear of the noise, but enough for `count` images."""
    return max(min(most, clear), min(most, int(EVIDENCE.directions_in_noise * count)))


def _median_deviation(spectrum: Spectrum) -> float:
    """The standard deviation on an entry of the noise that the median singular value shows."""
    return spectrum.median_noise() * float(spectrum.values.norm()) / (spectrum.rows * spectrum.columns) ** 0.5


def _joined(
    intervals: dict[str, EntryIntervals], network: DenseNetwork, layer: int, device: torch.device
) -> EntryIntervals:
    """The intervals of a layer's [ΔW | Δb] (out, in + 1)."""
    lowest, highest = ({name: getattr(own, end) for name, own in intervals.items()} for end in ("lowest", "highest"))
    return EntryIntervals(*(joined_layer(end, network, layer, device) for end in (lowest, highest)))
