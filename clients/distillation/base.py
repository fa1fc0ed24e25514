"""What distillation is asked for and what it returns."""

from dataclasses import dataclass, field

from torch import Tensor

from attacks.interface.errors import InputError, nearest
from attacks.interface.options import check_values
from attacks.kernel.infinite import InfiniteNTK

ITERATIONS = {"kip": 50_000, "rkip": 50_000, "rkip_finite": 2_000}
METHODS = tuple(ITERATIONS)


@dataclass(frozen=True)
class DistillOptions:
    """How to distill; the defaults are those of Loo et al. 2024, appendix H.4.

    method: `kip`, `rkip` or `rkip_finite`. iterations: default 50,000, and 2,000 for `rkip_finite`, each of which costs
    two passes through its network. ridge: of every kernel regression, in units of the kernel's mean diagonal. kernel:
    of the infinitely wide network, for `kip` and `rkip`. image_std: of the random images that these two start from.
    """

    method: str = "rkip"
    iterations: int | None = None
    learning_rate: float = 1e-3
    ridge: float = 1e-5
    image_std: float = 0.2
    kernel: InfiniteNTK = field(default_factory=InfiniteNTK)
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"distillation method is {self.method!r}, unknown{nearest(self.method, list(METHODS))}")
        check_values(self, positive=("iterations", "learning_rate", "ridge", "image_std"), called="distillation")

    @property
    def steps(self) -> int:
        return self.iterations or ITERATIONS[self.method]


@dataclass(frozen=True)
class Distilled:
    """images: (S, C, H, W), in the input space of the images they stand for, float32. targets: (S, K), float32.

    trace: (iteration, loss) every hundred iterations.
    """

    images: Tensor
    targets: Tensor
    trace: tuple[tuple[int, float], ...]
