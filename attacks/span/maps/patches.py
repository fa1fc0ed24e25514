"""The span of the patches that a convolution saw, and how much of a map's patches lies outside it.

U_p F is the patch of a map F at output position p. The rows r of a span are filters of the convolution's own geometry,
so ⟨r, U_p F⟩ for all p is a convolution of F with r, and its adjoint a transposed one; Σ_p U_pᵀ U_p counts how many
patches an entry is in. No patch is ever written down, but for their mean.
"""

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class PatchSpan:
    """Orthonormal rows that span patches of a convolution's input.

    filters: (G·R, C / G, k, k), R rows for each of G groups of channels; rows of zeros fill up groups that have fewer.
    multiplicity: (1, 1, H, W), in how many patches an entry is.
    differences: whether the rows span differences of patches, as where BatchNorm in training mode makes the signals of
        a channel add up to zero: the mean patch of a map is then taken off all of its patches.
    """

    layer: nn.Conv2d
    filters: Tensor
    multiplicity: Tensor
    differences: bool = False

    @classmethod
    def of(cls, layer: nn.Conv2d, rows: Tensor, size: tuple[int, int], differences: bool = False) -> "PatchSpan":
        """Make the span of a layer's patches. rows: (G, R, D), orthonormal ones for each group, D = C / G · k · k.
        size: (H, W) of the layer's input."""
        sides, ones = geometry(layer), rows.new_ones(1, 1, *size)
        filters = rows.reshape(-1, *layer.weight.shape[1:]).contiguous()
        return cls(layer, filters, F.fold(F.unfold(ones, *sides), size, *sides), differences)

    def to(self, dtype: torch.dtype) -> "PatchSpan":
        """Return the same in another precision."""
        return replace(self, filters=self.filters.to(dtype), multiplicity=self.multiplicity.to(dtype))

    def coefficients(self, maps: Tensor) -> Tensor:
        """Return ⟨r, U_p F⟩ (M, G·R, H', W') for maps (M, C, H, W)."""
        layer = self.layer
        found = F.conv2d(maps, self.filters, None, layer.stride, layer.padding, layer.dilation, layer.groups)
        return found - found.mean((2, 3), keepdim=True) if self.differences else found

    def share_outside(self, maps: Tensor) -> Tensor:
        """Return ρ (M,): the share of the patches' squared length that lies outside the span, for maps (M, C, H, W)."""
        size = (maps.square() * self.multiplicity).flatten(1).sum(1)
        inside = self.coefficients(maps)
        if self.differences:
            size = size - self._mean_patch(maps).square().sum(1) * math.prod(inside.shape[2:])
        return 1 - inside.square().flatten(1).sum(1) / size

    def outside(self, maps: Tensor) -> Tensor:
        """Return G F (M, C, H, W), G = Σ_p U_pᵀ (I − P) U_p, P projecting on the span; Fᵀ G F is what lies outside."""
        inside = self.coefficients(maps)
        left = self._adjoint(inside).neg_().addcmul_(maps, self.multiplicity)  # in place: maps take 100 MB and more
        if self.differences:
            patch = self._mean_patch(maps)[:, :, None].expand(-1, -1, math.prod(inside.shape[2:]))
            left = left - F.fold(patch, (maps.shape[2], maps.shape[3]), *geometry(self.layer))
        return left

    @property
    def apart(self) -> bool:
        """Whether every entry of a map is in one patch, as for kernels as wide as their stride."""
        return not self.differences and bool((self.multiplicity == 1).all())

    def everywhere(self) -> Tensor:
        """Return every row at every position alone, (G·R·P, C·H·W): where patches are apart, an orthonormal basis of
        the maps all of whose patches lie in the span."""
        channels = self.filters.shape[1] * self.layer.groups
        places = self.coefficients(self.filters.new_zeros(1, channels, *self.multiplicity.shape[2:])).shape[1:]
        alone = torch.eye(math.prod(places), dtype=self.filters.dtype, device=self.filters.device)
        found = self._adjoint(alone.view(-1, *places)).flatten(1)
        return found[found.any(1)]

    @property
    def largest(self) -> float:
        """A bound on the eigenvalues of G."""
        return float(self.multiplicity.max())

    def _mean_patch(self, maps: Tensor) -> Tensor:
        """Return the mean of a map's patches, (M, C·k·k)."""
        return F.unfold(maps, *geometry(self.layer)).mean(2)

    def _adjoint(self, coefficients: Tensor) -> Tensor:
        """Return Σ_p U_pᵀ Σ_r c_rp r (M, C, H, W) of coefficients c (M, G·R, H', W')."""
        window, spread, padding, stride = geometry(self.layer)
        sides = zip(self.multiplicity.shape[2:], coefficients.shape[2:], window, spread, padding, stride, strict=True)
        # a stride leaves the last rows and columns of a map out where they fill no window
        unseen = [full - ((n - 1) * step - 2 * zeros + d * (k - 1) + 1) for full, n, k, d, zeros, step in sides]
        groups = self.layer.groups
        return F.conv_transpose2d(coefficients, self.filters, None, stride, padding, unseen, groups, spread)


Pair = tuple[int, int]


def geometry(layer: nn.Conv2d) -> tuple[Pair, Pair, Pair, Pair]:
    """Return (kernel, dilation, padding, stride) as `unfold` and `fold` take them; padding has no name here."""
    pairs = (layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return cast(tuple[Pair, Pair, Pair, Pair], pairs)
