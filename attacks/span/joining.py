"""One result of several: of rounds that were attacked alone, and of an attacker who uses what is known of a defense and
one who does not."""

from dataclasses import replace

import torch
from torch import Tensor

from attacks.interface.attack import Reconstruction
from attacks.span.evidence.pixel_evidence import RoundsApart
from attacks.span.search.descent import beside, distinct
from attacks.span.thresholds import EVIDENCE, constants_of


def of_rounds(evidence: RoundsApart, parts: list[Reconstruction]) -> Reconstruction:
    """What rounds with private sets of their own gave, every image once, with the duals it has in its round."""
    images, residual = torch.cat([part.images for part in parts]), torch.cat([part.residual for part in parts])
    order = residual.argsort(stable=True)
    order = order[distinct(images[order].flatten(1))]
    duals = [part.duals for part in parts if part.duals is not None]
    warnings = [
        f"round {r + 1}: {said}" for r, part in zip(evidence.rounds, parts, strict=True) for said in part.warnings
    ]
    return Reconstruction(
        images=images[order],
        held=_held(images[order], parts),
        residual=residual[order],
        duals=torch.cat(duals, 1)[:, order] if duals else None,
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
    """What an attacker returns who knows of a defense and need not use it.

    First stands the set that leaves less of the update, which both can see; the other adds images that are distinct
    from it. So it is at least what the same attacker returns who is told nothing.
    """
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
    """The duals (V, M, K) of the images of one result and of new ones of another."""
    assert best.duals is not None and other.duals is not None
    return torch.cat([best.duals, other.duals[:, new]], 1)


def _held(images: Tensor, parts: list[Reconstruction]) -> Tensor:
    """What the parts held beside the images, every candidate once, part by part."""
    held = torch.cat([images[:0], *(part.held.to(images) for part in parts if part.held is not None)])
    return held[beside(images.flatten(1), held.flatten(1))]
