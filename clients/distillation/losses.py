"""The losses of distillation at infinite width, KIP and Recon-KIP (Loo et al. 2024, section 7)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from attacks.kernel.empirical import kernel_duals

Kernel = Callable[..., Tensor]
"""(N, C, H, W) images, and (M, C, H, W) others or none -> (N, M) or (N, N); differentiable."""


@dataclass(frozen=True, eq=False)
class KIP:
    """‖y_T − K_TS K_SS⁻¹ y_S‖²: images on which kernel regression predicts the training set (Nguyen et al. 2021).

    images: (T, C, H, W), the training set. targets: (T, K). ridge: added to every kernel that is inverted, in units of
    its mean diagonal.
    """

    kernel: Kernel
    images: Tensor
    targets: Tensor
    ridge: float

    def __call__(self, images: Tensor, targets: Tensor) -> Tensor:
        """The loss of a distilled set, (S, C, H, W) and (S, K): a scalar in squared units of the targets."""
        duals = kernel_duals(self.kernel(images), targets, self.ridge)
        return (self.targets - self.kernel(self.images, images) @ duals).square().sum()


@dataclass(frozen=True, eq=False)
class RKIP(KIP):
    """‖y_T − K_TS α_S‖²_{K_TT⁻¹} + α_Sᵀ (K_SS − K_ST K_TT⁻¹ K_TS) α_S with α_S = K_SS⁻¹ y_S (Loo et al. 2024,
    Theorem 2, appendix D).

    Multiplied out, K_TT⁻¹ acts on y_T alone, once for all iterations: with α_T = K_TT⁻¹ y_T the loss is
    y_Tᵀα_T − 2 α_Tᵀ K_TS α_S + α_Sᵀ K_SS α_S, the distance ‖Σ_T α_T φ − Σ_S α_S φ‖² that the attack minimizes.
    """

    @cached_property
    def duals(self) -> Tensor:
        """α_T, (T, K)."""
        return kernel_duals(self.kernel(self.images), self.targets, self.ridge)

    def __call__(self, images: Tensor, targets: Tensor) -> Tensor:
        """The loss of a distilled set, (S, C, H, W) and (S, K): a scalar, a squared distance between updates."""
        kernel = self.kernel(images)
        duals = kernel_duals(kernel, targets, self.ridge)
        cross = (self.duals * (self.kernel(self.images, images) @ duals)).sum()
        return (self.targets * self.duals).sum() - 2 * cross + (duals * (kernel @ duals)).sum()
