"""Knowledge from plain values: as a file has them, or as a user types them."""

from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from attacks import InputError, Knowledge
from clients.config import as_json

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
        example = Knowledge.about()[str(field)].example
        raise InputError(
            f"knowledge {field} is {given[str(field)]!r}: {wrong['msg'].lower()}; write it like {example}"
        ) from None
