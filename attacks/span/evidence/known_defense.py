"""What knowledge of the defense makes of the first two layers' updates: noise of a known size, or a completed update.

Quantized and sparsified updates are replaced by the matrices of low rank in the intervals in which their entries are
known to have lain (`attacks.update.intervals`): of rank N in the first layer, of twice as many in the second.
"""

from dataclasses import dataclass, replace

import torch

from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.networks.mlp import FrontLayers
from attacks.span.evidence.layers import FirstLayers, joined_layer
from attacks.span.thresholds import DEFENSE, EVIDENCE, constants_of
from attacks.update.intervals import (
    Completed,
    EntryIntervals,
    complete,
    find_rank,
    known_intervals,
    noise_deviation,
    noise_edge,
    rounded_intervals,
    unknowns,
)
from attacks.update.spectrum import Spectrum


@dataclass(frozen=True)
class UndoneDefense:
    """The layers as they were before the defense, as far as it is known, and what is left of it.

    count: N as the defense leaves it to be told; None where nothing is known of one.
    second_deviation: of known noise on an entry of the second layer's update.
    intervals: of the first layer's entries, where it was completed, and distortion: ‖E‖ / ‖Δ‖ of what they took from
        it.
    second_rank: of the completed second layer, and remaining: ‖E‖ / ‖Δ‖ of it as an error of equal variance would leave
        it, the share of its square along matrices of that rank.
    """

    layers: FirstLayers
    count: int | None = None
    second_deviation: float | None = None
    intervals: EntryIntervals | None = None
    distortion: float = 0.0
    second_rank: int | None = None
    remaining: float = 0.0

    def highest_rank(self, spectrum: Spectrum) -> int:
        """Return the rank that the first layer's update has if it is not that of N images; once completed, it has N."""
        return min(spectrum.rows, spectrum.columns) if self.second_rank is None else min(self.layers.change.shape)

    def directions(self, second: list[Spectrum], count: int, most: int, outside: float) -> int:
        """Count the directions of the second layer's row space that hold the features of `count` images, at most
        `most`: in noise those that stand clear of it, but enough for the images.

        second: the spectra of the rounds that test. outside: ‖Δ − Δ_N‖ / ‖Δ‖ of the first layer.
        """
        if self.second_rank is not None:
            return self.second_rank
        deviation = self.second_deviation
        if deviation is None and outside <= EVIDENCE.noisy_above:
            return most
        clear = max(part.above_noise() if deviation is None else _above_edge(part, deviation) for part in second)
        return max(min(most, clear), min(most, int(EVIDENCE.directions_in_noise * count)))

    def second_noise(self, second: list[Spectrum], outside: float) -> float:
        """Return ‖E‖ / ‖Δ‖ of the noise in the second layer's updates; 0 where none is known or shown by the first."""
        if self.second_rank is not None:
            return self.remaining
        shown = max(part.share(part.deviation()) for part in second) if outside > EVIDENCE.noisy_above else 0.0
        deviation = self.second_deviation
        return shown if deviation is None else min(shown, max(part.share(deviation) for part in second))


def undo_defense(
    observation: Observation,
    network: FrontLayers,
    knowledge: Knowledge,
    layers: FirstLayers,
    generator: torch.Generator,
) -> UndoneDefense:
    """Restore the updates as training made them, as far as what is known of the defense tells."""
    deviations, intervals = _known(observation, knowledge)
    if intervals:
        device = layers.initial.device
        first, second = ([_joined(own, network, layer, device) for own in intervals] for layer in (0, 1))
        stacked = EntryIntervals(torch.cat([own.lowest for own in first]), torch.cat([own.highest for own in first]))
        return _complete(layers, stacked, second, knowledge, generator)
    if any(deviations):
        return _noise(layers, (sum(own**2 for own in deviations) / len(deviations)) ** 0.5, knowledge.num_private)
    return UndoneDefense(layers)


def knows_defense(observation: Observation, knowledge: Knowledge) -> bool:
    """Return whether the adversary knows anything of the defense that `undo_defense` would use."""
    deviations, intervals = _known(observation, knowledge)
    return bool(intervals) or any(deviations)


def _known(observation: Observation, knowledge: Knowledge) -> tuple[list[float], list[dict[str, EntryIntervals]]]:
    """Return the noise's standard deviation in every round and the intervals; none where a round has none."""
    deltas = [observation.delta(pair) for pair in range(len(observation.pairs))]
    found = [
        known_intervals(delta, knowledge) or rounded_intervals(delta, initial, knowledge)
        for delta, (initial, _) in zip(deltas, observation.pairs, strict=True)
    ]
    intervals = [own for own in found if own is not None]
    complete = intervals if len(intervals) == len(deltas) else []
    return [noise_deviation(delta, knowledge) for delta in deltas], complete


def _noise(layers: FirstLayers, deviation: float, num_private: int | None) -> UndoneDefense:
    """Account for noise of a known standard deviation; the mean of several clients' updates has less than each
    client's, and shows it."""
    spectrum = Spectrum.of(layers.change)
    first = min(deviation, spectrum.deviation())
    seconds = [Spectrum.of(update) for update in layers.second if update.any()]
    second = max(min(deviation, part.deviation()) for part in seconds)
    above = _above_edge(spectrum, first)
    count = min(num_private or above, above)
    warnings: tuple[str, ...] = ()
    if num_private and count < num_private:
        warnings = (f"{num_private} images were expected, {count} directions stand above the noise that is known",)
    return UndoneDefense(layers.noting(warnings, {"noise_std": first}), count, second)


def _complete(
    layers: FirstLayers,
    first: EntryIntervals,
    second: list[EntryIntervals],
    knowledge: Knowledge,
    generator: torch.Generator,
) -> UndoneDefense:
    """Complete both layers from the intervals of their entries, where enough of them were sent."""
    rows, columns = _filled(first)
    most = max(1, int(DEFENSE.highest_rank * min(rows, columns)))
    count = knowledge.num_private or _count(first, most, knowledge, generator)
    kept, needed = int(first.sent().sum()), unknowns(rows, columns, count)
    facts = {"kept": float(kept), "needed": float(needed)} | constants_of(DEFENSE)
    if count > most or (kept < needed and not bool(first.bounded().all())):
        return UndoneDefense(layers.noting((_too_few(kept, "first", count, needed),), facts), count)
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
            return UndoneDefense(layers.noting(warnings, facts), count)
        found = complete(own, rank)
        matrices.append(found.matrix)
        remaining = max(remaining, (unknowns(rows, columns, rank) / (rows * columns)) ** 0.5 * _distortion(own, found))
    noted = layers.noting((), facts | {"misfit": completed.misfit})
    return UndoneDefense(
        replace(noted, final=layers.initial + completed.matrix, second=torch.stack(matrices)),
        count,
        intervals=first,
        distortion=_distortion(first, completed),
        second_rank=rank,
        remaining=remaining,
    )


def _count(intervals: EntryIntervals, most: int, knowledge: Knowledge, generator: torch.Generator) -> int:
    """Infer N, of quantized entries by singular values above rounding error, step / √12, else by held-out entries."""
    if knowledge.kept_fraction is not None:
        return find_rank(intervals, most, generator)
    deviation = float((intervals.highest - intervals.lowest).square().mean().sqrt()) / 12**0.5
    return max(1, _above_edge(Spectrum.of(intervals.middle()), deviation))


def _too_few(kept: int, layer: str, count: int, needed: int) -> str:
    return f"{kept} of the {layer} layer's entries are kept, {count} images need {needed}: the update was not completed"


def _filled(intervals: EntryIntervals) -> tuple[int, int]:
    """Count the rows, and the columns, that have an entry that was sent."""
    sent = intervals.sent()
    return int(sent.any(1).sum()), int(sent.any(0).sum())


def _distortion(intervals: EntryIntervals, completed: Completed) -> float:
    """Return ‖Δ − X‖ / ‖X‖ of the update as it was sent, over the entries of which something is known."""
    difference = (intervals.middle() - completed.matrix)[intervals.bounded()]
    return float(difference.norm() / completed.matrix.norm())


def _above_edge(spectrum: Spectrum, deviation: float) -> int:
    """Count the singular values that noise of a known deviation does not explain."""
    return int((spectrum.values > deviation * noise_edge(spectrum.rows, spectrum.columns)).sum())


def _joined(
    intervals: dict[str, EntryIntervals], network: FrontLayers, layer: int, device: torch.device
) -> EntryIntervals:
    """Return the intervals of a layer's [ΔW | Δb] (out, in + 1)."""
    lowest, highest = ({name: getattr(own, end) for name, own in intervals.items()} for end in ("lowest", "highest"))
    return EntryIntervals(*(joined_layer(end, network, layer, device) for end in (lowest, highest)))
