"""Candidate images from a file, and how `fedspill member` writes their scores."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attacks import InputError, Knowledge, Observation
from attacks.calibration import Calibrated
from attacks.interface.normalization import Normalization
from attacks.update.pixel_mean import infer_pixel_mean
from clients.data.files import npz_array
from simulator.results.disk import make_out, write_atomically
from simulator.results.schema import CANDIDATES

MOST_NORMALIZED = 20.0  # that inputs of networks have in size; pixels up to 255 have more
BLACK_WITHIN = 0.05  # of the range of the images, between their black and that of the update


def load_candidates(path: Path, called: str = "candidates") -> Tensor:
    """`images` of an npz file, (Q, C, H, W) float32. called: how errors call them."""
    if not path.exists():
        raise InputError(f"{called} {str(path)!r} do not exist")
    images = npz_array(path, "images", called)
    if not len(images):
        raise InputError(f"{called} {str(path)!r}: `images` is empty: give at least one")
    if images.ndim != 4 or not np.issubdtype(images.dtype, np.floating):
        raise InputError(
            f"{called} {str(path)!r}: `images` is {images.dtype} {images.shape}, it has to be float "
            "(number, channels, height, width)"
        )
    if not np.isfinite(images).all():
        raise InputError(f"{called} {str(path)!r}: `images` holds values that are not finite")
    return torch.from_numpy(images.astype(np.float32))


def to_input_space(images: Tensor, observation: Observation, knowledge: Knowledge) -> Tensor:
    """Images in [0, 1] as the clients saw them, by the mean and the deviation that the adversary knows; a mean that it
    does not know is inferred."""
    mean = knowledge.pixel_mean or infer_pixel_mean(observation, knowledge.pixel_std)
    if mean is None:
        raise InputError("pixel_mean is unknown and the update does not tell it: add --know pixel_mean=…")
    if len(mean) != images.shape[1]:
        raise InputError(f"images have {images.shape[1]} channels, pixel_mean has {len(mean)} values")
    return Normalization(mean, knowledge.pixel_std or ()).inputs(images)


def scale_warning(inputs: Tensor, observation: Observation) -> str | None:
    """A line where images in the model's input space (N, C, H, W) are on another scale than those of the update; None
    where that is not seen. What is compared is black, which an update tells where some pixel is black in every private
    image, and else nothing but the size of the values."""
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


def write_membership(path: Path, residual: Tensor, found: Calibrated | None) -> None:
    make_out(path.parent)
    write_atomically(path, membership_table(residual, found))


def membership_table(residual: Tensor, found: Calibrated | None) -> str:
    """As CSV: index, residual ρ, the score −log ρ, higher for members, and who is told to be one, where that is
    calibrated."""
    members = [None] * len(residual) if found is None else list(map(int, found.members))
    scores = {"index": range(len(residual)), "residual": residual.numpy(), "score": -residual.log().numpy()}
    return CANDIDATES.frame({**scores, "member": members}).to_csv(index=False)
