"""Tell which candidate images an update was trained on: read them, score them, write the scores, say what they mean.

No truth is needed, only images that are known to be no members: they calibrate who is told to be one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from attacks import InputError, Knowledge, Observation
from attacks.calibration import FEWEST_OUTSIDERS, OUTSIDE, Calibrated
from attacks.gradient_membership import tell_members
from attacks.interface.normalization import Normalization
from attacks.networks.probing import norms_of_batches
from attacks.scoring.images import Distinct
from attacks.update.private_set import infer_pixel_mean
from attacks.update.spectrum import infer_image_count
from simulator.evaluation.image_files import ImageFiles, Shape, no_members, read_truth
from simulator.evaluation.truth import Measured
from simulator.results.schema import CANDIDATES

WIDE_GAP = 1.0  # in score: the residuals on its two sides differ by a factor of e


def membership_words(
    residual: Tensor, outsiders: Tensor | None, num_private: int | None, clear_rank: bool = False
) -> list[str]:
    """Say in sentences, with a threshold and counts, which candidates are members.

    residual: (Q,) of the candidates. outsiders: (P,) of images that are known to be no members, held out to calibrate
    the threshold; None if there are none. num_private: images that the update was trained on, None if unknown.
    clear_rank: whether it spans its images (`spans_images`).
    """
    scores = -residual.double().log()
    uncalibrated = _by_gap(scores, num_private)
    if clear_rank:
        uncalibrated = [
            f"{spanned(residual)} of {len(residual)} candidates lie in the span of the update (score above "
            f"{-math.log(OUTSIDE):.2f}), as members do; {NO_RATE}"
        ]
    if outsiders is None:
        return uncalibrated
    found = Calibrated.of(residual, outsiders)
    if found is None:
        few = f"{len(outsiders)} images that are no members are too few to calibrate a threshold: give at least"
        return [f"{few} {FEWEST_OUTSIDERS}", *uncalibrated]
    said = (
        f"{found.told} of {found.candidates} candidates are told to be members at a false-positive rate of at most "
        f"{100 * found.rate:g} %: score above {found.threshold:.2f}, which at most {found.passed} of {found.outsiders} "
        "images that are no members reach"
    )
    chance = f"about {found.rate * found.candidates:.1f}"
    if not found.tells:
        return [f"{said}; {chance} would be by chance (p = {found.p:.2g}): this update does not tell"]
    return [f"{said}; {chance} of them are by chance"]


NO_RATE = "how many of them are false alarms is not known: give images that are no members with --public"


def spans_images(observation: Observation) -> bool:
    """Return whether an update's first layer has a clear rank, so that it spans its images. Where BatchNorm normalized
    batches it may span their differences alone, and members lie outside."""
    count = infer_image_count(observation)
    clear = count is not None and count.has_spectral_gap
    return clear and not any(norms_of_batches(*pair) for pair in observation.pairs)


def spanned(residual: Tensor) -> int:
    """Return how many of the images with these residuals (Q,) lie in the span of an update of a clear rank."""
    return int((residual < OUTSIDE).sum())


def _by_gap(scores: Tensor, num_private: int | None) -> list[str]:
    """Say whether the scores fall into two groups: without outsiders there is no rate of false alarms."""
    order = scores.sort(descending=True).values
    if len(order) < 2:
        return [f"the candidate's score is {float(order[0]):.2f}; {NO_RATE}"]
    gaps = order[:-1] - order[1:]
    above = int(gaps.argmax()) + 1
    if num_private is None or float(gaps.max()) < WIDE_GAP or above > num_private:
        return [
            f"the scores, {float(order[-1]):.2f} to {float(order[0]):.2f}, form no two groups: which candidates took "
            "part is not told without a threshold, which images that are no members set: give them with --public"
        ]
    return [
        f"{above} of {len(order)} candidates look like members: their scores are {float(order[above - 1]):.2f} to "
        f"{float(order[0]):.2f}, all others' at most {float(order[above]):.2f}, and the update holds {num_private} "
        f"images; {NO_RATE}"
    ]


MOST_NORMALIZED = 20.0  # that inputs of networks have in size; pixels up to 255 have more
BLACK_WITHIN = 0.05  # of the range of the images, between their black and that of the update


def labels_of(files: Sequence[ImageFiles]) -> Tensor | None:
    """Return the classes of the images of some files, one behind the other; None where a file does not tell them."""
    known = [file.labels for file in files if file.labels is not None]
    return torch.cat(known) if len(known) == len(files) else None


def to_input_space(images: Tensor, observation: Observation, knowledge: Knowledge) -> Tensor:
    """Normalize images in [0, 1] as the clients do, by the mean and the deviation that the adversary knows; an unknown
    mean is inferred."""
    mean = knowledge.pixel_mean or infer_pixel_mean(observation, knowledge.pixel_std)
    if mean is None:
        raise InputError("pixel_mean is unknown and the update does not tell it: add --know pixel_mean=…")
    return Normalization(mean, knowledge.pixel_std or ()).inputs(images)


def scale_warning(inputs: Tensor, observation: Observation) -> str | None:
    """Return a line if images in the model's input space (N, C, H, W) are on another scale than those of the update,
    else None. It compares black, which an update tells if some pixel is black in every private image, and else the size
    of the values."""
    mean = infer_pixel_mean(observation)
    lowest, highest = inputs.transpose(0, 1).flatten(1).aminmax(dim=1)
    give = "give pixels in [0, 1] and say how they are normalized, with --mean and --std"
    if mean is None:
        if float(inputs.abs().max()) <= MOST_NORMALIZED:
            return None
        return f"the images reach up to {float(inputs.abs().max()):.3g}, which is no network's input: {give}"
    black = -torch.tensor(mean)
    if bool(((lowest - black).abs() <= BLACK_WITHIN * (highest - lowest)).all()):
        return None
    shown = [", ".join(f"{value:.3g}" for value in values.tolist()) for values in (black, lowest)]
    return f"black is {shown[0]} in the update and {shown[1]} in the images, which are on another scale: {give}"


def untold_warning(inputs: Tensor, observation: Observation) -> str | None:
    """Return a line if images (N, C, H, W) that are taken for a network's inputs may be pixels: they lie in [0, 1], and
    the update does not tell its black. Of pixels that training normalizes no member is found."""
    lowest, highest = map(float, inputs.aminmax())
    if lowest < 0 or highest > 1 or infer_pixel_mean(observation) is not None:
        return None
    return "images in [0, 1] are taken as the network is fed them: give --mean and --std if training normalizes"


def membership_table(residual: Tensor, found: Calibrated | None, different: Distinct) -> str:
    """Return as CSV: index, residual ρ, the score −log ρ, higher for members, and, if calibrated, who is a member.

    residual: (Q,) of all candidates. found: of the different ones alone.
    """
    members = [None] * len(residual) if found is None else [int(found.members[of]) for of in different.of]
    scores = {"index": range(len(residual)), "residual": residual.numpy(), "score": -residual.log().numpy()}
    return CANDIDATES.frame({**scores, "member": members}).to_csv(index=False)


NOT_TRIED = "membership: not tried: give --candidates and --public"
GIVE_PUBLIC = (
    "membership: not tried: give --public, 9 or more images that are no members, and it is told which candidates took "
    "part"
)
NAME = "membership of the candidates"


@dataclass(frozen=True)
class AuditCandidates:
    """The candidates of an audit: an npz file, or a folder, as a truth may be. A worker reads them."""

    path: Path
    public: Path
    shape: Shape

    def files(self) -> tuple[ImageFiles, ImageFiles, str]:
        """Return (candidates, images that are no members, a line on public images that were left out)."""
        candidates = read_truth(self.path, self.shape, "candidates")
        outsiders, left_out = without_candidates(read_truth(self.public, self.shape, "public images"), candidates)
        return candidates, outsiders, left_out


def without_candidates(public: ImageFiles, candidates: ImageFiles) -> tuple[ImageFiles, str]:
    """Leave out public images that are candidates, too, and copies: they calibrate no rate. Return a line on them."""
    kept, line = no_members(public.images, candidates.images, "the candidates")
    labels = None if public.labels is None else public.labels[kept]
    return ImageFiles(public.names, (int(kept.sum()),), public.images[kept], False, labels), line


def tell_candidates(source: AuditCandidates, observation: Observation, knowledge: Knowledge) -> Measured:
    """Tell members from others. A fault costs these columns alone: a note says why they are empty."""
    try:
        observation.without_zero_updates()  # raises where there is nothing to tell anybody from
        *files, left_out = source.files()
        candidates, outsiders = (to_input_space(file.images, observation, knowledge) for file in files)
        told = tell_members(observation, knowledge, torch.cat([candidates, outsiders]), labels_of(files))
        residual, others = told.residual.split([len(candidates), len(outsiders)])
        different = Distinct.among(files[0].images)
        found = Calibrated.of(residual[different.first], others)
        table = membership_table(residual, found, different).encode()
        notes = [*told.warnings, *filter(None, [scale_warning(candidates, observation), left_out])]
        return Measured({} if found is None else found.columns(), notes, table=table)
    except Exception as error:
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        return Measured({}, [f"{NAME}: {kind}{error}"])


def check_candidates(path: str | None, public: str | None, shape: Shape) -> None:
    """Raise InputError if candidates cannot be told apart, or cannot be read."""
    if path is None:
        return
    if public is None:
        raise InputError(
            f"--candidates {path!r} without --public: give images of the kind that are known to be no members, which "
            "calibrate the threshold"
        )
    _, others, left_out = AuditCandidates(Path(path), Path(public), shape).files()
    outsiders = others.images
    if len(outsiders) < FEWEST_OUTSIDERS:
        raise InputError(
            f"--public {public!r} has {len(outsiders)} images{f' ({left_out})' if left_out else ''}, too few to "
            f"calibrate who is a member: give at least {FEWEST_OUTSIDERS}, better 999"
        )
