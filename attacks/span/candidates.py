"""What the rounds of a span attack have found: certified images, loose candidates, thresholds from impostors, a veto.

The mean of two candidates is not a private image. ρ over such impostors is the null distribution, taken from the
attacker's own data: a candidate is accepted below its lowest percent.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.span.duals import DualSpace
from attacks.span.search import SpanTest, distinct, outside
from attacks.span.sparse_duals import fewest_zeros, settled, sparsest

IMPOSTORS, LOWEST = 1000, 0.01  # means of two candidates; the quantile of their ρ that accepts
SURE = 1 / 3  # of that threshold: candidates that deflate
TRIED = 2  # candidates that are tested for zeros, per image that is still missing
FEW_CERTIFIED = 0.25  # of the accepted: fewer certified ones than that speak against all, where zeros can be told
UNEXPLAINED = 0.5  # most of the second layer's update that a set may leave, relative to a set of impostors
UNEXPLAINED_ROUNDS = (
    0.92  # the same for several rounds where zeros certify enough: rounds can repeat the zeros of a unit
)


@dataclass(frozen=True)
class Candidates:
    """directions: (F, N), c of the certified images; exact: (F, in), those images; loose: (P, in), other candidates,
    freed from what they share with certified ones; residual: (P,), their ρ, lowest first. Images in float64."""

    duals: DualSpace
    test: SpanTest
    directions: Tensor
    exact: Tensor
    loose: Tensor
    residual: Tensor
    threshold: float = 0.0
    likely: float = float("inf")  # median ρ of impostors
    certifies: bool = True  # by the zeros of their duals: ReLU only

    @classmethod
    def empty(cls, duals: DualSpace, test: SpanTest, certifies: bool = True) -> "Candidates":
        images, directions = duals.rows.new_zeros(0, duals.rows.shape[1] - 1), duals.values.new_zeros(0, duals.count)
        return cls(duals, test, directions, images, images, images[:, 0].float(), certifies=certifies)

    @property
    def total(self) -> int:
        return self.duals.count

    def below(self, bound: float) -> Tensor:
        """Loose candidates with ρ below a bound, best first, no more than images are missing."""
        return self.loose[self.residual < bound][: self.total - len(self.exact)]

    def accepted(self) -> Tensor:
        """Certified images, without those whose ρ is worse than half of the impostors', and accepted loose ones."""
        known = self.exact[self.test.residual(self.exact.float()) < self.likely]
        return torch.cat([known, self.below(self.threshold)])

    def merit(self) -> tuple[int, int]:
        """How many are accepted, how many certified."""
        accepted = self.accepted()
        return len(accepted), len(self.exact)

    def features(self, exact: bool) -> Tensor | None:
        """Orthonormal features (F, W + 1) of what deflates: sure candidates and, with `exact`, certified images."""
        sure = self.below(SURE * self.threshold)
        images = torch.cat([self.exact, sure]) if exact else sure
        return torch.linalg.qr(self.test.features(images.float()).T)[0].T.contiguous() if len(images) else None

    def merge(self, images: Tensor, generator: torch.Generator) -> "Candidates":
        """With further candidates (M, in)."""
        found = self._ranked(torch.cat([self.loose, images]), generator)
        if not self.certifies:
            return found
        duals = self.duals
        tried = found.loose[: TRIED * (self.total - len(self.exact))]
        rough, known = duals.coordinates(tried), duals.coordinates(self.exact)
        sure = torch.zeros(len(tried), dtype=torch.bool, device=tried.device)
        sure[: len(found.below(found.threshold))] = True
        directions = torch.cat([self.directions, sparsest(duals, rough, sure, known)])
        kept = duals.certified(directions)
        directions, rough = directions[kept], torch.cat([known, rough])[kept]
        directions = settled(duals, rough, directions)
        kept = duals.certified(directions)
        directions, rough = directions[kept], rough[kept]
        exact = duals.images(duals.disentangle(rough, directions))
        return replace(found, directions=directions, exact=exact)._ranked(found.loose, generator)

    def released(self) -> "Candidates":
        """With the certified of fewest zeros as loose candidates: a mixture among them hides what it is made of."""
        fewest = fewest_zeros(self.duals, self.directions)
        kept = torch.ones(len(self.directions), dtype=torch.bool, device=self.directions.device)
        kept[fewest] = False
        loose = torch.cat([self.exact[~kept], self.loose])
        residual = torch.cat([self.test.residual(self.exact[~kept].float()), self.residual])
        order = residual.argsort(stable=True)
        return replace(
            self, directions=self.directions[kept], exact=self.exact[kept], loose=loose[order], residual=residual[order]
        )

    def _ranked(self, loose: Tensor, generator: torch.Generator) -> "Candidates":
        duals = self.duals
        missing = self.total - len(self.exact)
        loose = duals.images(duals.without(duals.coordinates(loose), self.directions))
        loose = loose[loose.isfinite().all(1)] if missing else loose[:0]
        residual = self.test.residual(loose.float())
        order = residual.argsort(stable=True)
        order = order[distinct(loose[order])]
        loose, residual = loose[order], residual[order]
        impostors = self._impostors(torch.cat([self.exact, loose[:missing]]), IMPOSTORS, generator)
        threshold, likely = self.threshold, self.likely
        if len(impostors):
            rho = self.test.residual(impostors.float())
            threshold, likely = float(rho.quantile(LOWEST)), float(rho.median())
        return replace(self, loose=loose, residual=residual, threshold=threshold, likely=likely)

    def _impostors(self, images: Tensor, number: int, generator: torch.Generator) -> Tensor:
        pairs = torch.randint(max(len(images), 1), (2, number), generator=generator)
        first, second = pairs[:, pairs[0] != pairs[1]].to(images.device)
        return (images[first] + images[second]) / 2 if len(images) else images

    def veto(
        self, update: Tensor, generator: torch.Generator, noise: float = 0.0, images: Tensor | None = None
    ) -> tuple[str, float]:
        """(why nothing may be returned, or "", and ‖Δ − Δ P‖ / ‖Δ‖), for the second layer's Δ (R, out, W + 1) of every
        round and the projection P onto the features of the accepted in it: the least squares over all duals. noise:
        ‖E‖ / ‖Δ‖ of added noise, which no set explains. images: (M, in), instead of the accepted."""
        images = self.accepted() if images is None else images
        if not len(images):
            return f"nothing returned: no candidate has ρ below {self.threshold:.2g}, the threshold from impostors", 1.0
        left = self._left(images, update)
        impostors = self._left(self._impostors(images, len(images), generator), update)
        signal, null = (max(share**2 - noise**2, 0.0) ** 0.5 for share in (left, impostors))
        certified = len(self.exact) >= FEW_CERTIFIED * len(images)
        bound = UNEXPLAINED_ROUNDS if certified else UNEXPLAINED
        if signal < bound * null or (certified and len(update) == 1):
            return "", left
        return (
            f"nothing returned: {len(images)} candidates leave {left:.2g} of the second layer's update, "
            f"impostors {impostors:.2g} (at most {bound:g} of that beyond noise of {noise:.2g}); "
            f"{len(self.exact)} have sparse duals"
        ), left

    def _left(self, images: Tensor, update: Tensor) -> float:
        if not len(images):
            return 1.0
        features = self.test.features(images.float()).split(update.shape[2], 1)
        bases = [torch.linalg.qr(part.T)[0].T for part in features]
        rest = torch.stack([outside(delta, basis) for delta, basis in zip(update, bases, strict=True)])
        return float(rest.norm() / update.norm())
