"""Rank and gap of every layer's update: how many directions a client's images left in it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.interface.observation import State
from attacks.networks.jacobian import parameter_names
from attacks.update.spectrum import Spectrum, rank_above_noise

SKETCH = 1024  # sides of an update beyond this are projected at random before its singular values are taken


@dataclass(frozen=True)
class LayerUpdate:
    """One layer's [ΔW | Δb], (rows, columns).

    l2, linf: norms of its entries. rank: above the noise floor; clear: whether it can be trusted. gap: σ_rank over the
    next singular value, NaN where there is none.
    """

    name: str
    rows: int
    columns: int
    l2: float
    linf: float
    rank: int
    gap: float
    clear: bool


def layer_updates(model: nn.Module, delta: State, generator: torch.Generator) -> tuple[LayerUpdate, ...]:
    """Rank and gap of every trained layer with a weight, in the order of the model; a convolution's is (out, rest)."""
    found = []
    for name, _ in model.named_modules():
        weight, bias = parameter_names(name)
        if weight not in delta or delta[weight].dim() < 2:
            continue
        parts = [delta[weight].flatten(1)] + ([delta[bias][:, None]] if bias in delta else [])
        update = torch.cat(parts, 1)
        found.append(_layer_update(name, update, generator))
    return tuple(found)


def _layer_update(name: str, update: Tensor, generator: torch.Generator) -> LayerUpdate:
    rows, columns = update.shape
    norms = float(update.norm()), float(update.abs().max())
    if not update.any():
        return LayerUpdate(name, rows, columns, *norms, rank=0, gap=math.nan, clear=False)
    if min(rows, columns) > SKETCH:  # keeps any rank below, and a floor of noise a floor
        sketch = torch.randn((columns, SKETCH), generator=generator, dtype=update.dtype).to(update.device)
        update = update @ sketch / SKETCH**0.5
    spectrum = Spectrum.of(update)
    counted = rank_above_noise(spectrum.values, spectrum.rows, spectrum.columns)
    behind = spectrum.values[counted.count - 1 : counted.count + 1]
    gap = float(behind[0] / behind[1]) if len(behind) == 2 else math.nan
    return LayerUpdate(name, rows, columns, *norms, rank=counted.count, gap=gap, clear=counted.clear)
