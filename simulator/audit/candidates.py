"""Candidate images of an audit, and the images held out that calibrate who is told to be a member."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from attacks import InputError
from attacks.calibration import FEWEST_OUTSIDERS
from simulator.audit.images import Shape, read_images, read_truth


@dataclass(frozen=True)
class AuditCandidates:
    """Where they lie: an npz file, or a folder, as a truth may be."""

    path: Path
    public: Path
    shape: Shape

    def images(self) -> tuple[Tensor, Tensor]:
        candidates = read_truth(self.path, self.shape, "candidates").images
        return candidates, read_images(self.public, self.shape, "public images")


def check_candidates(path: str | None, public: str | None, shape: Shape) -> None:
    """InputError where candidates cannot be told apart, or cannot be read."""
    if path is None:
        return
    if public is None:
        raise InputError(
            f"--candidates {path!r} without --public: give images of the kind that are known to be no members, which "
            "calibrate the threshold"
        )
    _, outsiders = AuditCandidates(Path(path), Path(public), shape).images()
    if len(outsiders) < FEWEST_OUTSIDERS:
        raise InputError(
            f"--public {public!r} has {len(outsiders)} images, too few to calibrate who is a member: give at least "
            f"{FEWEST_OUTSIDERS}, better 999"
        )
