"""The span of the patches that a convolution saw, and how much of a map's patches lies outside it.

U_p F is the patch of a map F at output position p. The rows r of a span are filters of the convolution's own geometry,
so ⟨r, U_p F⟩ for all p is a convolution of F with r, and its adjoint a transposed one; Σ_p U_pᵀ U_p counts how many
patches an entry is in. No patch is ever written down, but for their mean.
"""

from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class PatchSpan:
    """Orthonormal rows that span patches of a convolution's input.

    filters: (G·R, C / G, k, k), R rows for each of G groups of channels; rows of zeros fill up groups that have fewer.
    multiplicity: (1, 1, H, W), in how many patches an entry is. differences: whether the rows span differences of
    patches, as where BatchNorm in training mode makes the signals of a channel add up to zero: the mean patch of a map
    is then taken off all of its patches.
    """

    layer: nn.Conv2d
    filters: Tensor
    multiplicity: Tensor
    differences: bool = False

    @classmethod
    def of(cls, layer: nn.Conv2d, rows: Tensor, size: tuple[int, int], differences: bool = False) -> "PatchSpan":
        """rows: (G, R, D), orthonormal ones for each group, D = C / G · k · k. size: (H, W) of the layer's input."""
        filters = rows.reshape(-1, *layer.weight.shape[1:]).contiguous()
        ones = rows.new_ones(1, 1, *size)
        window = rows.new_ones(1, 1, *layer.kernel_size)
        seen = F.conv2d(ones, window, None, layer.stride, layer.padding, layer.dilation)
        rest = cls(layer, filters, ones, differences)
        return cls(layer, filters, rest._transposed(torch.ones_like(seen), window, 1, size), differences)

    def to(self, dtype: torch.dtype) -> "PatchSpan":
        """The same in another precision."""
        return replace(self, filters=self.filters.to(dtype), multiplicity=self.multiplicity.to(dtype))

    def coefficients(self, maps: Tensor) -> Tensor:
        """⟨r, U_p F⟩ (M, G·R, H', W') for maps (M, C, H, W)."""
        layer = self.layer
        found = F.conv2d(maps, self.filters, None, layer.stride, layer.padding, layer.dilation, layer.groups)
        return found - found.mean((2, 3), keepdim=True) if self.differences else found

    def share_outside(self, maps: Tensor) -> Tensor:
        """ρ (M,): the share of the patches' squared length that lies outside the span, for maps (M, C, H, W)."""
        size = (maps.square() * self.multiplicity).flatten(1).sum(1)
        inside = self.coefficients(maps)
        if self.differences:
            size = size - self._mean_patch(maps).square().sum(1) * inside[0, 0].numel()
        return 1 - inside.square().flatten(1).sum(1) / size

    def outside(self, maps: Tensor) -> Tensor:
        """G F (M, C, H, W) with G = Σ_p U_pᵀ (I − P) U_p, P the projection on the span; Fᵀ G F is what lies outside."""
        inside, size = self.coefficients(maps), (maps.shape[2], maps.shape[3])
        left = maps * self.multiplicity - self._transposed(inside, self.filters, self.layer.groups, size)
        if self.differences:
            count = inside[0, 0].numel()
            layer, patch = self.layer, self._mean_patch(maps)[:, :, None].expand(-1, -1, count)
            left = left - F.fold(patch, size, layer.kernel_size, layer.dilation, self._padding, layer.stride)
        return left

    @property
    def largest(self) -> float:
        """A bound on the eigenvalues of G."""
        return float(self.multiplicity.max())

    def _mean_patch(self, maps: Tensor) -> Tensor:
        """The mean of a map's patches, (M, C·k·k)."""
        layer = self.layer
        return F.unfold(maps, layer.kernel_size, layer.dilation, self._padding, layer.stride).mean(2)

    @property
    def _padding(self) -> tuple[int, int]:
        """Rows and columns of zeros around a map; layers whose padding is called by a name are not used."""
        return cast(tuple[int, int], self.layer.padding)

    def _transposed(self, values: Tensor, filters: Tensor, groups: int, size: tuple[int, int]) -> Tensor:
        """The adjoint of a convolution with `filters`, for an input of the size (H, W)."""
        layer = self.layer
        smallest = F.conv_transpose2d(
            values[:1, :1], filters.new_ones(1, 1, *layer.kernel_size), None, layer.stride, self._padding, 0, 1,
            layer.dilation,
        )  # fmt: skip
        extra = (size[0] - smallest.shape[2], size[1] - smallest.shape[3])
        return F.conv_transpose2d(values, filters, None, layer.stride, self._padding, extra, groups, layer.dilation)
