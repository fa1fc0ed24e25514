"""Recon-KIP: distillation by the reconstruction loss at infinite width (Loo et al. 2024, Theorem 2, appendix D)."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from attacks.kernel.empirical import kernel_duals
from clients.distillation.kip import Kernel


@dataclass(frozen=True, eq=False)
class RKIP:
    """‖y_T − K_TS α_S‖²_{K_TT⁻¹} + α_Sᵀ (K_SS − K_ST K_TT⁻¹ K_TS) α_S with α_S = K_SS⁻¹ y_S.

    Multiplied out, K_TT⁻¹ acts on y_T alone, once for all iterations: with α_T = K_TT⁻¹ y_T the loss is
    y_Tᵀα_T − 2 α_Tᵀ K_TS α_S + α_Sᵀ K_SS α_S, the distance ‖Σ_T α_T φ − Σ_S α_S φ‖² that the attack minimizes.

    images: (T, C, H, W), the training set. targets: (T, K). ridge: added to K_TT and K_SS, in units of their mean
    diagonals.
    """

    kernel: Kernel
    images: Tensor
    targets: Tensor
    ridge: float

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
