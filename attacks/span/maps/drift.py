"""Maps at the parameters sent, from maps at the middle of the way that several local steps took.

A map moves while the layers in front of it are trained. Where the image is known well enough its own way is followed,
maps(x; sent) − maps(x; seen): of the image only this difference is taken, so that what is wrong with it counts little.
Elsewhere the way that maps of other images went, a linear function of them at every position, stands for it; what an
image moves by being trained on itself is then left.
"""

import torch
from torch import Tensor
from torch.nn.functional import relu

from attacks.span.maps.update import MapUpdate
from attacks.span.thresholds import MAP_SEARCH


@torch.no_grad()
def at_parameters_sent(update: MapUpdate, maps: Tensor, images: Tensor, trusted: Tensor, decoys: Tensor) -> Tensor:
    """Maps (M, C, H, W) at `update.sent` from those at `update.seen`.

    images: (M, C, H, W), what they were inverted to, and trusted: (M,) bool, where that may be relied on. decoys:
    (D, C, H, W), images of nobody.
    """
    before, after = (update.network.maps(state, decoys) for state in (update.seen, update.sent))
    moved = maps + _linear(before, after - before, maps)
    followed = maps + update.network.maps(update.sent, images) - update.network.maps(update.seen, images)
    found = torch.where(trusted[:, None, None, None], followed, moved)
    return relu(found) if update.network.nonnegative else found


def _linear(before: Tensor, moved: Tensor, maps: Tensor) -> Tensor:
    """By how much maps (M, C, H, W) move, from a ridge regression over all positions of others (D, C, H, W)."""
    inputs, outputs, wanted = (part.movedim(1, 3).double() for part in (before, moved, maps))
    inputs, wanted = (torch.cat([part, torch.ones_like(part[..., :1])], 3) for part in (inputs, wanted))
    inputs, outputs = inputs.flatten(0, 2), outputs.flatten(0, 2)
    gram = inputs.T @ inputs
    gram += MAP_SEARCH.ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return (wanted @ torch.linalg.solve(gram, inputs.T @ outputs)).movedim(3, 1).to(maps)
