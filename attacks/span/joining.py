"""One result of several: of rounds that were attacked alone (`of_rounds`), and of an attacker who uses what is known of
a defense and of one who does not (`told_and_untold`)."""

from dataclasses import replace

import torch
from torch import Tensor

from attacks.base import Reconstruction
from attacks.span.search.descent import beside, distinct
from attacks.span.stages import RoundsApart
from attacks.span.thresholds import EVIDENCE, constants_of


def of_rounds(evidence: RoundsApart, parts: list[Reconstruction]) -> Reconstruction:
    """Join what rounds with private sets of their own gave, every image once."""
    images, residual = torch.cat([part.images for part in parts]), torch.cat([part.residual for part in parts])
    order = residual.argsort(stable=True)
    order = order[distinct(images[order].flatten(1))]
    features = [part.features for part in parts if part.features is not None]
    warnings = [
        f"round {r + 1}: {said}" for r, part in zip(evidence.rounds, parts, strict=True) for said in part.warnings
    ]
    return Reconstruction(
        images=images[order],
        held=_held(images[order], parts),
        residual=residual[order],
        features=torch.cat(features) if features else None,
        num_inferred=evidence.together,
        guessed=any(part.guessed for part in parts),
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
    name = "with" if other is told else "without"
    return replace(
        best,
        images=images,
        held=_held(images, parts),
        residual=torch.cat([best.residual, other.residual[new]]),
        groups=None if len(new) else best.groups,
        warnings=(*best.warnings, *(f"{name} what is known of the defense: {said}" for said in other.warnings)),
        facts=other.facts | best.facts | {"told": float(len(told.images)), "untold": float(len(untold.images))},
    )


def _held(images: Tensor, parts: list[Reconstruction]) -> Tensor:
    """Return the candidates that the parts held beside the images, each once, part by part."""
    held = torch.cat([images[:0], *(part.held.to(images) for part in parts if part.held is not None)])
    return held[beside(images.flatten(1), held.flatten(1))]
