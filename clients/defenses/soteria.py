"""Soteria (Sun et al. 2021): the gradient of the last layer without what tells most of the images.

The representation r is what the last linear layer sees. An entry r_i by which an image could be computed from r most
precisely, with large |r_i| · ‖(∂r_i/∂x)⁻¹‖, is pruned: the weights that see it get no gradient. As the authors' code
does, |r_i| / ‖∂r_i/∂x‖ stands for it, summed over a batch. Nothing is changed in the layers below the last.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from attacks.interface.errors import InputError
from attacks.interface.options import BELOW_ONE
from attacks.networks.probing import evaluating, watched
from clients.defenses.base import Defense, DefenseContext, register
from clients.training import TrainingLoop

OFFSET = 0.1  # beside |r_i|, which may be 0 behind a ReLU: that of the authors' code
AT_ONCE = 64  # entries of r differentiated together: bounds the memory


@register
@dataclass(frozen=True)
class Soteria(Defense):
    """Train without those inputs of the last layer that tell most of the images (Soteria).

    Sun et al. 2021: they are left out of its gradient in every step.

    fraction: of the representation's entries that are pruned in every step, the 60 % of the authors' example.
    """

    name: ClassVar[str] = "soteria"

    fraction: Annotated[float, BELOW_ONE] = 0.6

    def check(self, context: DefenseContext) -> None:
        if last_linear(context.model) is None:
            raise InputError(f"defense 'soteria': model {type(context.model).__name__!r} has no linear layer to defend")
        if any(defense.name == "dp_sgd" for defense in context.config.defenses):
            raise InputError("defenses soteria and dp_sgd exclude each other: both make the gradient of a step")

    def instrument(self, loop: TrainingLoop, count: int, context: DefenseContext) -> TrainingLoop:
        defended, kept = last_linear(context.model), torch.ones(1)
        assert defended is not None  # as `check` has found

        def predict(images: Tensor) -> Tensor:
            nonlocal kept
            kept = kept_entries(context.model, defended, images, self.fraction)
            return loop.predict(images)

        @torch.no_grad()
        def prune(*_: object) -> None:
            if defended.weight.grad is not None:
                defended.weight.grad *= kept

        loop.optimizer.register_step_pre_hook(prune)
        return TrainingLoop(predict, loop.optimizer, loop.batches)


def last_linear(model: nn.Module) -> nn.Linear | None:
    """Return the last linear layer in the order of the model's definition, or None."""
    found = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return found[-1] if found else None


def kept_entries(model: nn.Module, layer: nn.Linear, images: Tensor, fraction: float) -> Tensor:
    """Return 1 for the entries of the layer's input (d,) that are kept and 0 for the share that is pruned.

    images: (B, C, H, W). Pruned are those of smallest Σ_b ‖∂r_bi/∂x_b‖ / (|r_bi| + 0.1).
    """
    seen: list[Tensor] = []
    images = images.detach().requires_grad_()
    watch = watched({"": layer}, lambda name: lambda module, inputs: seen.append(inputs[0]), before=True)
    with watch, evaluating(model), torch.enable_grad():
        model(images)
    representation = seen[0].flatten(1)
    pick = torch.eye(representation.shape[1], dtype=images.dtype, device=images.device)
    slopes = [
        torch.autograd.grad(
            representation, images, rows[:, None].expand(-1, len(images), -1), retain_graph=True, is_grads_batched=True
        )[0].flatten(2)
        for rows in pick.split(AT_ONCE)
    ]
    ratio = (torch.cat(slopes).norm(dim=2).T / (representation.detach().abs() + OFFSET)).sum(0)
    kept = torch.ones_like(ratio)
    kept[ratio.argsort(stable=True)[: round(fraction * len(ratio))]] = 0
    return kept
