"""Images that a search in feature space has judged, and what they had to pass."""

from typing import NamedTuple

import torch
from torch import Tensor

from attacks.networks.probing import count_outputs
from attacks.span.feature_space.update import FeatureUpdate


class FoundImages(NamedTuple):
    """Images that were judged.

    images: (F, C, H, W). duals: (F, K), those of the SGD step that first used them. residual, gradient: (F,), ρ and λ.
    step: (F,), the number of that step.
    """

    images: Tensor
    duals: Tensor
    residual: Tensor
    gradient: Tensor
    step: Tensor

    @classmethod
    def none(cls, update: FeatureUpdate) -> "FoundImages":
        images = update.rows.new_zeros(0, *update.shape)
        duals, nothing = images.new_zeros(0, count_outputs(update.network.model, update.shape)), images.flatten()
        return cls(images, duals.double(), nothing, nothing.double(), nothing.long())

    def at(self, kept: Tensor) -> "FoundImages":
        """Those of the indices, or of the mask, `kept`."""
        return FoundImages(*(part[kept] for part in self))

    def join(self, other: "FoundImages") -> "FoundImages":
        """These and those of `other`."""
        return FoundImages(*map(torch.cat, zip(self, other, strict=True)))


class Bounds(NamedTuple):
    """The ρ (`residual`) and the λ (`gradient`) below which an image is accepted."""

    residual: float
    gradient: float


UNKNOWN = Bounds(float("nan"), float("nan"))
WORST = Bounds(float("inf"), float("inf"))
