"""Candidate images from a file, and how `fedspill member` writes their scores."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attacks import InputError, Knowledge, Observation
from attacks.update.pixel_mean import infer_pixel_mean
from simulator.results.schema import CANDIDATES
from simulator.results.storage import make_out, write_atomically


def load_candidates(path: Path, called: str = "candidates") -> Tensor:
    """`images` of an npz file, (Q, C, H, W) float32. called: how errors call them."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            held = list(arrays)
            images = arrays["images"] if "images" in held else None
    except FileNotFoundError:
        raise InputError(f"{called} {str(path)!r} do not exist") from None
    except (OSError, ValueError, TypeError):
        raise InputError(
            f"{called} {str(path)!r} are no npz file: write one with numpy.savez(FILE, images=…)"
        ) from None
    if images is None:
        raise InputError(f"{called} {str(path)!r} hold {', '.join(held) or 'nothing'}, no array `images`")
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
    """Images in [0, 1] as the clients of a run saw them, by the mean that the adversary knows or infers."""
    mean = knowledge.pixel_mean or infer_pixel_mean(observation)
    if mean is None:
        raise InputError("pixel_mean is unknown and the update does not tell it: add --know pixel_mean=…")
    if len(mean) != images.shape[1]:
        raise InputError(f"images have {images.shape[1]} channels, pixel_mean has {len(mean)} values")
    return images - torch.tensor(mean).view(1, -1, 1, 1)


def write_membership(out: Path, residual: Tensor) -> None:
    """membership.csv: index, residual ρ, and the score −log ρ, higher for members."""
    make_out(out)
    scores = {"index": range(len(residual)), "residual": residual.numpy(), "score": -residual.log().numpy()}
    frame = CANDIDATES.frame(scores)
    write_atomically(out / "membership.csv", frame.to_csv(index=False))
