"""What the adversary is told beside the checkpoints (`Knowledge`), and how many candidates an attack starts from."""

import math
import operator
from dataclasses import dataclass, fields
from typing import Annotated, Any, NamedTuple, SupportsIndex, get_args

import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.interface.normalization import Normalization
from attacks.interface.options import POSITIVE, Range, meanings, misfits, no_more_than

DEFENSE_FIELDS = ("clip_norm", "noise_scale", "noise_std", "kept_fraction", "quantization_bits", "significant_bits")
MOST_COUNT = 10**6  # of images and steps of one client in one round
MOST_BITS = 32  # of an entry: parameters have no more


class About(NamedTuple):
    """How a field of `Knowledge` is written and described.

    example: a value as `--know FIELD=VALUE` and YAML take it.
    words: how a sentence of a verdict calls the field; "" for its own name.
    meaning: with unit and reference, for docs/reference/scenarios.md.
    """

    example: str
    words: str = ""
    meaning: str = ""


DECAY = Range("has to be from 0 to below 1", 0, 1, with_low=True)
FINITE = Range("has to be finite")
NOT_NEGATIVE_FINITE = Range("has to be 0 or positive, and finite", 0, with_low=True)
Positive = Annotated[float | None, POSITIVE]
Count = Annotated[int | None, POSITIVE, no_more_than(MOST_COUNT)]
Bits = Annotated[int | None, POSITIVE, no_more_than(MOST_BITS)]
Batches = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Knowledge:
    """What the adversary was told beyond its observation. Every field is unknown (None) unless it is granted.

    The fields from `clip_norm` to `significant_bits` are of the defense in force, for an adaptive attacker. Public
    images are (P, C, H, W), in the model's input space.

    num_private: number of private images behind the update, as FedAvg's clients report it
    labels: class of every private image, counted from 0
    pixel_mean: what is subtracted from pixels in [0, 1], one value per channel, as `data.mean` and `--mean`
    pixel_std: what is divided by after that, one value per channel, as `data.std` and `--std`; unknown is taken for 1
    pixel_range: lowest and highest value of pixels before mean and std, 0 and 1 unless images are on another scale
    learning_rate, batch_size, weight_decay: of local training
    steps: of local training in a round
    optimizer: sgd, adam or adamw
    momentum: of sgd
    betas: of adam and adamw
    batches: which images each local step used, as positions in `labels`
    clip_norm: that the update, or each gradient, was clipped to
    noise_scale: norm of Gaussian noise on the update, relative to the update's
    noise_std: standard deviation of Gaussian noise on an entry of the update
    kept_fraction: share of the update's entries that were sent, the others being 0
    quantization_bits: of an entry of the update
    significant_bits: of a parameter as it was sent: 8 in bfloat16, 11 in float16
    public_images: images of the kind that are nobody's secret; `true` grants the public pool
    """

    num_private: Annotated[Count, About("20", "the number of private images")] = None
    labels: Annotated[tuple[int, ...] | None, About("[3, 3, 7]", "their labels")] = None
    pixel_mean: Annotated[tuple[float, ...] | None, FINITE, About("[0.4914, 0.4822, 0.4465]", "the mean")] = None
    pixel_std: Annotated[tuple[float, ...] | None, POSITIVE, About("[0.2470, 0.2435, 0.2616]", "the deviation")] = None
    pixel_range: Annotated[tuple[float, float] | None, FINITE, About("[0, 1]", "the range")] = None
    learning_rate: Annotated[Positive, About("0.05", "the learning rate")] = None
    steps: Annotated[Count, About("8", "the number of steps")] = None
    batch_size: Annotated[Count, About("5", "the batch size")] = None
    optimizer: Annotated[str | None, About("sgd")] = None
    momentum: Annotated[float | None, DECAY, About("0.9")] = None
    betas: Annotated[tuple[float, float] | None, DECAY, About("[0.9, 0.999]")] = None
    weight_decay: Annotated[float | None, NOT_NEGATIVE_FINITE, About("0.0005", "the weight decay")] = None
    batches: Annotated[Batches | None, About("[[0, 1], [2, 3]]", "which images each step used")] = None
    clip_norm: Annotated[Positive, About("1.0", "the clipping bound")] = None
    noise_scale: Annotated[Positive, About("0.1", "the relative noise")] = None
    noise_std: Annotated[Positive, About("0.001", "the noise")] = None
    kept_fraction: Annotated[Positive, no_more_than(1), About("0.1", "the share of entries sent")] = None
    quantization_bits: Annotated[Bits, About("8", "the bits of an entry")] = None
    significant_bits: Annotated[Bits, About("8", "the precision of the parameters")] = None
    public_images: Annotated[Tensor | None, About("true", "public images")] = None

    def __repr__(self) -> str:
        """Show the known fields, public images as their number."""
        told = [f"{name}={value!r}" for name, value in self.given().items() if name != "public_images"]
        images = () if self.public_images is None else (f"public_images=<{len(self.public_images)} images>",)
        return f"Knowledge({', '.join((*told, *images))})"

    @classmethod
    def names(cls) -> list[str]:
        """List the fields."""
        return [field.name for field in fields(cls)]

    @classmethod
    def about(cls) -> dict[str, About]:
        """Describe every field, by its name."""
        said = meanings(cls)
        declared = {field.name: get_args(field.type)[1:] for field in fields(cls)}
        found = {name: next(part for part in parts if isinstance(part, About)) for name, parts in declared.items()}
        return {name: about._replace(meaning=said[name]) for name, about in found.items()}

    def given(self) -> dict[str, Any]:
        """Return the known fields as plain values, for the table; images appear as their number."""
        known = {name: getattr(self, name) for name in self.names() if getattr(self, name) is not None}
        return {name: len(value) if isinstance(value, torch.Tensor) else value for name, value in known.items()}

    def input_bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (lowest, highest) value of a network's input, (1, C, 1, 1) each, in the dtype and on the device of
        `like`. pixel_mean has to be known; an unknown pixel_range is [0, 1]."""
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
            needs = f"attack {attack!r} needs {', '.join(missing)}, which the adversary does not know{reason}"
            typed = " ".join(f"--know {name}={'true' if name == 'public_images' else 'VALUE'}" for name in missing)
            error = InputError(f"{needs}: say {typed}")
            error.in_scenario = f"{needs}: grant it under adversary.knowledge"
            raise error

    def __post_init__(self) -> None:
        for problem in misfits(self):
            raise InputError(f"knowledge {problem}")
        if self.pixel_range is not None and not self.pixel_range[0] < self.pixel_range[1]:
            raise InputError(f"knowledge pixel_range is {self.pixel_range}, it has to be (lowest, highest), finite")
        if self.labels is not None and not (len(self.labels) and all(map(_is_class, self.labels))):
            raise InputError(f"knowledge labels is {self.labels}: name the class of every image, from 0")
        if self.batches is not None and not (self.batches and all(self.batches)):
            raise InputError("knowledge batches has no step, or a step without images: list the images of every step")


def _is_class(label: object) -> bool:
    return isinstance(label, SupportsIndex) and operator.index(label) >= 0


MOST_CANDIDATES = 10_000  # twenty times those of 250 private images
MOST_PIXELS = 2**28  # of all candidates: a gibibyte in float32


def count_candidates(
    attack: str, shape: tuple[int, int, int], knowledge: Knowledge, factor: float = 1.0, number: int | None = None
) -> int:
    """Return how many candidates an attack starts from: `number`, or else `factor` times the private images, at least
    one. attack: its name. shape: (C, H, W) of an image.

    Raises InputError for more than fit in memory, before memory is asked for.
    """
    private = knowledge.num_private or 1
    count, most = number or factor * private, max(1, min(MOST_CANDIDATES, MOST_PIXELS // math.prod(shape)))
    if count > most:
        told = f"num_private is {private:,}" if knowledge.num_private else ""
        asked = " and ".join(filter(None, (told, f"candidates is {factor:g}" if factor != 1 else "")))
        asked, size = asked if number is None else f"num_candidates is {number:,}", "×".join(map(str, shape))
        raise InputError(f"attack {attack!r}: {asked}; at most {most:,} candidates of {size} fit in memory: lower it")
    return max(1, round(count))
