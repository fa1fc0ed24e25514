"""The search for private maps among all maps whose patches lie in the first convolution's span.

Those maps form a linear space, the kernel of G = Σ_p U_pᵀ (I − P) U_p, which `smallest_eigenvectors` finds from
products with G alone. Mixtures and shifts of private maps lie in it too. A later layer tells the private ones:
behind normalization and ReLU, the patches of a mixture leave its span. So ρ of that span is minimized within the
kernel, from random points, and beside it the share of negative entries if maps follow a ReLU. While maps are missing,
half of the next points are kept away from those that were found.

Decoys tell how small ρ gets by chance. They are maps of images that are not private, projected onto the kernel. A
candidate is accepted if its ρ is a small share of theirs, and of what mixtures of two of these images' maps leave:
where a network is nearly linear, mixtures of private maps pass nearly as well as these. Wrong ones are local minima,
which end at a quarter of the decoys' ρ and above (docs/records/convnets.md has the rate of false positives), and lower
where layers hardly tie places together, as the first block of an MLP-Mixer: where N is known, the best candidate beyond
N is nobody's, and tells how low.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize, relu

from attacks.base import Progress
from attacks.interface.torch_tools import LBFGS, descend
from attacks.span.maps.network import normalizing_batches
from attacks.span.maps.update import MapUpdate
from attacks.span.search.descent import first_of_near
from attacks.span.thresholds import MAP_KERNEL, MAP_SEARCH, Descent


def smallest_eigenvectors(
    apply: Callable[[Tensor], Tensor], start: Tensor, largest: float, cut: float
) -> tuple[Tensor, Tensor]:
    """Return (rising eigenvalues (d,), orthonormal eigenvectors (d, n)) of a positive semidefinite operator, by a pass
    of Chebyshev-filtered subspace iteration (Zhou et al. 2006), whose polynomial grows fastest below `cut`.

    apply: multiplies rows (d, n) by the operator. start: (d, n), random. largest: a bound on the eigenvalues.
    """
    rows = torch.linalg.qr(_filtered(apply, start, cut, largest * MAP_KERNEL.margin).T)[0].T
    products = apply(rows)
    values, turned = torch.linalg.eigh((rows @ products.T).double())
    return values, turned.T.to(rows) @ rows


def _filtered(apply: Callable[[Tensor], Tensor], rows: Tensor, low: float, high: float) -> Tensor:
    """Apply T_k of the operator, scaled so that [low, high] becomes [−1, 1], to rows (d, n), up to a factor."""
    centre, radius = (high + low) / 2, (high - low) / 2
    before, now = rows.clone(), (centre * rows - apply(rows)) / radius
    for k in range(2, MAP_KERNEL.degree + 1):
        # T_k = 2 (centre − G) / radius · T_{k−1} − T_{k−2}, written over T_{k−2} to save memory
        following = before.neg_().add_(now, alpha=2 * centre / radius).sub_(apply(now), alpha=2 / radius)
        before, now = now, following
        if k % MAP_KERNEL.rescaled_every == 0:
            scale = now.norm(dim=1).max()
            before, now = before.div_(scale), now.div_(scale)
    return now


@dataclass(frozen=True)
class MapCandidates:
    """Points of low ρ in the kernel, distinct and best first.

    maps: (M, C, H, W).
    residual: (M,), ρ plus the share of negative entries.
    decoys: (D,), the same for projected maps of other images.
    bound: ρ below which a candidate is accepted.
    basis: (d, C·H·W), of the kernel.
    eigenvalue: the largest of the kernel.
    way: where these are the maps, from the parameters sent (0) to those returned (1); None after one step.
    """

    maps: Tensor
    residual: Tensor
    decoys: Tensor
    bound: float
    basis: Tensor
    eigenvalue: float
    way: float | None = None

    @property
    def num_accepted(self) -> int:
        return int((self.residual < self.bound).sum())


@dataclass(frozen=True)
class _Space:
    """Where maps are sought.

    basis: (d, C·H·W), of the kernel.
    size: the norm of a map.
    bound: ρ below which a map is accepted.
    """

    basis: Tensor
    size: float
    bound: float


def find_maps(update: MapUpdate, decoys: Tensor, generator: torch.Generator, progress: Progress) -> MapCandidates:
    """Find candidates for private maps. decoys: (D, C, H, W), maps at `update.seen` of images that are not private."""
    basis, eigenvalues = _kernel(update, generator)
    by_chance = rho(update, decoys.flatten(1) @ basis.T @ basis if len(basis) else decoys.flatten(1))
    bound = MAP_SEARCH.accepting_share * _least_wrong(update, by_chance, decoys)
    space = _Space(basis, float(decoys.flatten(1).norm(dim=1).mean()), bound)
    # where more maps have such patches than there are, those of a batch are not determined
    find = _first_batch if update.batch and len(basis) <= update.ranks[0] else _one_by_one
    points, residual, way = find(update, space, generator, progress)
    if update.count is not None and len(points) > update.count:  # one of these is nobody's
        bound = min(bound, MAP_SEARCH.accepting_share * float(residual[update.count]))
    maps = (points @ basis.double()).view(-1, *update.network.shape).float()
    eigenvalue = float(eigenvalues.max()) if len(basis) else math.nan
    return MapCandidates(maps, residual, by_chance, bound, basis, eigenvalue, None if update.single_step else way)


def _first_batch(
    update: MapUpdate, space: _Space, generator: torch.Generator, progress: Progress
) -> tuple[Tensor, Tensor, float]:
    """Find the maps of the first of several batches (B, d) together, their ρ, and 0, the way to the parameters sent;
    none where no start ends at them. The span holds them exactly, and the second layer was fed what they are when
    normalized by their own statistics, of which running ones only tell a mean over all batches."""
    exact, basis = update.on_the_way(0.0).to(torch.float64), space.basis.double()
    together = replace(exact, network=replace(exact.network, batched=True))
    count, kept = update.batch or 0, basis.new_zeros(0, len(basis))
    for done in range(MAP_SEARCH.batches if len(basis) else 0):
        progress(done, MAP_SEARCH.batches, math.nan)
        drawn = torch.randn(count - len(kept), len(basis), generator=generator).to(basis)
        with normalizing_batches(update.network.model):
            points = _polished(together, basis, torch.cat([kept, space.size * normalize(drawn)]), space.size)
            residual = rho(together, points @ basis)
        kept = points[_best_distinct(points, residual, count)]
        worst = float(residual.max())
        if len(kept) == count and worst < MAP_SEARCH.exact * space.bound:
            # their own statistics say nothing of how long they are: running ones say what they are on the way
            lengths = torch.logspace(-1, 1, 49).to(basis) * space.size / points.norm(dim=1).mean()
            fits = points.new_tensor([float(rho(exact, one * points @ basis).sum()) for one in lengths])
            return lengths[fits.argmin()] * points, residual, 0.0
        # most ends have two points on one image's map: one of them is drawn anew; some have not come to an end
        kept = kept if len(kept) < count or worst < space.bound else kept[:0]
    return basis.new_zeros(0, len(basis)), basis.new_zeros(0), 0.0


def _one_by_one(
    update: MapUpdate, space: _Space, generator: torch.Generator, progress: Progress
) -> tuple[Tensor, Tensor, float]:
    """Find points (M, d) of low ρ, best first, their ρ, and where on the way between parameters they are maps."""
    basis, size, bound = space.basis, space.size, space.bound
    exact, directions, way = update.to(torch.float64), basis.double(), MAP_SEARCH.way
    points, residual, accepted, barren = directions.new_zeros(0, len(basis)), directions.new_zeros(0), 0, 0
    for _ in range(MAP_SEARCH.rounds if len(basis) else 0):
        new = _searched(update, basis, points[:accepted].to(basis), generator, size, progress).double()
        if not (len(new) or accepted):  # ρ is NaN everywhere: maps of a single pixel are zero without their mean
            break
        if len(new):
            points = torch.cat([points, _polished(exact, directions, new, size)])
            points, residual = _best_first(exact, directions, points)
        before, accepted = accepted, int((residual < bound).sum())
        if accepted > before and not update.single_step:
            points[:accepted], way = along_the_way(exact, directions, points[:accepted], size, way)
            update, exact = update.on_the_way(way), exact.on_the_way(way)
            points, residual = _best_first(exact, directions, points)
        barren = 0 if accepted > before else barren + 1
        most = MAP_SEARCH.rounds if update.single_step else MAP_SEARCH.barren if accepted else 1
        if accepted >= update.most_images or barren >= most:
            break
    if len(points):  # GroupNorm or LayerNorm behind the maps: twice the length has the same ρ, and no length is known
        doubled, once = (rho(exact, scale * (points @ directions)) for scale in (2, 1))
        free = bool(((doubled - once).abs() < MAP_SEARCH.scale_free).all())
        points = size * normalize(points) if free else points
    return points, residual, way


def _best_first(update: MapUpdate, basis: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return (the distinct ones of points (M, d), by rising ρ, their ρ)."""
    residual = rho(update, points @ basis)
    order = _best_distinct(points, residual, len(points))
    return points[order], residual[order]


def _least_wrong(update: MapUpdate, by_chance: Tensor, decoys: Tensor) -> float:
    """Return the ρ of what is not private: the median of decoys (D,), or what mixtures of two of these maps (D, C, H,
    W) leave, which is less where the network is nearly linear between the two layers."""
    half = len(decoys) // 2
    mixtures = update.network.left_by_mixtures(update.seen, decoys[:half], decoys[half : 2 * half])
    return min(float(by_chance.median()), float(mixtures.median()))


def _searched(
    update: MapUpdate,
    basis: Tensor,
    found: Tensor,
    generator: torch.Generator,
    size: float,
    progress: Progress,
) -> Tensor:
    """Return the best distinct points (M, d) that descent from random ones finds, a few more than there are images.
    found: (A, d), whose directions are left out, and from which half of the points are kept away."""
    points = torch.randn(MAP_SEARCH.starts, len(basis), generator=generator).to(basis)
    away = (torch.arange(len(points)) % 2).to(basis)

    def value(points: Tensor) -> Tensor:
        near = relu(normalize(points) @ normalize(found).T - MAP_SEARCH.near).square().sum(1)
        return rho(update, points @ basis) + MAP_SEARCH.repulsion * away * near

    descent = MAP_SEARCH.search_of_differences if update.training_mode else MAP_SEARCH.search
    points = _descended(value, size * normalize(points), size, descent, progress)
    points = points[~(normalize(points) @ normalize(found).T > MAP_SEARCH.same_direction).any(1)]
    most = update.most_images + MAP_SEARCH.polished_besides
    return points[_best_distinct(points, rho(update, points @ basis), most)]


def _kernel(update: MapUpdate, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return (orthonormal basis (d, C·H·W) of the maps whose patches lie in the span, its eigenvalues). The number of
    directions is doubled until some lie outside. Where no gap shows where the kernel ends, all directions tried are
    returned."""
    shape, rank = update.network.shape, update.ranks[0]
    if update.whole and update.holds.apart:
        basis = update.holds.everywhere()
        return basis, basis.new_zeros(len(basis))

    def apply(rows: Tensor) -> Tensor:
        return update.holds.outside(rows.view(-1, *shape)).flatten(1)

    most = math.prod(shape) if update.whole else min(math.prod(shape), MAP_KERNEL.most_directions)
    tried = int(MAP_KERNEL.directions * rank) + 1
    while True:
        tried = min(tried, most)
        start = torch.randn(tried, math.prod(shape), generator=generator).to(update.holds.filters)
        values, basis = smallest_eigenvectors(apply, start, update.holds.largest, MAP_KERNEL.cut)
        if values[-1] > MAP_KERNEL.cut or tried == most:
            break
        tried *= 2
    kept = values < MAP_KERNEL.cut
    return (basis[kept], values[kept]) if update.whole else (basis, values)


def rho(update: MapUpdate, points: Tensor) -> Tensor:
    """Return ρ of the second layer's input for maps F (M, C·H·W), plus ‖relu(−F)‖² / ‖F‖² if maps follow a
    ReLU."""
    maps = points.view(-1, *update.network.shape)
    value = update.tests.share_outside(update.network.between(update.seen, maps))
    if not update.network.nonnegative:
        return value
    return value + relu(-points).square().sum(1) / points.square().sum(1)


def _descended(
    value: Callable[[Tensor], Tensor], points: Tensor, size: float, descent: Descent, progress: Progress
) -> Tensor:
    """Minimize the value of each point by Adam on its coordinates (M, d) in the kernel. size: norm of a map."""
    points = points.clone().requires_grad_()

    def gradient(step: int) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            values = value(points)
            found = torch.autograd.grad(values.sum(), points)
        if step % MAP_SEARCH.reported_every == 0:
            progress(step, descent.steps, float(values.detach().min()))
        return found

    descend(gradient, [(points, descent.rate * size / math.sqrt(points.shape[1]))], descent.steps)
    return points.detach()


def _polished(update: MapUpdate, basis: Tensor, points: Tensor, size: float) -> Tensor:
    """Make points (M, d) exact by L-BFGS in float64: near a private map ρ is smooth, and its minimum is zero."""
    scaled = (points / size).requires_grad_()
    minimize(lambda: rho(update, size * scaled @ basis).sum(), [scaled])
    return size * scaled.detach()


def along_the_way(update: MapUpdate, basis: Tensor, points: Tensor, size: float, way: float) -> tuple[Tensor, float]:
    """Minimize ρ over points (M, d) and over the place `way` between the parameters sent (0) and returned (1). points:
    accepted at `way`, where `update.seen` is. Each ρ is divided by its first value, so that all images count alike."""
    start = rho(update, points @ basis).clamp_min(MAP_SEARCH.flat)
    scaled, part = (points / size).requires_grad_(), points.new_tensor(way).requires_grad_()
    minimize(lambda: (rho(update.on_the_way(part), size * scaled @ basis) / start).sum(), [scaled, part])
    return size * scaled.detach(), float(part.detach().clamp(0, 1))


def minimize(value: Callable[[], Tensor], variables: list[Tensor]) -> None:
    """Move the variables to a minimum of the value nearby, by L-BFGS."""
    search = LBFGS(
        variables,
        max_iter=MAP_SEARCH.polish,
        tolerance_grad=MAP_SEARCH.flat,
        tolerance_change=MAP_SEARCH.flat,
        history_size=MAP_SEARCH.history,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        with torch.enable_grad():
            found = value()
            gradients = torch.autograd.grad(found, variables)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.grad = gradient
        return float(found.detach())

    search.step(closure)


def _best_distinct(points: Tensor, residual: Tensor, most: int) -> Tensor:
    """Return the indices of points (M, d) by rising residual (M,), without those in the direction of a better one."""
    order = residual.argsort(stable=True)
    unit = normalize(points[order[residual[order].isfinite()]])
    return order[first_of_near(unit @ unit.T >= MAP_SEARCH.same_direction)][:most]
