"""Kernel inducing points: images on which kernel regression predicts the training set (Nguyen et al. 2021)."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from attacks.kernel.empirical import kernel_duals

Kernel = Callable[..., Tensor]
"""(N, C, H, W) images, and (M, C, H, W) others or none -> (N, M) or (N, N); differentiable."""


@dataclass(frozen=True, eq=False)
class KIP:
    """‖y_T − K_TS K_SS⁻¹ y_S‖² (Loo et al. 2024, section 7).

    images: (T, C, H, W), the training set. targets: (T, K). ridge: added to K_SS, in units of its mean diagonal.
    """

    kernel: Kernel
    images: Tensor
    targets: Tensor
    ridge: float

    def __call__(self, images: Tensor, targets: Tensor) -> Tensor:
        """The loss of a distilled set, (S, C, H, W) and (S, K): a scalar in squared units of the targets."""
        duals = kernel_duals(self.kernel(images), targets, self.ridge)
        return (self.targets - self.kernel(self.images, images) @ duals).square().sum()
