"""Which candidate images an update was trained on: no truth is needed, only images that are known to be no members."""

from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from attacks import InputError, Knowledge, Observation
from attacks.calibration import Calibrated
from attacks.membership import MembershipTest
from simulator.tools.candidates import scale_warning, to_input_space, write_membership

NOT_TRIED = "membership: not tried: give --candidates and --public"
NAME = "membership of the candidates"


class CandidateSource(Protocol):
    """Where candidates are read, on the worker that tells them: small and picklable."""

    def images(self) -> tuple[Tensor, Tensor]:
        """(candidates (Q, C, H, W), images that are no members (n, C, H, W)), in [0, 1]."""


class Told(NamedTuple):
    """columns: of the leakage table. notes: for its `detail`."""

    columns: dict[str, Any]
    notes: list[str]


def tell_candidates(source: CandidateSource, observation: Observation, knowledge: Knowledge, path: Path) -> Told:
    """Tell members from others, and write every candidate's score to `path`. What goes wrong costs these columns and
    nothing else: a note says why they are empty."""
    try:
        candidates, outsiders = (to_input_space(images, observation, knowledge) for images in source.images())
        test = MembershipTest.of(observation, knowledge, torch.cat([candidates, outsiders]))
        residual = test.residual(candidates)
        found = Calibrated.of(residual, test.residual(outsiders))
        write_membership(path, residual, found)
        warning = scale_warning(candidates, observation)
        return Told({} if found is None else found.columns(), [*test.warnings, *([warning] if warning else [])])
    except Exception as error:
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        return Told({}, [f"{NAME}: {kind}{error}"])
