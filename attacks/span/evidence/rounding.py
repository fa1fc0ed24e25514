"""The bias of the first layer, where rounding loses most of how it moved.

Pixels of 0 to 255 move the weights of a unit some hundred times as far as its bias, whose entry of x̃ = [x; 1] gives an
image its size: at a small rate the bias moves by less than float32 stores. But it moves within the column space of ΔW,
which the weights tell well: Δb = L β. Every entry is rounded by its own unit in the last place, a bias near zero hardly
at all, so that weighted least squares tells β several times as exactly as an even sum over the units.

How much each unit counts is read off the weights: what N directions leave of the entries that rounding hardly moves is
error of another kind, the same for all. Where most of the error is of that kind, as where noise was added, the bias
stays as it was sent.
"""

import torch
from torch import Tensor

from attacks.span.thresholds import EVIDENCE
from attacks.update.spectrum import Spectrum


def steady_bias(initial: Tensor, final: Tensor, spectrum: Spectrum, count: int) -> tuple[Tensor, Tensor] | None:
    """Return (Δb as N directions have it, the standard deviation of each entry that was sent), both (W,); None where
    rounding takes little of it, or another error more.

    initial, final: [W | b] (W, in + 1) before and after. spectrum: of their difference. count: N.
    """
    change, rows = final - initial, spectrum.vectors[:count]
    lost = spectrum.noise(count) * spectrum.rows**0.5
    if not 0 < count < len(spectrum.values) or lost < EVIDENCE.bias_lost * float(change[:, -1].norm()):
        return None
    errors = _errors(initial, final, change - change @ rows.T @ rows)
    if errors is None:
        return None
    rounding, other = errors
    left, sent = change @ rows.T / spectrum.values[:count], change[:, -1]
    deviation, found = (rounding + other).sqrt(), sent
    for _ in range(EVIDENCE.bias_fits):
        weighted, wanted = left / deviation[:, None], sent / deviation
        found = left @ torch.linalg.lstsq(weighted, wanted[:, None]).solution[:, 0]
        # below half a unit, (3 · unit² / 12)^½, a bias stays: all that do err alike, by what they should have moved
        lost = found.square() < 3 * rounding
        deviation = (rounding + other + lost * lost.sum() * found.square()).sqrt()
    missed = ((sent - found) / deviation).square().sum() / max(1, len(left) - count)
    return found, deviation * float(missed.clamp_min(1).sqrt())


def _errors(initial: Tensor, final: Tensor, rest: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the variances of what is off in the update's entries for the bias, by rounding (W,) and by all else; None
    where most of it is not rounding. rest: what N directions leave of the update (W, in + 1)."""
    sizes = torch.maximum(initial.abs(), final.abs()).float()
    rounding = (torch.nextafter(sizes, torch.full_like(sizes, torch.inf)) - sizes).double().square() / 12
    moved = rest.any(1)
    weights, squares = rounding[moved, :-1].flatten(), rest[moved, :-1].square().flatten()
    least = weights.kthvalue(max(1, int(EVIDENCE.hardly_rounded * len(weights)))).values
    other = squares[weights <= least].mean()
    if other > EVIDENCE.not_rounding * squares.mean():
        return None
    steps = ((squares.mean() - other) / weights.mean()).clamp_min(1)  # each rounds once
    return steps * rounding[:, -1], other
