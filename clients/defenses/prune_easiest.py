"""Leave out the images that are easiest to reconstruct, those with the largest duals (Loo et al. 2024, sec. 6, C.1)."""

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from attacks.interface.options import check_values
from attacks.kernel.empirical import empirical_ntk
from clients.defenses.base import Defense, DefenseContext, Metrics, TrainingSet, register

RIDGE = 1e-6  # of the kernel's mean diagonal


@register
@dataclass(frozen=True)
class PruneEasiest(Defense):
    """fraction: of the client's images that are left out, as they are at the parameters received in its first round.

    The dual of an image is α = K₀⁻¹(y − f₀(x)) with the tangent kernel at those parameters: what slow fitting costs. A
    client decides once: the easiest of every new round are others, so in the end all would have been trained on.
    """

    name: ClassVar[str] = "prune_easiest"
    mixes_images: ClassVar[bool] = True  # which images are left depends on all

    fraction: float = 0.25

    def __post_init__(self) -> None:
        check_values(self, below_one=("fraction",))

    def prepare_data(self, data: TrainingSet, context: DefenseContext) -> tuple[TrainingSet, Metrics]:
        if "kept" not in context.memory:
            size = duals(context.model, data).norm(dim=1)
            keep = max(1, len(size) - round(self.fraction * len(size)))
            context.memory["kept"] = without_easiest(size, len(size) - keep).tolist()
        kept = torch.tensor(context.memory["kept"])
        pruned = float(len(data.inputs) - len(kept))
        return TrainingSet(data.inputs[kept], data.targets[kept], data.distilled), {"pruned": pruned}


def without_easiest(ease: Tensor, count: int, groups: Tensor | None = None) -> Tensor:
    """Ascending indices of the images left without the `count` easiest, those with the largest `ease` (N,).

    groups: (N,) classes, to leave out as many of each as far as they have them; default: whichever are easiest.
    """
    if groups is None:
        return ease.argsort(stable=True)[: len(ease) - count].sort().values
    present = groups.unique()
    shares = [count // len(present) + (i < count % len(present)) for i in range(len(present))]
    kept = []
    for group, share in zip(present, shares, strict=True):
        own = (groups == group).nonzero()[:, 0]
        kept.append(own[without_easiest(ease[own], min(share, len(own)))])
    return torch.cat(kept).sort().values


def duals(model: nn.Module, data: TrainingSet) -> Tensor:
    """α (N, K) of kernel regression onto the residuals, with the trace form of the kernel for several outputs."""
    model = copy.deepcopy(model).eval()
    state = {name: value.detach() for name, value in model.state_dict().items()}
    kernel = empirical_ntk(model, state, data.inputs).double()
    with torch.no_grad():
        outputs = model(data.inputs).double()
    if data.targets.dtype == torch.long:
        residual = nn.functional.one_hot(data.targets, outputs.shape[1]) - outputs.softmax(1)
    else:
        residual = data.targets.reshape(len(outputs), -1).double() - outputs
    ridge = RIDGE * kernel.diagonal().mean() * torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)
    return torch.linalg.solve(kernel + ridge, residual)
