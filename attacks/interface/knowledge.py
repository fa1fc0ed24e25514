"""What the adversary may use beyond the checkpoints: its side information, every field unknown unless it is granted.

How many candidate images an optimization moves, and how many it may: every one of them takes memory in each step.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.interface.pictures import Normalization

DEFENSE_FIELDS = ("clip_norm", "noise_scale", "noise_std", "kept_fraction", "quantization_bits", "significant_bits")
MOST_COUNT = 10**6  # of images and steps of one client in one round
MOST_BITS = 32  # of an entry: more than parameters have say nothing


@dataclass(frozen=True)
class Knowledge:
    """What the adversary was told beyond its observation. Every field defaults to unknown (None).

    num_private: number of private images. labels: (N,) class of each.
    pixel_mean: per-channel mean that the federation subtracts from pixels in [0, 1]. pixel_std: per-channel deviation
    that it divides by after that; unknown is taken for 1. pixel_range: (low, high) of the raw pixels. learning_rate,
    steps, batch_size, weight_decay: of local training. optimizer: sgd, adam or adamw. momentum: of sgd. betas: of adam
    and adamw, how much of both moments a step keeps. batches: which images each step used, as indices into `labels`.
    public_images: (P, C, H, W) in the model's input space.

    Of the defense in force, for an adaptive attacker. clip_norm: of the update or a gradient. noise_scale, noise_std:
    of Gaussian noise on the update, its norm relative to the update's, and its standard deviation on an entry.
    kept_fraction: of the update's entries, the others were set to zero. quantization_bits: of an entry.
    significant_bits: of a parameter as it was sent, 8 in bfloat16 and 11 in float16.
    """

    num_private: int | None = None
    labels: tuple[int, ...] | None = None
    pixel_mean: tuple[float, ...] | None = None
    pixel_std: tuple[float, ...] | None = None
    pixel_range: tuple[float, float] | None = None
    learning_rate: float | None = None
    steps: int | None = None
    batch_size: int | None = None
    optimizer: str | None = None
    momentum: float | None = None
    betas: tuple[float, float] | None = None
    weight_decay: float | None = None
    batches: tuple[tuple[int, ...], ...] | None = None
    clip_norm: float | None = None
    noise_scale: float | None = None
    noise_std: float | None = None
    kept_fraction: float | None = None
    quantization_bits: int | None = None
    significant_bits: int | None = None
    public_images: Tensor | None = None

    def __repr__(self) -> str:
        """Known fields alone, as they were given; images as their number."""
        told = [f"{name}={value!r}" for name, value in self.given().items() if name != "public_images"]
        images = () if self.public_images is None else (f"public_images=<{len(self.public_images)} images>",)
        return f"Knowledge({', '.join((*told, *images))})"

    @classmethod
    def names(cls) -> list[str]:
        return [field.name for field in fields(cls)]

    def given(self) -> dict[str, Any]:
        """The known fields as plain values, for the table; images appear as their number."""
        known = {name: getattr(self, name) for name in self.names() if getattr(self, name) is not None}
        return {name: len(value) if isinstance(value, torch.Tensor) else value for name, value in known.items()}

    def input_bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """(lowest, highest) value of a network's input, (1, C, 1, 1) each, of the dtype and on the device of `like`.

        pixel_mean has to be known; pixels that nothing is told of lie in [0, 1].
        """
        low, high = self.pixel_range or (0.0, 1.0)
        assert self.pixel_mean is not None
        normalization = Normalization(self.pixel_mean, self.pixel_std or ())
        lowest, highest = (
            normalization.inputs(like.new_full((1, len(self.pixel_mean), 1, 1), end)) for end in (low, high)
        )
        return lowest, highest

    def require(self, attack: str, *needed: str, because: str = "") -> None:
        """Raise InputError naming the fields in `needed` that are unknown."""
        missing = [name for name in needed if getattr(self, name) is None]
        if missing:
            reason = f" ({because})" if because else ""
            raise InputError(
                f"attack {attack!r} needs {', '.join(missing)}, which the adversary does not know{reason}: "
                "grant it under adversary.knowledge, or with --know"
            )

    def __post_init__(self) -> None:
        for name in ("num_private", "steps", "batch_size", "learning_rate", *DEFENSE_FIELDS):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InputError(f"knowledge {name} is {value}, it has to be positive and finite")
        for name in ("momentum", "betas"):
            value = getattr(self, name)
            parts = value if isinstance(value, tuple) else () if value is None else (value,)
            if not all(0 <= part < 1 for part in parts):
                raise InputError(f"knowledge {name} is {value}, it has to be from 0 to below 1")
        if self.weight_decay is not None and not 0 <= self.weight_decay < math.inf:
            raise InputError(f"knowledge weight_decay is {self.weight_decay}, it has to be 0 or positive, and finite")
        limits = {"kept_fraction": 1, "quantization_bits": MOST_BITS, "significant_bits": MOST_BITS}
        for name, most in (limits | dict.fromkeys(("num_private", "steps", "batch_size"), MOST_COUNT)).items():
            value = getattr(self, name)
            if value is not None and value > most:
                raise InputError(f"knowledge {name} is {value}, it has to be at most {most}")
        if self.pixel_mean is not None and not all(map(math.isfinite, self.pixel_mean)):
            raise InputError(f"knowledge pixel_mean is {self.pixel_mean}, every channel's has to be finite")
        if self.pixel_std is not None and not all(std > 0 and math.isfinite(std) for std in self.pixel_std):
            raise InputError(f"knowledge pixel_std is {self.pixel_std}, every channel's has to be positive and finite")
        if self.pixel_range is not None:
            low, high = self.pixel_range
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise InputError(f"knowledge pixel_range is {self.pixel_range}, it has to be (lowest, highest), finite")
        if self.labels is not None and not (self.labels and min(self.labels) >= 0):
            raise InputError(f"knowledge labels is {self.labels}: name the class of every image, from 0")
        if self.batches is not None and not (self.batches and all(self.batches)):
            raise InputError("knowledge batches has no step, or a step without images: list the images of every step")


MOST_CANDIDATES = 10_000  # twenty times those of 250 private images
MOST_PIXELS = 2**28  # of all candidates: a gibibyte in float32


def count_candidates(
    attack: str, shape: tuple[int, int, int], knowledge: Knowledge, factor: float = 1.0, number: int | None = None
) -> int:
    """`number`, or else `factor` times the private images, one at least.

    attack: its name. shape: (C, H, W) of an image. InputError, before memory is asked for, for more than there may be.
    """
    private = knowledge.num_private or 1
    count, most = number or factor * private, max(1, min(MOST_CANDIDATES, MOST_PIXELS // math.prod(shape)))
    if count > most:
        told = f"num_private is {private:,}" if knowledge.num_private else ""
        asked = " and ".join(filter(None, (told, f"candidates is {factor:g}" if factor != 1 else "")))
        asked, size = asked if number is None else f"num_candidates is {number:,}", "×".join(map(str, shape))
        raise InputError(f"attack {attack!r}: {asked}; at most {most:,} candidates of {size} fit in memory: lower it")
    return max(1, round(count))
