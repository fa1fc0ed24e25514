"""Rank and gap of every layer's update: how many directions a client's images left in it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.interface.observation import State
from attacks.networks.probing import parameter_names
from attacks.update.first_layer import layer_update
from attacks.update.spectrum import Spectrum, rank_above_noise

SKETCH = 1024  # sides of an update beyond this are projected at random before its singular values are taken


@dataclass(frozen=True)
class LayerRank:
    """One layer's [ΔW | Δb], (rows, columns).

    l2, linf: norms of its entries. rank: above the noise floor. gap: σ_rank over the next singular value, NaN where
    there is none. has_spectral_gap: whether the rank can be trusted.
    """

    name: str
    rows: int
    columns: int
    l2: float
    linf: float
    rank: int
    gap: float
    has_spectral_gap: bool


def layer_ranks(model: nn.Module, delta: State, generator: torch.Generator) -> tuple[LayerRank, ...]:
    """Rank and gap of every trained layer with a weight, in the order of the model; a convolution's is (out, rest)."""
    found = []
    for name, _ in model.named_modules():
        weight, _ = parameter_names(name)
        if weight in delta and delta[weight].dim() > 1:
            found.append(_layer_rank(name, layer_update(delta, name), generator))
    return tuple(found)


def _layer_rank(name: str, update: Tensor, generator: torch.Generator) -> LayerRank:
    rows, columns = update.shape
    norms = float(update.norm()), float(update.abs().max())
    if not update.any():
        return LayerRank(name, rows, columns, *norms, rank=0, gap=math.nan, has_spectral_gap=False)
    if min(rows, columns) > SKETCH:  # keeps any rank below, and a floor of noise a floor
        sketch = torch.randn((columns, SKETCH), generator=generator, dtype=update.dtype).to(update.device)
        update = update @ sketch / SKETCH**0.5
    spectrum = Spectrum.of(update)
    counted = rank_above_noise(spectrum.values, spectrum.rows, spectrum.columns)
    ends = spectrum.values[counted.count - 1 : counted.count + 1]
    gap = float(ends[0] / ends[1]) if len(ends) == 2 else math.nan
    return LayerRank(name, rows, columns, *norms, counted.count, gap, counted.has_spectral_gap)
