"""One result of several, and a joint polish of images and duals.

**Joining**: the results of rounds that were attacked alone (`of_rounds`); those of an attacker who uses what is known
of a defense and of one who does not (`told_and_untold`).

**Polishing** (`polish_jointly`): duals for images that are found already, then images and duals together, by the
reconstruction loss of the NTK attack. With images fixed, ‖Δθ − Σ_v Σ_j Σ_k α^v_jk ∇f^k_{θ_v}(x_j)‖² (Loo et al. 2024,
eq. 7 and appendix I; v: the initial and the final parameters) is linear least squares in the duals, solved by conjugate
gradients. The tangent space moves, so that images that the span attack made exact need not be the loss's minimum.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from attacks.base import Reconstruction
from attacks.interface.observation import Observation, State
from attacks.interface.torch_tools import cast_state, descend
from attacks.networks.probing import count_outputs
from attacks.ntk.objective import Objective, make_objective
from attacks.span.search.descent import beside, distinct
from attacks.span.stages import RoundsApart
from attacks.span.thresholds import EVIDENCE, POLISH, constants_of


def of_rounds(evidence: RoundsApart, parts: list[Reconstruction]) -> Reconstruction:
    """Join what rounds with private sets of their own gave, every image once, with the duals it has in its round."""
    images, residual = torch.cat([part.images for part in parts]), torch.cat([part.residual for part in parts])
    order = residual.argsort(stable=True)
    order = order[distinct(images[order].flatten(1))]
    duals = [part.duals for part in parts if part.duals is not None]
    features = [part.features for part in parts if part.features is not None]
    warnings = [
        f"round {r + 1}: {said}" for r, part in zip(evidence.rounds, parts, strict=True) for said in part.warnings
    ]
    return Reconstruction(
        images=images[order],
        held=_held(images[order], parts),
        residual=residual[order],
        duals=torch.cat(duals, 1)[:, order] if duals else None,
        features=torch.cat(features) if features else None,
        num_inferred=evidence.together,
        relative_residual=max(part.relative_residual for part in parts),
        warnings=(
            f"the rounds do not share one private set ({evidence.together} images together, at most {evidence.most} in "
            "a round): each was attacked alone",
            *warnings,
        ),
        facts=constants_of(EVIDENCE) | {"used_num_private": float(evidence.together)},
    )


def told_and_untold(told: Reconstruction, untold: Reconstruction) -> Reconstruction:
    """Join the results of an attacker who used what it knows of a defense and of one who did not: first the set that
    leaves less of the update, which both can see, then the images of the other that are distinct from it."""
    parts = sorted((told, untold), key=lambda part: part.relative_residual if len(part.images) else float("inf"))
    best, other = parts
    new = beside(best.images.flatten(1), other.images.flatten(1))
    images = torch.cat([best.images, other.images[new]])
    duals = best.duals if not len(new) or best.duals is None or other.duals is None else _joined(best, other, new)
    name = "with" if other is told else "without"
    return replace(
        best,
        images=images,
        held=_held(images, parts),
        residual=torch.cat([best.residual, other.residual[new]]),
        duals=duals,
        groups=None if len(new) else best.groups,
        warnings=(*best.warnings, *(f"{name} what is known of the defense: {said}" for said in other.warnings)),
        facts=other.facts | best.facts | {"told": float(len(told.images)), "untold": float(len(untold.images))},
    )


def _joined(best: Reconstruction, other: Reconstruction, new: Tensor) -> Tensor:
    """Return the duals (V, M, K) of the images of one result and of new ones of another."""
    assert best.duals is not None and other.duals is not None
    return torch.cat([best.duals, other.duals[:, new]], 1)


def _held(images: Tensor, parts: list[Reconstruction]) -> Tensor:
    """Return the candidates that the parts held beside the images, each once, part by part."""
    held = torch.cat([images[:0], *(part.held.to(images) for part in parts if part.held is not None)])
    return held[beside(images.flatten(1), held.flatten(1))]


def fit_duals(objective: Objective, images: Tensor, duals: Tensor, iterations: int = POLISH.dual_iterations) -> Tensor:
    """Compute least-squares duals (V, M, K) of images (M, C, H, W) by CGLS from a start (Björck 1996, alg. 7.4.1)."""

    def adjoint(direction: State) -> Tensor:
        variable = duals.detach().clone().requires_grad_()
        return torch.autograd.grad(objective.inner(direction, images, variable, None), variable)[0]

    def image(variable: Tensor) -> State:
        return objective.gradient_sum(images, variable, None)

    duals, explained = duals.detach().clone(), image(duals)
    rest = {name: value - explained[name] for name, value in objective.delta.items()}
    slope = adjoint(rest)
    step, size = slope, slope.square().sum()
    goes_on = size > 0  # a tensor, as nothing is asked of the device on the way: once false, the duals stay
    for _ in range(iterations):
        moved = image(step)
        length = torch.stack([value.square().sum() for value in moved.values()]).sum()
        goes_on = goes_on & (size > 0) & (length > 0)
        rate = size / length
        duals = torch.where(goes_on, duals + rate * step, duals)
        rest = {name: value - rate * moved[name] for name, value in rest.items()}
        slope = adjoint(rest)
        size, before = slope.square().sum(), size
        step = slope + size / before * step
    return duals


def polish_jointly(observation: Observation, found: Reconstruction, iterations: int) -> Reconstruction:
    """Return the images (M, C, H, W) of a result after `iterations` joint steps of Adam, with their duals (2, M, K) and
    ‖Δθ − Σ‖ / ‖Δθ‖ in the first round whose update is not zero.

    duals[0] are those at the initial parameters, duals[1] at the final ones.
    """
    observation, ignored = observation.one_round()
    model, device = observation.model, next(observation.model.parameters()).device
    initial, final, delta = (
        cast_state(state, device, torch.float32) for state in (*observation.pairs[0], observation.delta())
    )
    objective = make_objective(model, observation.input_shape, delta, [initial, final])
    images = found.images.to(device, torch.float32)
    outputs = count_outputs(model, observation.input_shape)
    duals = fit_duals(objective, images, images.new_zeros(2, len(images), outputs))
    images, duals = _descended(objective, images, duals, iterations)
    duals = fit_duals(objective, images, duals)
    size = math.sqrt(sum(float(value.square().sum()) for value in objective.delta.values()))
    left = math.sqrt(float(objective.loss(images, duals, None).detach()))
    return replace(
        found,
        images=images,
        duals=duals,
        relative_residual=left / size,
        warnings=(*found.warnings, *(f"joint_polish: {warning}" for warning in ignored)),
        facts=found.facts | constants_of(POLISH),
    )


def _descended(objective: Objective, images: Tensor, duals: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Return images and duals after joint Adam steps on the reconstruction loss, step sizes on a half cosine to 0."""
    scale = float(duals.square().mean().sqrt())
    images, duals = images.clone().requires_grad_(), duals.requires_grad_()
    variables = [(images, POLISH.rate), (duals, POLISH.rate * scale)]
    descend(
        lambda step: torch.autograd.grad(objective.loss(images, duals, None), (images, duals)), variables, iterations
    )
    return images.detach(), duals.detach()
