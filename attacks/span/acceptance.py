"""Which images may be returned: those that explain the second layer's update."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attacks.interface.attack import Facts
from attacks.span.search.candidates import Candidates, decoys_of
from attacks.span.search.problems import outside
from attacks.span.thresholds import ACCEPTANCE


@dataclass(frozen=True)
class Acceptance:
    """The images that may be returned, or the reason why none may.

    images: (M, …), and residual: (M,), the one by which they are ranked. reason: None where images are accepted.
    relative_residual: ‖Δ − Δ P‖ / ‖Δ‖, what their features leave of the update that tests them. facts: of the tests.
    held: (H, …), further candidates, best first, which are not returned but are in the attacker's hands all the same.
    """

    images: Tensor
    residual: Tensor
    reason: str | None = None
    relative_residual: float = float("nan")
    facts: Facts = field(default_factory=dict)
    held: Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def none(cls, reason: str, relative_residual: float = float("nan")) -> "Acceptance":
        """No image, for a reason."""
        return cls(torch.zeros(0), torch.zeros(0), reason, relative_residual)

    def withheld(self, reason: str) -> "Acceptance":
        """With all images held, best first and before what was held already, and none returned, for a reason."""
        images = self.images[self.residual.argsort(stable=True)]
        held = torch.cat([images, self.held]) if len(self.held) else images
        return replace(self, images=images[:0], residual=self.residual[:0], reason=reason, held=held)


@dataclass(frozen=True)
class ExplanationTest:
    """Whether images explain the second layer's update much better than as many decoys do.

    update: (R, out, W + 1), of the rounds that test. noise: ‖E‖ / ‖Δ‖ of noise in it, which no set of images explains.
    """

    candidates: Candidates
    update: Tensor
    noise: float = 0.0
    rounds: int = 1

    def judge(self, images: Tensor, generator: torch.Generator) -> Acceptance:
        """The images (M, in), in float32, with the reason why they may not be returned, if there is one."""
        if not len(images):
            threshold = self.candidates.threshold
            reason = f"nothing returned: no candidate has ρ below {threshold:.2g}, the threshold from decoys"
            return replace(Acceptance.none(reason, 1.0), images=images.float())
        left = self.relative_residual(images)
        by_chance = self.relative_residual(decoys_of(images, len(images), generator))
        passed = len(self.candidates.passed)
        enough = passed >= ACCEPTANCE.few_sparse * len(images)
        most = ACCEPTANCE.unexplained_sparse if enough else ACCEPTANCE.unexplained
        acceptance = Acceptance(images.float(), images.new_zeros(0), None, left)
        signal, null = (max(share**2 - self.noise**2, 0.0) ** 0.5 for share in (left, by_chance))
        if signal < most * null or (enough and self.rounds == 1):
            return acceptance
        reason = (
            f"nothing returned: {len(images)} candidates leave {left:.2g} of the second layer's update, "
            f"decoys {by_chance:.2g} (at most {most:g} of that beyond noise of {self.noise:.2g}); "
            f"{passed} have sparse duals"
        )
        return replace(acceptance, reason=reason)

    def relative_residual(self, images: Tensor) -> float:
        """‖Δ − Δ P‖ / ‖Δ‖, P the projection onto the images' features in every round: least squares over all duals."""
        if not len(images):
            return 1.0
        features = self.candidates.test.features(images.float()).split(self.update.shape[2], 1)
        bases = [torch.linalg.qr(part.T)[0].T for part in features]
        rest = torch.stack([outside(delta, basis) for delta, basis in zip(self.update, bases, strict=True)])
        return float(rest.norm() / self.update.norm())
