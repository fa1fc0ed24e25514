"""What distillation returns."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Distilled:
    """images: (S, C, H, W), in the input space of the images they stand for, float32. targets: (S, K), float32.

    trace: (iteration, loss) every hundred iterations.
    """

    images: Tensor
    targets: Tensor
    trace: tuple[tuple[int, float], ...]
