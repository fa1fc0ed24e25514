"""What the stages of the span attack hand to one another, and the four methods that every variant of it has."""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from attacks.interface.attack import Progress, Reconstruction
from attacks.interface.observation import Observation


@dataclass(frozen=True)
class RoundsApart:
    """Evidence that the rounds do not share one private set, as where clients take turns: each is attacked alone.

    rounds: indices of the pairs that images left a trace in. together: how many images all of them show. most: how
    many the round shows that shows most of them.
    """

    rounds: tuple[int, ...]
    together: int
    most: int


@dataclass(frozen=True)
class Acceptance:
    """The images that may be returned, or the reason why none may.

    images: (M, …), and residual: (M,), the one by which they are ranked. reason: None where images are accepted.
    relative_residual: ‖Δ − Δ P‖ / ‖Δ‖, what their features leave of the update that tests them. facts: of the tests.
    """

    images: Tensor
    residual: Tensor
    reason: str | None = None
    relative_residual: float = float("nan")
    facts: dict[str, float] = field(default_factory=dict)

    @classmethod
    def none(cls, reason: str, relative_residual: float = float("nan")) -> "Acceptance":
        """No image, for a reason."""
        return cls(torch.zeros(0), torch.zeros(0), reason, relative_residual)


class Variant(Protocol):
    """The span attack on one kind of network. Evidence and candidates are of types of its own; the evidence has a
    `refusal`, which says why a search makes no sense, and is None where it does.

    Building a variant raises InputError where the network, or what the adversary knows, does not suffice.
    """

    @property
    def observation(self) -> Observation: ...

    def read(self, generator: torch.Generator) -> Any:
        """What the update shows, once weight decay and known defenses are undone; `RoundsApart` where the rounds have
        to be attacked alone. Raises InputError for an update of zero."""

    def search(self, evidence: Any, generator: torch.Generator, progress: Progress) -> Any:
        """Candidates for private images, those that pass a test by themselves marked as such."""

    def accept(self, evidence: Any, candidates: Any, generator: torch.Generator) -> Acceptance:
        """Which candidates may be returned, made as exact as the evidence allows."""

    def report(self, evidence: Any, acceptance: Acceptance) -> Reconstruction:
        """The result, with what was measured and what is in doubt."""


def mean_or_half(mean: tuple[float, ...] | None, channels: int, why: str) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """The mean that was subtracted from the pixels, and a warning where it has to be assumed; why: nothing tells it."""
    if mean is not None:
        return tuple(mean), ()
    return (0.5,) * channels, (f"pixel_mean is unknown and {why}: 0.5 was assumed",)
