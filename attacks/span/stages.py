"""The four stages that every variant of the span attack goes through, and what each hands to the next."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from attacks.base import Facts, Progress, Reconstruction
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.networks.probing import biases_without_gradient, parameter_names
from attacks.update.intervals import seen_compression


def check_bias(observation: Observation, layer: str) -> None:
    """Raise InputError if the layer's weight moved and its bias did not: what it was fed is read off their quotient."""
    weight, bias = parameter_names(layer)
    if weight in observation.moved and bias not in observation.moved:
        seen = seen_compression(observation, Knowledge()) or "use 'ntk'"
        if bias in biases_without_gradient(observation.model, observation.input_shape, observation.pairs[0]):
            seen = "what is behind it takes it away again, as BatchNorm does with the mean of the batch: use 'ntk'"
        needs = f"attack 'span' needs what {bias!r} changed by, and unlike {weight!r} it was returned as it was sent"
        raise InputError(f"{needs} ({seen})")


@dataclass(frozen=True)
class Refusal:
    """Why no image may be returned from an update."""

    reason: str
    hopeless: bool = True
    """Whether a search could not even find candidates to hold back."""


class Evidence(Protocol):
    """What an update shows. Each variant has a type of its own."""

    @property
    def refusal(self) -> Refusal | None:
        """Why no image may be returned; None where a search may return some."""


@dataclass(eq=False)
class RoundsApart(Exception):
    """The rounds do not share one private set, as where clients take turns: each has to be attacked alone.

    rounds: indices of the pairs that images left a trace in.
    together, most: how many images all rounds show together, and the one that shows most of them.
    """

    rounds: tuple[int, ...]
    together: int
    most: int


@dataclass(frozen=True)
class Acceptance:
    """The images that may be returned, or the reason why none may.

    images: (M, …).
    residual: (M,), by which they are ranked.
    reason: None where images are accepted.
    relative_residual: ‖Δ − Δ P‖ / ‖Δ‖, what their features leave of the update that tests them.
    facts: measurements of the tests.
    held: (H, …), further candidates, best first. They are not returned, but in the attacker's hands all the same.
    features: (F, …), what was recovered of private images inside the network, where a variant finds that first.
    doubt: why candidates beside the accepted images are held, where a variant can say so.
    """

    images: Tensor
    residual: Tensor
    reason: str | None = None
    relative_residual: float = float("nan")
    facts: Facts = field(default_factory=dict)
    held: Tensor = field(default_factory=lambda: torch.zeros(0))
    features: Tensor | None = None
    doubt: str = ""

    @classmethod
    def none(cls, reason: str, relative_residual: float = float("nan")) -> "Acceptance":
        """Accept no image, for a reason."""
        return cls(torch.zeros(0), torch.zeros(0), reason, relative_residual)

    def withheld(self, reason: str) -> "Acceptance":
        """Hold all images, best first and before those held already, and return none, for a reason."""
        images = self.images[self.residual.argsort(stable=True)]
        held = torch.cat([images, self.held]) if len(self.held) else images
        return replace(self, images=images[:0], residual=self.residual[:0], reason=reason, held=held)

    def reported(self, shape: tuple[int, int, int], warnings: tuple[str, ...], **more: Any) -> Reconstruction:
        """Make the result with images of this shape (C, H, W), the reason behind the warnings. more: other fields."""
        return Reconstruction(
            images=self.images.reshape(-1, *shape),
            held=self.held.reshape(-1, *shape),
            residual=self.residual,
            warnings=(*warnings, *filter(None, (self.doubt, self.reason))),
            features=self.features,
            **{"relative_residual": self.relative_residual, "facts": self.facts, **more},
        )


EvidenceType = TypeVar("EvidenceType", bound=Evidence)
CandidatesType = TypeVar("CandidatesType")


class Variant(ABC, Generic[EvidenceType, CandidatesType]):
    """The span attack on one kind of network.

    Building a variant raises InputError where the network, or what the adversary knows, does not suffice.
    """

    def attack(self, generator: torch.Generator, progress: Progress) -> Reconstruction:
        """Read, search, accept and report. Raises RoundsApart where the rounds have to be attacked one by one."""
        evidence = self.read(generator)
        refusal = evidence.refusal
        if refusal is not None and refusal.hopeless:
            return self.report(evidence, Acceptance.none(refusal.reason))
        candidates = self.search(evidence, generator, progress)
        acceptance = self.accept(evidence, candidates, generator, progress)
        if refusal is not None:
            acceptance = replace(acceptance.withheld(refusal.reason), features=None)
        return self.report(evidence, acceptance).ranked()

    @abstractmethod
    def read(self, generator: torch.Generator) -> EvidenceType:
        """Read what the update shows, weight decay and known defenses undone. Raises InputError for one of zero, and
        RoundsApart."""

    @abstractmethod
    def search(self, evidence: EvidenceType, generator: torch.Generator, progress: Progress) -> CandidatesType:
        """Search candidates for private images; mark those that pass a test by themselves."""

    @abstractmethod
    def accept(
        self, evidence: EvidenceType, candidates: CandidatesType, generator: torch.Generator, progress: Progress
    ) -> Acceptance:
        """Choose the candidates that may be returned, as exact as the evidence allows."""

    @abstractmethod
    def report(self, evidence: EvidenceType, acceptance: Acceptance) -> Reconstruction:
        """Make the result, with what was measured and what is in doubt."""
