"""Images that have units of their own: they are read off single rows of a first layer's update, and peeled off it.

With one hidden layer of ReLU, one step leaves [ΔW | Δb] = Σ_i d_i x̃_iᵀ, x̃_i = [x_i; 1], d_i = s_i · m_i ∘ W₂ᵀ r_i
(`variants.one_hidden`). The row of a unit that image i alone activates is d_iw x̃_i: divided by its last entry, it is
the image. Raw pixels have much in common, which decides for most units whether all images activate them or none, and
some of those between have one image alone. Subtracting what is known of an image leaves others alone on further units,
as the cascade of 2026 does (docs/records/published.md).

**Test.** A row of several images, divided by its last entry, is a mean of them. But an image x tells its units m(x),
and its dual is of the C dimensions m(x) ∘ W₂ᵀ r: that they meet the N dimensions of the update's columns is no chance.
The sine of the angle between both,

    λ(x) = min_r ‖(1 − L Lᵀ)(m(x) ∘ W₂ᵀ r)‖ / ‖m(x) ∘ W₂ᵀ r‖,

is rounding for an image, and near 1 for a mean of images. Wedderburn's rank reduction, x̃ᵀ Δ⁺ d = 1, gives the dual its
length; its entry at the unit then has to be the row's.

**Resolution.** A mean with so little of another image that it opens the same units passes. In W units that is a share
of about π / W: nothing in a thousand, a shadow in fifty. In narrow layers two rows have to give the same image away.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from attacks.span.search.descent import first_of_near
from attacks.span.sparse_duals import DualSpace
from attacks.span.thresholds import ONE_HIDDEN, OWN_UNITS
from attacks.update.spectrum import TINY

BATCH = 2**25  # entries of masked output weights that are held in memory at a time


class OwnUnits(NamedTuple):
    """Images that units of their own gave away.

    images: (F, in).
    duals: (F, W), d.
    sines: (F,), λ.
    """

    images: Tensor
    duals: Tensor
    sines: Tensor

    def chosen(self, which: list[int]) -> "OwnUnits":
        return OwnUnits(*(part[which] for part in self))

    def joined(self, others: "OwnUnits") -> "OwnUnits":
        return OwnUnits(*map(torch.cat, zip(self, others, strict=True)))


def peel(space: DualSpace, outputs: Tensor) -> OwnUnits:
    """Find the images that units of their own give away, in the order of their discovery, each once.

    outputs: W₂ (C, W) at the parameters sent, of the units that moved.
    """
    core = torch.diag(space.values)  # of what is not peeled off yet, between L and Vᵀ
    found = OwnUnits(space.rows[:0, :-1], space.left.T[:0], space.values[:0])
    noise = OWN_UNITS.above_noise * space.noise * space.rows.shape[1] ** 0.5
    crowded = len(outputs) + space.count > OWN_UNITS.dimensions * len(space.left)  # where spaces may meet by chance
    if crowded or len(outputs) > OWN_UNITS.outputs:
        return found
    while len(found.images) < space.count:
        left = space.left @ core @ space.rows
        size, last = left.norm(dim=1), left[:, -1].abs()
        units = ((size > noise) & (last > OWN_UNITS.faintest * size)).nonzero()[:, 0]
        tested, misses = _tested(space, outputs, left, units)
        # what an image has of others it hands on to those after it: the cleanest come first
        rounds = (_new(found, tested, misses.masked_fill(misses > most, torch.inf)) for most in OWN_UNITS.entry)
        new = next((own for own in rounds if len(own.images)), None)
        if new is None:
            break
        found = found.joined(new)
        core = core - (new.duals @ space.left).T @ (pad(new.images, (0, 1), value=1.0) @ space.rows.T)
    return found


def _new(found: OwnUnits, tested: OwnUnits, misses: Tensor) -> OwnUnits:
    """Return those of the tested images (T,) that pass and are not found yet, each once, of the least miss (T,)."""
    order = misses.argsort(stable=True)
    passed = tested.chosen(order[((tested.sines < OWN_UNITS.sine) & misses.isfinite())[order]].tolist())
    if tested.duals.shape[1] < OWN_UNITS.units:
        again = torch.cdist(passed.images, passed.images) < OWN_UNITS.again * passed.images.norm(dim=1, keepdim=True)
        passed = passed.chosen((again.sum(1) > 1).nonzero()[:, 0].tolist())
    duals = torch.nn.functional.normalize(torch.cat([found.duals, passed.duals]))
    first = first_of_near((duals @ duals.T).abs() > ONE_HIDDEN.same)
    return passed.chosen((first[first >= len(found.duals)] - len(found.duals)).tolist())


def _tested(space: DualSpace, outputs: Tensor, left: Tensor, units: Tensor) -> tuple[OwnUnits, Tensor]:
    """Return what the rows of the units (T,) in what is left of the update (W, in + 1) may give away, and by what share
    (T,) the entry of the dual misses that of the row."""
    points = left[units] / left[units, -1:]
    active = (points @ space.ends[0].T > 0).to(points)
    duals, sines = [points.new_zeros(0, len(left))], [points.new_zeros(0)]
    for part in active.split(max(1, BATCH // outputs.numel())):
        masked = part[:, None] * outputs
        gram, inside = masked @ masked.mT, masked @ space.left
        size, turn = torch.linalg.eigh(gram)
        white = turn * size.clamp_min(OWN_UNITS.tiny * size[:, -1:]).clamp_min(TINY).rsqrt()[:, None]
        outside, angles = torch.linalg.eigh(white.mT @ (gram - inside @ inside.mT) @ white)
        duals.append(((white @ angles[:, :, :1]).mT @ masked)[:, 0])
        sines.append(outside[:, 0].clamp_min(0).sqrt())
    dual = torch.cat(duals)
    length = ((points @ space.rows.T / space.values) * (dual @ space.left)).sum(1, keepdim=True)
    dual = dual / length
    entries = left[units, -1]
    misses = (dual.gather(1, units[:, None])[:, 0] - entries).abs() / entries.abs()
    return OwnUnits(points[:, :-1], dual, torch.cat(sines)), misses
