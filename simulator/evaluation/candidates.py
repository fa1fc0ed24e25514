"""Which candidate images an update was trained on: no truth is needed, only images that are known to be no members."""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from attacks import InputError, Knowledge, Observation
from attacks.calibration import Calibrated
from attacks.membership import MembershipTest
from simulator.tools.candidates import membership_table, scale_warning, to_input_space

NOT_TRIED = "membership: not tried: give --candidates and --public"
GIVE_PUBLIC = (
    "membership: not tried: give --public, 9 or more images that are no members, and it is told which candidates took "
    "part"
)
NAME = "membership of the candidates"


class CandidateSource(Protocol):
    """Where candidates are read, on the worker that tells them: small and picklable."""

    def images(self) -> tuple[Tensor, Tensor]:
        """(candidates (Q, C, H, W), images that are no members (n, C, H, W)), in [0, 1]."""


class Told(NamedTuple):
    """columns: of the leakage table. notes: for its `detail`. table: the score of every candidate, as a CSV file."""

    columns: dict[str, Any]
    notes: list[str]
    table: bytes | None = None


def tell_candidates(source: CandidateSource, observation: Observation, knowledge: Knowledge) -> Told:
    """Tell members from others. What goes wrong costs these columns alone: a note says why they are empty."""
    try:
        candidates, outsiders = (to_input_space(images, observation, knowledge) for images in source.images())
        test = MembershipTest.of(observation, knowledge, torch.cat([candidates, outsiders]))
        residual = test.residual(candidates)
        found = Calibrated.of(residual, test.residual(outsiders))
        table = membership_table(residual, found).encode()
        warning = scale_warning(candidates, observation)
        notes = [*test.warnings, *([warning] if warning else [])]
        return Told({} if found is None else found.columns(), notes, table)
    except Exception as error:
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        return Told({}, [f"{NAME}: {kind}{error}"])
