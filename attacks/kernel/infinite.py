"""The neural tangent kernel of infinitely wide fully connected ReLU networks, by the arc-cosine recursion.

Sources: Jacot et al. 2018; Cho and Saul 2009 for the expectations; Loo et al. 2024, section 7, for its use.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attacks.interface.options import POSITIVE, check_values


@dataclass(frozen=True)
class InfiniteNTK:
    """Θ(x, x') of a ReLU network with `depth` hidden layers, in units of the empirical kernel it stands for.

    With weights of variance σ_w²/fan-in, biases that start at 0 and κ_l, κ̇_l the expectations of σ(u)σ(v), σ'(u)σ'(v)
    under the covariance of layer l,

        Θ_1 = c_1 ⟨x, x'⟩/n₀ + b,    Θ_{l+1} = c κ_l + b + σ_w² κ̇_l Θ_l.

    parameterization: that of the finite network. `standard` has c_1 = n₀ and c = w. With a `width` this is the mean
        kernel of networks of that width, whose layers weigh (n₀/w, 1, 1) and biases 1/w relative to each other; without
        one, the limit of the kernel over w, in which the first layer and the biases have vanished. `ntk` has c_1 = c =
        σ_w² and b = 1, whatever the width.
    weight_std: σ_w.
    bias: whether there are biases.

    Calls are differentiable in the images.
    """

    depth: Annotated[int, POSITIVE] = 2
    width: Annotated[int | None, POSITIVE] = None
    bias: bool = True
    weight_std: Annotated[float, POSITIVE] = 1.0
    parameterization: Literal["standard", "ntk"] = "standard"

    def __post_init__(self) -> None:
        check_values(self, "infinite-width kernel")

    def __call__(self, images: Tensor, others: Tensor | None = None) -> Tensor:
        """Return the kernel (N, M) of images (N, ...) and (M, ...), flattened; others: default `images`."""
        left = images.flatten(1)
        right = left if others is None else others.flatten(1)
        left_norms = left.norm(dim=1).clamp_min(torch.finfo(left.dtype).tiny)
        right_norms = left_norms if others is None else right.norm(dim=1).clamp_min(torch.finfo(left.dtype).tiny)
        product = left @ right.T
        scale = torch.outer(left_norms, right_norms)
        cosine = product / scale
        if others is None:  # an image with itself: exactly 1, where rounding would cost the arc cosine half its digits
            cosine = cosine - torch.diag(torch.diag(cosine.detach()) - 1)
        variance, features = self.weight_std**2, left.shape[1]
        first, later, bias = self._shares(features)
        kernel = product * (first / features) + bias
        # The diagonal halves from layer to layer (E relu² = ½), so cosines are all that has to be followed.
        level = variance / features
        for _ in range(self.depth):
            cosine, slope = ArcCosine.apply(cosine)
            level /= 2
            kernel = later * level * scale * cosine + bias + (variance / 2) * slope * kernel
            level *= variance
        return kernel

    def _shares(self, features: int) -> tuple[float, float, float]:
        """Return (c_1, c, b) for images of so many features."""
        if self.parameterization == "ntk":
            return self.weight_std**2, self.weight_std**2, float(self.bias)
        return (0.0, 1.0, 0.0) if self.width is None else (features, self.width, float(self.bias))


class ArcCosine(torch.autograd.Function):
    """2 E[relu(u) relu(v)] and 2 E[relu'(u) relu'(v)] for u, v ~ N(0, 1) of correlation `cosine` (Cho and Saul 2009).

    These are (sin θ + (π − θ) cos θ)/π and (π − θ)/π, θ = arccos(cosine); any shape. The gradient of the first stays
    finite at cosine 1, where autograd would find ∞ − ∞; what the second one's multiplies there is 0.
    """

    @staticmethod
    def forward(ctx, cosine: Tensor) -> tuple[Tensor, Tensor]:
        cosine = cosine.clamp(-1, 1)
        sine = (1 - cosine.square()).sqrt()
        slope = 1 - cosine.arccos() / math.pi
        ctx.save_for_backward(sine, slope)
        return torch.addcmul(sine / math.pi, slope, cosine), slope

    @staticmethod
    @once_differentiable
    def backward(ctx, of_value: Tensor, of_slope: Tensor) -> Tensor:
        sine, slope = ctx.saved_tensors
        bend = torch.where(sine > 0, 1 / (math.pi * sine), 0.0)
        return of_value * slope + of_slope * bend
