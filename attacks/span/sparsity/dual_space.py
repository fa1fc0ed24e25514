"""Exact images from approximate ones: the duals of a ReLU layer vanish on the units that an image leaves inactive.

With N images, the first layer's update is exactly [ΔW | Δb] = Σ_i d_i x̃_iᵀ, x̃_i = [x_i; 1], where d_i (W,) is what
image i contributed to every unit: it is zero on each unit that x_i never activated while the client trained. With the
singular value decomposition [ΔW | Δb] = L S Vᵀ of rank N,

    d_i = L c_i,    x̃_i = V S y_i,    y_i · c_j = 0 for i ≠ j.

`attacks.span.sparsity.sparse_duals` finds the c_i from rough images. Given all of them, the last relation yields every
image, to the rounding error of the parameters, however rough the candidates were.

A vector of a generic N-dimensional space can be zero on N − 1 units of choice, and hardly on many more. The sparsity
test asks for more zeros than choice and chance explain: a heuristic count, not a proof, that the candidate led to a
private image. SPEAR (Dimitrov et al., NeurIPS 2024) uses this sparsity on single gradients; it holds just as well over
any number of local steps, for the units that stay inactive.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.span.thresholds import CROWDED, SPARSITY
from attacks.update.spectrum import Spectrum


@dataclass(frozen=True)
class DualSpace:
    """The factors of a first layer's update, in float64, and the units' parameters at both ends of training.

    left: (W, N), L. rows: (N, in + 1), Vᵀ. values: (N,), S. noise: standard deviation of an entry of the update beyond
    its N-dimensional part. ends: two (W, in + 1), [W | b] of what the activation is fed before and after. Units
    that did not change are left out.
    repeats: in how many rounds a unit has the same row of L, up to scale and noise; 1 for a single round.
    """

    left: Tensor
    rows: Tensor
    values: Tensor
    noise: float
    ends: tuple[Tensor, Tensor]
    repeats: float = 1.0

    @classmethod
    def of(
        cls,
        initial: Tensor,
        final: Tensor,
        spectrum: Spectrum,
        count: int,
        rounds: int = 1,
        fed: tuple[Tensor, Tensor] | None = None,
    ) -> "DualSpace":
        """initial, final: [W | b], (W, in + 1), of several rounds one below the other. spectrum: of the change. fed:
        [W | b] of what the activation is fed before and after, where that is not the layer's output."""
        rows, values = spectrum.vectors[:count], spectrum.values[:count]
        first, last = fed or (initial, final)
        alive = (final != initial).any(1)
        inside = (final - initial) @ rows.T
        noise = spectrum.noise(count)
        repeated = repeats(inside.unflatten(0, (rounds, -1)), SPARSITY.zero_widths * noise) if rounds > 1 else 1.0
        return cls(inside[alive] / values, rows, values, noise, (first[alive], last[alive]), repeated)

    @property
    def count(self) -> int:
        """N, the number of images."""
        return len(self.values)

    def coordinates(self, images: Tensor) -> Tensor:
        """The y (M, N) of images (M, in)."""
        return (images.double() @ self.rows[:, :-1].T + self.rows[:, -1]) / self.values

    def images(self, coordinates: Tensor) -> Tensor:
        """The images (M, in) of y (M, N), each scaled so that the last component of x̃ is 1."""
        points = coordinates * self.values @ self.rows
        return points[:, :-1] / points[:, -1:]

    def remaining_rows(self, directions: Tensor) -> Tensor:
        """Rows (N − F, in + 1) that span all x̃ but those of the F images with the directions c (F, N)."""
        if len(directions) == 0:
            return self.values[:, None] * self.rows
        basis = torch.linalg.qr(directions.T, mode="complete")[0][:, len(directions) :]
        return basis.T * self.values @ self.rows

    def without(self, coordinates: Tensor, directions: Tensor) -> Tensor:
        """The y (M, N) without what they share with the images of the directions c (F, N)."""
        if len(directions) == 0:
            return coordinates
        basis = torch.linalg.qr(directions.T)[0]
        return coordinates - coordinates @ basis @ basis.T

    def disentangle(self, coordinates: Tensor, directions: Tensor) -> Tensor:
        """The y (F, N) of the images with the directions c (F, N), from rough ones: y_i · c_j = 0 for j ≠ i.

        Exact whatever the rough ones are once F = N.
        """
        overlaps = coordinates @ directions.T
        overlaps.fill_diagonal_(0)
        # for every i the least-norm change that cancels y_i · c_j for all j ≠ i: by the inverse of the Gram matrix of
        # all c, with the one change along c_i free, chosen so that the result has no multiplier there
        gram = directions @ directions.T
        inverse, singular = torch.linalg.inv_ex(gram)
        inverse = torch.linalg.pinv(gram, hermitian=True) if singular else inverse  # one direction found twice
        multipliers = overlaps @ inverse
        own = torch.diagonal(multipliers) / torch.diagonal(inverse)
        multipliers = multipliers - own[:, None] * inverse
        return coordinates - multipliers @ directions

    def nearest(self, coordinates: Tensor) -> Tensor:
        """How near to activation the images of y (M, N) bring every unit, (M, W): the larger of its two inputs at both
        ends of training. Below 0 a unit is inactive at both."""
        points = torch.nn.functional.pad(self.images(coordinates), (0, 1), value=1.0)
        return torch.maximum(points @ self.ends[0].T, points @ self.ends[1].T)

    def inactive(self, coordinates: Tensor) -> list[Tensor]:
        """For every y (M, N) the rows of L, (·, N), of the units that its image leaves inactive at both ends.

        Those farthest from activation come first: they are the least likely to have been active in between.
        """
        nearest = self.nearest(coordinates)
        order, idle = nearest.argsort(dim=1, stable=True), (nearest < 0).sum(1).tolist()
        return [self.left[units[:number]] for units, number in zip(order, idle, strict=True)]

    def zeros(self, directions: Tensor, duals: Tensor | None = None) -> Tensor:
        """On how many units L c is zero, (M,), for c (M, N); on none where rounding errors hide zeros.

        duals: (M, W), the L c, where they are there already.
        """
        tolerance = self.tolerance(directions)
        clean = tolerance * len(self.left) ** 0.5 < SPARSITY.clean
        duals = directions @ self.left.T if duals is None else duals
        return ((duals.abs() < tolerance) & clean).sum(1)

    def passing(self, directions: Tensor) -> Tensor:
        """Indices of the c (M, N) that pass the sparsity test, sparsest first: L c has more zeros than are explained,
        and c is independent of sparser ones. A mixture of duals has many zeros too, but fewer than its parts."""
        zeros, enough = self.zeros(directions), self.explained_zeros()
        kept: list[int] = []
        basis = directions.new_zeros(0, self.count)
        counts = zeros.tolist()
        for i in zeros.argsort(descending=True, stable=True).tolist():
            rest = directions[i] - (directions[i] @ basis.T) @ basis
            if counts[i] > enough and rest.norm() > SPARSITY.independent:
                rest = rest - (rest @ basis.T) @ basis
                basis = torch.cat([basis, (rest / rest.norm())[None]])
                kept.append(i)
        return torch.tensor(kept, dtype=torch.long, device=directions.device)

    def explained_zeros(self) -> float:
        """How many zeros chance and N − 1 free choices explain, each as often as rounds repeat a unit's duals."""
        width, count = self.left.shape
        free = count * self.repeats
        crowded = max(CROWDED.least_zeros * width, free + CROWDED.chance * width)
        return min(SPARSITY.free_choices * free + SPARSITY.chance * width, crowded)

    def tolerance(self, directions: Tensor) -> Tensor:
        """Below which an entry of L c is zero, (M, 1), for c (M, N): its rounding error is noise · ‖S⁻¹ c‖."""
        return SPARSITY.zero_widths * self.noise * (directions / self.values).norm(dim=1, keepdim=True)


def repeats(updates: Tensor, rounding: float) -> float:
    """In how many rounds a unit repeats its row of the update: rows per dimension of their span, over all units.

    updates: (R, W, N), rows of unit w in every round, in an orthonormal basis of the first layer's span. rounding:
    what an entry may be off by. A c that is chosen to be zero on one of them is zero on its multiples.
    """
    by_unit = updates.transpose(0, 1)
    squares = torch.linalg.eigvalsh(by_unit @ by_unit.mT).clamp_min(0)
    bound = rounding**2 * updates.shape[2] + 1e-14 * squares.amax(1, keepdim=True)
    rank = (squares > bound).sum(1).clamp_min(1)
    used = updates.any(2).sum(0)
    return float(used.sum() / rank[used > 0].sum())
