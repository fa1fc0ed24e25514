"""What the passes of a search have found so far, and which of it is accepted.

The mean of two candidates is not a private image. Such means are the decoys: their ρ is the null distribution, taken
from the attacker's own data, and a candidate is accepted below its lowest percent.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.span.search.descent import beside, distinct
from attacks.span.search.problems import SpanTest
from attacks.span.sparsity.dual_space import DualSpace
from attacks.span.sparsity.many_duals import sparsest_of_many
from attacks.span.sparsity.sparse_duals import fewest_zeros, retry_doubtful, sparsest
from attacks.span.thresholds import ACCEPTANCE, DECOY, SPARSITY


@dataclass(frozen=True)
class Candidates:
    """Images that passed the sparsity test, and loose candidates, which did not; all in float64.

    passed: (F, in), and directions: (F, N), the c of their duals. loose: (P, in), freed from what they share with those
    that passed, and residual: (P,), their ρ, lowest first. threshold: ρ below which a loose candidate is accepted, and
    decoy_median: the median ρ of the decoys. sparsity_tested: whether duals have zeros that can be tested (ReLU only).
    passes: how many passes of the search it took to find them.
    """

    duals: DualSpace
    test: SpanTest
    directions: Tensor
    passed: Tensor
    loose: Tensor
    residual: Tensor
    threshold: float = 0.0
    decoy_median: float = float("inf")
    sparsity_tested: bool = True
    crowded: bool = False
    passes: int = 0

    @classmethod
    def empty(
        cls, duals: DualSpace, test: SpanTest, sparsity_tested: bool = True, crowded: bool = False
    ) -> "Candidates":
        images, directions = duals.rows.new_zeros(0, duals.rows.shape[1] - 1), duals.values.new_zeros(0, duals.count)
        none = images[:, 0].float()
        return cls(duals, test, directions, images, images, none, sparsity_tested=sparsity_tested, crowded=crowded)

    @property
    def missing(self) -> int:
        """How many images have not passed yet."""
        return self.duals.count - len(self.passed)

    def below(self, bound: float) -> Tensor:
        """The loose candidates with ρ below a bound, best first, and no more than images are missing."""
        return self.loose[self.residual < bound][: self.missing]

    def accepted(self) -> Tensor:
        """The images that passed, but for those with a ρ worse than half of the decoys', and accepted loose ones."""
        known = self.passed[self.test.residual(self.passed.float()) < self.decoy_median]
        return torch.cat([known, self.below(self.threshold)])

    def held(self, returned: Tensor) -> Tensor:
        """The best candidates beside those returned (M, in), passed or not, lowest ρ first: (H, in) in float32; two for
        every image with those returned."""
        everything = torch.cat([self.passed, self.loose]).float()
        everything = everything[self.test.residual(everything).argsort(stable=True)]
        room = int(ACCEPTANCE.held_per_image * self.duals.count) - len(returned)
        return everything[beside(returned.float(), everything)][: max(0, room)]

    def num_accepted_and_passed(self) -> tuple[int, int]:
        """How many images are accepted, and how many passed the sparsity test: by these a pass is judged."""
        return len(self.accepted()), len(self.passed)

    def deflating_features(self, with_passed: bool) -> Tensor | None:
        """Orthonormal features (F, W + 1) of what deflates, if anything does: loose candidates of a ρ far below the
        threshold and, where asked for, the images that passed."""
        surest = self.below(DECOY.deflating_share * self.threshold)
        images = torch.cat([self.passed, surest]) if with_passed else surest
        return torch.linalg.qr(self.test.features(images.float()).T)[0].T.contiguous() if len(images) else None

    def merge(self, images: Tensor, generator: torch.Generator) -> "Candidates":
        """With further candidates (M, in), the best of which take the sparsity test."""
        found = self._ranked(torch.cat([self.loose, images]), generator)
        if not self.sparsity_tested:
            return found
        duals = self.duals
        tested = found.loose if self.crowded else found.loose[: SPARSITY.tested_per_missing * self.missing]
        rough, known = duals.coordinates(tested), duals.coordinates(self.passed)
        if self.crowded:
            sought = sparsest_of_many(duals, rough, known)
        else:
            sure = torch.zeros(len(tested), dtype=torch.bool, device=tested.device)
            sure[: len(found.below(found.threshold))] = True
            sought = sparsest(duals, rough, sure, known)
        directions = torch.cat([self.directions, sought])
        kept = duals.passing(directions)
        directions, rough = directions[kept], torch.cat([known, rough])[kept]
        directions = retry_doubtful(duals, rough, directions)
        still = duals.passing(directions)
        directions, rough, kept = directions[still], rough[still], kept[still]
        passed = duals.images(duals.disentangle(rough, directions))
        loose = torch.ones(len(found.loose), dtype=torch.bool, device=kept.device)
        loose[kept[kept >= len(known)] - len(known)] = False  # what is left of one that passed is no image
        return replace(found, directions=directions, passed=passed)._ranked(found.loose[loose], generator)

    def with_weakest_released(self) -> "Candidates":
        """With the images that passed with the fewest zeros as loose candidates: a mixture hides what it is made of."""
        kept = torch.ones(len(self.directions), dtype=torch.bool, device=self.directions.device)
        kept[fewest_zeros(self.duals, self.directions)] = False
        released = self.passed[~kept]
        residual = torch.cat([self.test.residual(released.float()), self.residual])
        order = residual.argsort(stable=True)
        loose = torch.cat([released, self.loose])[order]
        directions, passed = self.directions[kept], self.passed[kept]
        return replace(self, directions=directions, passed=passed, loose=loose, residual=residual[order])

    def _ranked(self, loose: Tensor, generator: torch.Generator) -> "Candidates":
        """With these loose candidates (M, in) instead, distinct and best first, and thresholds from new decoys."""
        loose = self.duals.images(self.duals.without(self.duals.coordinates(loose), self.directions))
        loose = loose[loose.isfinite().all(1)] if self.missing else loose[:0]
        residual = self.test.residual(loose.float())
        order = residual.argsort(stable=True)
        order = order[distinct(loose[order])]
        ranked = replace(self, loose=loose[order], residual=residual[order])
        decoys = decoys_of(torch.cat([self.passed, ranked.loose[: self.missing]]), DECOY.number, generator)
        if not len(decoys):
            return ranked
        rho = self.test.residual(decoys.float())
        threshold = float(rho.quantile(DECOY.accepting_quantile))
        return replace(ranked, threshold=threshold, decoy_median=float(rho.median()))


def decoys_of(images: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Means of two of the images (M, …): `number` pairs are drawn, and those of an image with itself left out.

    A single image is paired with its own pixels in random orders.
    """
    if len(images) == 1:
        orders = torch.rand(number, images[0].numel(), generator=generator).argsort(1).to(images.device)
        return (images + images.flatten()[orders].view(number, *images.shape[1:])) / 2
    pairs = torch.randint(max(len(images), 1), (2, number), generator=generator)
    first, second = pairs[:, pairs[0] != pairs[1]].to(images.device)
    return (images[first] + images[second]) / 2 if len(images) else images
