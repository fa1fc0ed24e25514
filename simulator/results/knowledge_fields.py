"""What each field of `Knowledge` means, with an example as `--know FIELD=VALUE` and YAML take it.

Knowledge from plain values: as a file has them, or as a user types them.
"""

from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from attacks import InputError, Knowledge
from clients.config import as_json


class KnowledgeField(NamedTuple):
    meaning: str
    example: str


KNOWLEDGE_FIELDS = {
    "num_private": KnowledgeField("number of private images behind the update, as FedAvg's clients report it", "20"),
    "labels": KnowledgeField("class of every private image, counted from 0", "[3, 3, 7]"),
    "pixel_mean": KnowledgeField(
        "what is subtracted from pixels in [0, 1], one value per channel, as `data.mean` and `--mean`",
        "[0.4914, 0.4822, 0.4465]",
    ),
    "pixel_std": KnowledgeField(
        "what is divided by after that, one value per channel, as `data.std` and `--std`; unknown is taken for 1",
        "[0.2470, 0.2435, 0.2616]",
    ),
    "pixel_range": KnowledgeField(
        "lowest and highest value of pixels before mean and std, which is 0 and 1 unless images are on another scale",
        "[0, 1]",
    ),
    "learning_rate": KnowledgeField("of local training", "0.05"),
    "steps": KnowledgeField("of local training in a round", "8"),
    "batch_size": KnowledgeField("of local training", "5"),
    "optimizer": KnowledgeField("sgd, adam or adamw", "sgd"),
    "momentum": KnowledgeField("of sgd", "0.9"),
    "betas": KnowledgeField("of adam and adamw", "[0.9, 0.999]"),
    "weight_decay": KnowledgeField("of local training", "0.0005"),
    "batches": KnowledgeField("which images each local step used, as positions in `labels`", "[[0, 1], [2, 3]]"),
    "clip_norm": KnowledgeField("that the update, or each gradient, was clipped to", "1.0"),
    "noise_scale": KnowledgeField("norm of Gaussian noise on the update, relative to the update's", "0.1"),
    "noise_std": KnowledgeField("standard deviation of Gaussian noise on an entry of the update", "0.001"),
    "kept_fraction": KnowledgeField("share of the update's entries that were sent, the others being 0", "0.1"),
    "quantization_bits": KnowledgeField("of an entry of the update", "8"),
    "significant_bits": KnowledgeField("of a parameter as it was sent: 8 in bfloat16, 11 in float16", "8"),
    "public_images": KnowledgeField(
        "images of the kind that are nobody's secret; `true` grants the public pool", "true"
    ),
}


PER_CHANNEL = ("pixel_mean", "pixel_std")  # fields of knowledge


class _KnowledgeFields(Knowledge):
    """Knowledge as pydantic checks it: the tensor of public images is no JSON value and passes unseen."""

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)


KNOWLEDGE = TypeAdapter(_KnowledgeFields)


def make_knowledge(given: dict[str, Any]) -> Knowledge:
    """Knowledge from plain values, as `given()` wrote them or a user typed them; InputError names a wrong one."""
    one_channel = {name: [given[name]] for name in PER_CHANNEL if isinstance(given.get(name), int | float)}
    values = given | one_channel
    text = as_json(values, "knowledge")
    try:
        return Knowledge(**vars(KNOWLEDGE.validate_json(text, strict=True)))
    except ValidationError as error:
        wrong = error.errors()[0]
        if not wrong["loc"]:  # Knowledge itself refused
            raise InputError(wrong["msg"].removeprefix("Value error, ")) from None
        field = wrong["loc"][0]
        example = KNOWLEDGE_FIELDS[str(field)].example
        raise InputError(
            f"knowledge {field} is {given[str(field)]!r}: {wrong['msg'].lower()}; write it like {example}"
        ) from None
