"""What pydantic found wrong with a scenario, in one line: the key, its line, the value and the nearest name."""

from typing import Any, TypeVar

from pydantic import ValidationError, create_model

from attacks.interface.errors import InputError, nearest
from clients.config import ModelOptionError, Section
from simulator.scenario.yaml_source import Key, Source

Kind = TypeVar("Kind", bound=Section)
BRANCHES = ("int", "float", "str", "constrained-int")  # as pydantic calls them


def read_section(source: Source, name: str, kind: type[Kind]) -> Kind:
    """The section `name` of a file whose other sections are a scenario, validated; InputError names the key."""
    fields: dict[str, Any] = {name: (kind, ...)}
    whole: Any = create_model("File", __base__=Section, **fields)
    try:
        return getattr(whole.model_validate({name: source.data.get(name) or {}}), name)
    except ValidationError as error:
        raise InputError(describe_error(error.errors(), source, whole)) from None


def describe_error(errors: list[Any], source: Source, whole: type[Section]) -> str:
    """errors: pydantic's; the first is described. whole: the model that was validated."""
    error = _branch_meant(errors, source)
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, ModelOptionError):
        error = {**cause.error, "loc": (*error["loc"], *cause.error["loc"])}
    key = _key_of(error, source)
    dotted = ".".join(map(str, key))
    prefix = source.prefix(key)
    if error["type"] == "extra_forbidden" and isinstance(cause, ModelOptionError):
        guess = nearest(str(error["loc"][-1]), [*cause.known, *_known_keys(whole, key[:-1])])
        guess = guess if "did you mean" in guess else ""
        options = f"the options of model {cause.model!r} are {', '.join(cause.known)}"
        return f"{prefix}unknown key {dotted!r}{guess} (it is {error['input']!r}; {options})"
    if error["type"] == "extra_forbidden":
        return f"{prefix}unknown key {dotted!r}{nearest(str(key[-1]), _known_keys(whole, key[:-1]))}"
    if error["type"] == "missing":
        return f"{prefix}key {dotted!r} is missing"
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    value = error["input"]
    shown = f" is {value!r}" if not isinstance(value, dict) and len(repr(value)) < 60 else ""
    return f"{prefix}{dotted or 'scenario'}{shown}: {message}"


def _branch_meant(errors: list[Any], source: Source) -> Any:
    """The first error; where a value fits no branch of a union, that of the branch which reads furthest into it."""
    key = _key_of(errors[0], source)
    same = [error for error in errors if _key_of(error, source)[: len(key)] == key]
    return max(same, key=lambda error: len(_key_of(error, source)))


def _key_of(error: Any, source: Source) -> Key:
    """Its location without the branches of unions, which pydantic adds: what the source has is a key of ours, whatever
    it is called, and below that anything that does not look like a branch."""
    key: list[str | int] = []
    data: Any = source.data
    for part in error["loc"]:
        there = part in data if isinstance(data, dict) else isinstance(data, list) and part in range(len(data))
        if there:
            data = data[part]
        elif part in BRANCHES or set("[](){},' ") & set(str(part)):
            continue
        else:
            data = None
        key.append(part)
    return tuple(key)


def _known_keys(whole: type[Section], parent: Key) -> list[str]:
    """The valid keys of a section."""
    section: Any = whole
    for part in parent:
        annotation = section.model_fields[part].annotation if part in getattr(section, "model_fields", {}) else None
        candidates = [annotation, *getattr(annotation, "__args__", ())]  # Section, or Section | None
        section = next((candidate for candidate in candidates if hasattr(candidate, "model_fields")), None)
    return list(section.model_fields) if section is not None else []
