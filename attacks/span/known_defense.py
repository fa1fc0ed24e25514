"""The first two layers' updates as a span attack that knows the defense takes them: completed, and what noise is left.

Quantized and sparsified updates are replaced by the matrices of low rank in the intervals in which their entries are
known to have lain (`attacks.completion`): of rank N in the first layer, of twice as many directions in the second.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.networks.mlp import DenseNetwork
from attacks.update.completion import Completed, complete, find_rank, unknowns
from attacks.update.intervals import EntryIntervals, known_intervals, noise_deviation, noise_edge
from attacks.update.spectrum import Spectrum

SECOND_RANKS = (2.0, 1.5, 1.2)  # directions per image of the second layer, as many as its entries determine
AT_RANDOM = 0.05  # of what quantization changed, the misfit from which on rounding was not to the nearest level
HIGHEST = 0.4  # of the smaller side: the highest rank that is sought


@dataclass(frozen=True)
class Undefended:
    """first: (R·W, in + 1), second: (R, out, W + 1), updates in float64. deviations: of the noise on an entry of each.
    cells: intervals of the first layer's entries, None where they are as sent. count: N from the first, None where it
    was not asked of the defense. rank: of the second, None where it was not completed. distortion: ‖E‖ / ‖Δ‖ of what
    the intervals took from the first layer. remaining: the same of the second once completed, as an error of equal
    variance would leave it: the share of its square that lies along matrices of that rank."""

    first: Tensor
    second: Tensor
    deviations: tuple[float, float] = (0.0, 0.0)
    cells: EntryIntervals | None = None
    distortion: float = 0.0
    count: int | None = None
    rank: int | None = None
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    remaining: float = 0.0

    @property
    def noisy(self) -> bool:
        return self.deviations[0] > 0


def undefended(
    observation: Observation,
    network: DenseNetwork,
    knowledge: Knowledge,
    first: Tensor,
    second: Tensor,
    generator: torch.Generator,
) -> Undefended | None:
    """What training made of the updates [ΔW | Δb], first (R·W, in + 1) and second (R, out, W + 1), as far as knowledge
    of the defense tells; None where there is nothing to know, or too little was sent (a warning then says so)."""
    told, cells = _told(observation, knowledge)
    if not cells and not any(told):
        return None
    mean = (sum(deviation**2 for deviation in told) / len(told)) ** 0.5
    if not cells:
        spectrum, seconds = Spectrum.of(first), [Spectrum.of(update) for update in second if update.any()]
        # the mean of several clients' updates has less noise than each, and shows it
        deviations = tuple(min(mean, _median_deviation(part)) for part in (spectrum, *seconds))
        above = above_edge(spectrum, deviations[0])
        count = min(knowledge.num_private or above, above)
        warnings = []
        if knowledge.num_private and count < knowledge.num_private:
            warnings.append(
                f"{knowledge.num_private} images were expected, {count} directions stand above the noise that is known"
            )
        facts = {"noise_std": deviations[0]}
        return Undefended(first, second, (deviations[0], max(deviations[1:])), None, 0.0, count, None, warnings, facts)
    layers = [
        [_joined(part, network, layer, first.device) for part in cells] for layer in (0, 1)
    ]  # intervals, by layer and round
    inputs = EntryIntervals(*(torch.cat([getattr(c, end) for c in layers[0]]) for end in ("lowest", "highest")))
    sent, bounded = inputs.sent(), bool(inputs.bounded().all())
    rows, columns = int(sent.any(1).sum()), int(sent.any(0).sum())
    most = max(1, int(HIGHEST * min(rows, columns)))
    count = knowledge.num_private or _count(inputs, most, knowledge, generator)
    kept, needed = int(sent.sum()), unknowns(rows, columns, count)
    facts = {"kept": float(kept), "needed": float(needed)}
    few = "{} of the {} layer's entries are kept, {} images need {}: the update was not completed"
    if count > most or (kept < needed and not bounded):
        said = few.format(kept, "first", count, needed)
        return Undefended(first, second, count=count, warnings=[said], facts=facts)
    found = complete(inputs, count)
    if knowledge.kept_fraction is None and found.misfit > AT_RANDOM * _distortion(inputs, found):
        inputs, layers = inputs.wider(), [[part.wider() for part in layer] for layer in layers]
        found = complete(inputs, count)
    matrices, rank, remaining = [], 0, 0.0
    for part in layers[1]:
        sent = part.sent()
        size = [int(sent.any(axis).sum()) for axis in (1, 0)]
        ranks = [max(1, round(share * count)) for share in SECOND_RANKS]
        fitting = [r for r in ranks if r <= min(size) and unknowns(size[0], size[1], r) <= int(sent.sum())]
        if not fitting and not bool(part.bounded().all()):
            needed = unknowns(size[0], size[1], ranks[-1])
            said = few.format(int(sent.sum()), "second", count, needed)
            return Undefended(first, second, count=count, warnings=[said], facts=facts)
        rank = fitting[0] if fitting else ranks[-1]
        completed = complete(part, rank)
        matrices.append(completed.matrix)
        left = (unknowns(size[0], size[1], rank) / (size[0] * size[1])) ** 0.5
        remaining = max(remaining, left * _distortion(part, completed))
    return Undefended(
        found.matrix,
        torch.stack(matrices),
        (mean, mean),
        inputs,
        _distortion(inputs, found),
        count,
        rank,
        [],
        facts | {"misfit": found.misfit},
        remaining,
    )


def tells(observation: Observation, knowledge: Knowledge) -> bool:
    """Whether there is anything about the defense that `undefended` would use."""
    told, cells = _told(observation, knowledge)
    return bool(cells) or any(told)


def _told(observation: Observation, knowledge: Knowledge) -> tuple[list[float], list[dict[str, EntryIntervals]]]:
    """(the noise's deviation in every round, the intervals of every round in which there are some)."""
    deltas = [observation.delta(pair) for pair in range(len(observation.pairs))]
    cells = [known_intervals(delta, knowledge) for delta in deltas]
    return [noise_deviation(delta, knowledge) for delta in deltas], [part for part in cells if part is not None]


def _count(cells: EntryIntervals, most: int, knowledge: Knowledge, generator: torch.Generator) -> int:
    """N: of quantized entries the singular values above the rounding error, step / √12, else by held-out entries."""
    if knowledge.kept_fraction is not None:
        return find_rank(cells, most, generator)
    spectrum = Spectrum.of(cells.middle())
    told = float((cells.highest - cells.lowest).square().mean().sqrt()) / 12**0.5
    return max(1, above_edge(spectrum, told))


def _distortion(cells: EntryIntervals, found: Completed) -> float:
    """‖Δ − X‖ / ‖X‖ of the update as it was sent, over the entries of which something is known."""
    sent = cells.middle()
    return float((sent - found.matrix)[cells.bounded()].norm() / found.matrix.norm())


def above_edge(spectrum: Spectrum, deviation: float) -> int:
    """How many singular values noise of a known deviation does not explain."""
    return int((spectrum.values > deviation * noise_edge(spectrum.rows, spectrum.columns)).sum())


def _median_deviation(spectrum: Spectrum) -> float:
    return spectrum.median_noise() * float(spectrum.values.norm()) / (spectrum.rows * spectrum.columns) ** 0.5


def _joined(
    cells: dict[str, EntryIntervals], network: DenseNetwork, layer: int, device: torch.device
) -> EntryIntervals:
    weight, bias = cells[network.weights[layer]], cells[network.biases[layer] or ""]
    lowest, highest = (
        torch.cat([getattr(weight, end), getattr(bias, end)[:, None]], 1).to(device) for end in ("lowest", "highest")
    )
    return EntryIntervals(lowest, highest)
