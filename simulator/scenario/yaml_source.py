"""Read YAML of somebody else within bounds, remember the line of every key, and merge files by `extends:`.

`describe_error` says in one line what pydantic found wrong: the key, its line, the value and the nearest name.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError, create_model

from attacks.interface.errors import InputError, did_you_mean
from clients.config import ModelOptionError, Section

LARGEST_FILE = 2**20  # bytes; the longest scenario of the repository has 5,000
MOST_VALUES = 20_000  # of a file, with aliases written out: 400 bytes of these can stand for 400 million values
DEEPEST = 50  # mappings and lists inside each other; from some 400 on PyYAML raises RecursionError, without a line


class _Refused(yaml.MarkedYAMLError):
    """Well-formed YAML that is refused. problem: the reason, for people."""

    def __init__(self, problem: str, node: yaml.Node | yaml.Event) -> None:
        super().__init__(problem=problem, problem_mark=node.start_mark)


class Dumped(yaml.SafeLoader):
    """SafeLoader within bounds, for files of `yaml.safe_dump`.

    A key that stands twice in a mapping is an error: PyYAML silently keeps the last one. So is a value that does not
    fit its tag, and a text that no file system and no terminal can take.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = self.values = 0

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError):  # PyYAML lets them out
            kind = node.tag.rpartition(":")[2]
            raise _Refused(f"{str(node.value)[:60]!r} is no {kind}", node) from None
        if isinstance(value, str) and ("\0" in value or any("\ud800" <= sign <= "\udfff" for sign in value)):
            raise _Refused(f"{value[:60]!r} holds a character that no text may hold", node)
        return value

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        self.values += 1
        if self.values > MOST_VALUES:
            raise _Refused(f"more than {MOST_VALUES:,} values", self.peek_event())
        nested = self.check_event(yaml.CollectionStartEvent)
        self.depth += nested
        if self.depth > DEEPEST:
            raise _Refused(f"more than {DEEPEST} lists and mappings inside each other", self.peek_event())
        node = super().compose_node(parent, index)
        self.depth -= nested
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in lines:
                problem = f"key {key.value!r} stands in line {lines[key.value]} already: remove one of the two"
                raise _Refused(problem, key)
            lines[key.value] = key.start_mark.line + 1
        return node


class Typed(Dumped):
    """Loader for files of people: 1e-3 is a number and 2024-01-01 a text, as in YAML 1.2 and every other language."""


REMEDY = {Dumped: "", Typed: "; indent the keys of a section alike, by spaces, write `key: value`, and close brackets"}
Typed.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


Typed.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d+)([eE][-+]?\d+)$"),
    list("-+.0123456789"),
)


def read_document(path: Path, what: str, loader: type[Dumped]) -> tuple[yaml.Node | None, Any]:
    """Return (the nodes, the values) of a file. what: its name in errors. Raise InputError, with the line, if it is no
    YAML, no regular file, or too large."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{what} {str(path)!r} is no file")
        if (size := path.stat().st_size) > LARGEST_FILE:
            raise InputError(f"{what} {str(path)!r} has {size:,} bytes, a {what} at most {LARGEST_FILE:,}")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{what} {str(path)!r} does not exist: give the path of a YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{what} {str(path)!r} cannot be read: {error}") from None
    try:
        return parse_document(text, loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        wrong = problem_of(error) or f"not YAML: {getattr(error, 'problem', None) or error}{REMEDY[loader]}"
        raise InputError(f"{path}{line}: {wrong}") from None


def parse_document(text: str, loader: type[Dumped]) -> tuple[yaml.Node | None, Any]:
    """Return (the nodes, the values) of a text; raise YAMLError if there are none, or far too many."""
    reader = loader(text)
    try:
        node = reader.get_single_node()
        if node is None:
            return None, None
        if _written_out(node, {}) > MOST_VALUES:
            raise _Refused(f"more than {MOST_VALUES:,} values, its aliases written out", node)
        return node, reader.construct_document(node)
    finally:
        reader.dispose()


def problem_of(error: yaml.YAMLError) -> str:
    """Return why well-formed YAML is refused; "" if it is not well-formed."""
    return str(error.problem) if isinstance(error, _Refused) else ""


def _written_out(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """Count the nodes with every alias written out. known: counts so far, 0 for nodes that are being counted."""
    if node in known:
        if not known[node]:
            raise _Refused("an alias stands inside of what it stands for", node)
        return known[node]
    known[node] = 0
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        parts = node.value
    known[node] = 1 + sum(_written_out(part, known) for part in parts)
    return known[node]


Key = tuple[str | int, ...]
PATHS = {  # the keys whose values are files or folders; FILE.py:NAME is one wherever a part is named
    ("data", "root"),
    ("model", "checkpoint"),
    ("model", "pretrain", "folder"),
    ("model", "pretrain", "data", "root"),
}


NAMED_IN_FILE = re.compile(r".+\.py:\w+")


@dataclass
class YamlSource:
    """A mapping and, for each key in it, where it was written."""

    data: dict[str, Any]
    lines: dict[Key, str] = field(default_factory=dict)

    def where(self, key: Key) -> str:
        """Return "FILE, line N" of a key, or of its nearest parent that was written; "" if none was."""
        above = (key[:length] for length in range(len(key), 0, -1))
        return next((self.lines[parent] for parent in above if parent in self.lines), "")

    def prefix(self, key: Key) -> str:
        """Return the beginning of a message about a key: "FILE, line N: ", or nothing."""
        where = self.where(key)
        return f"{where}: " if where else ""


def parse_value(text: str) -> Any:
    """Parse the right-hand side of `--set key=value` and `--know key=value`, as YAML."""
    try:
        return parse_document(text, Typed)[1]
    except yaml.YAMLError as error:
        problem = problem_of(error)
        raise InputError(f"value {text[:60]!r}{f': {problem}' if problem else ' is not YAML: quote it'}") from None


def read_yaml(path: Path, ancestors: tuple[Path, ...] = ()) -> YamlSource:
    """Read a scenario file with everything it extends; its own keys win."""
    path = path.resolve()
    if path in ancestors:
        raise InputError(f"{path}: extends leads back to the file itself")
    source = _read_one(path)
    # a file beside the scenario if there is one, else one of the working folder
    beside = path.parent
    source.data = _replace_paths(source.data, lambda file: str(beside / file) if (beside / file).exists() else file)
    parent = source.data.pop("extends", None)
    if parent is None:
        return source
    if not isinstance(parent, str):
        raise InputError(f"{source.where(('extends',))}: extends is {parent!r}, it has to be the path of a YAML file")
    base = read_yaml(path.parent / parent, (*ancestors, path))
    if not source.data.get("sweep", True):  # the axes of others are taken back
        base.data.pop("sweep", None)
    _drop_profile_keys(base.data, source.data)
    return YamlSource(merge(base.data, source.data), {**base.lines, **source.lines})


def _drop_profile_keys(base: dict[str, Any], own: dict[str, Any]) -> None:
    """Remove from the profiles of the benchmark `base` the keys that `own`, which extends it, sets itself: a profile
    would replace their values, and no line would say so."""
    section = base.get("benchmark")
    profiles = section.get("profiles") if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(profiles, dict):
        return
    base["benchmark"] = {
        **section,
        "profiles": {name: _without(one, own) if isinstance(one, dict) else one for name, one in profiles.items()},
    }


def _without(data: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return `data` without the keys of `given`, mappings key by key."""
    both = {key for key, value in data.items() if isinstance(value, dict) and isinstance(given.get(key), dict)}
    kept = {key: value for key, value in data.items() if key in both or key not in given}
    return {key: _without(value, given[key]) if key in both else value for key, value in kept.items()}


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Put `over` on top of `base`: mappings merge key by key, everything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def leaves(data: Any, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yield every value that is neither a mapping nor a list, with its key."""
    if not isinstance(data, dict | list):
        yield key, data
        return
    for part, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield from leaves(value, (*key, part))


def as_key(dotted: str) -> Key:
    """Return "a.0.b" as pydantic and `YamlSource.lines` write it: numbers index lists."""
    return tuple(int(part) if part.isdigit() else part for part in dotted.split("."))


def assign(data: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return a copy of `data` with the dotted `key` set; numbers index lists."""
    head, _, rest = key.partition(".")
    if not head:
        raise InputError(f"--set {key!r}: a key looks like section.name")
    if isinstance(data, list):
        if not head.isdigit() or int(head) >= len(data):
            raise InputError(f"key {key!r}: the list has {len(data)} entries, numbered from 0")
        copy: Any = list(data)
        copy[int(head)] = assign(copy[int(head)], rest, value) if rest else value
        return copy
    if not isinstance(data, dict):
        raise InputError(f"key {key!r}: {data!r} stands there, which has no keys of its own: set it as a whole first")
    if head.isdigit():
        raise InputError(f"key {key!r}: there is no list to index yet: set the whole list first")
    copy = dict(data)
    below = copy.get(head)
    copy[head] = assign({} if below is None else below, rest, value) if rest else value
    return copy


def absolute_paths(data: dict[str, Any]) -> dict[str, Any]:
    """Make paths absolute: workers in other folders, and later readers of a run, have to find the same files."""

    def resolved(path: str) -> str:
        try:
            return str(Path(path).expanduser().resolve())
        except (OSError, RuntimeError, ValueError) as error:  # nobody's home, links in a circle, too long
            raise InputError(f"{path[:100]!r} is no path: {error}") from None

    return _replace_paths(data, resolved)


def _replace_paths(data: dict[str, Any], replace: Callable[[str], str]) -> dict[str, Any]:
    """Replace every path in the data, those of a sweep aside; in FILE.py:NAME that of the file."""
    for key, value in leaves({section: own for section, own in data.items() if section != "sweep"}):
        if value and isinstance(value, str) and (key in PATHS or NAMED_IN_FILE.fullmatch(value)):
            file, colon, factory = value.partition(".py:")
            path = replace(file + colon.rstrip(":"))
            data = assign(data, ".".join(map(str, key)), f"{path}:{factory}" if colon else path)
    return data


def _read_one(path: Path) -> YamlSource:
    node, data = read_document(path, "scenario", Typed)
    if node is None or data is None:
        raise InputError(f"{path}: the file is empty; a scenario is at least `name: something`")
    if not isinstance(data, dict):
        raise InputError(f"{path}: a scenario is a mapping of sections, this is a {type(data).__name__}")
    lines: dict[Key, str] = {}
    _collect_lines(node, (), path, lines)
    return YamlSource(data, lines)


def _collect_lines(node: yaml.Node, key: Key, path: Path, lines: dict[Key, str]) -> None:
    entries: list[tuple[Any, yaml.Node, yaml.Node]] = []  # (key, where it stands, value)
    if isinstance(node, yaml.MappingNode):
        entries = [(name.value, name, value) for name, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        entries = [(index, value, value) for index, value in enumerate(node.value)]
    for part, at, value in entries:
        lines[(*key, part)] = f"{path}, line {at.start_mark.line + 1}"
        _collect_lines(value, (*key, part), path, lines)


Kind = TypeVar("Kind", bound=Section)
BRANCHES = ("int", "float", "str", "constrained-int")  # as pydantic calls them


def read_section(source: YamlSource, name: str, kind: type[Kind]) -> Kind:
    """Validate the section `name` of a file whose other sections are a scenario; InputError names the key."""
    fields: dict[str, Any] = {name: (kind, ...)}
    whole: Any = create_model("File", __base__=Section, **fields)
    try:
        return getattr(whole.model_validate({name: source.data.get(name) or {}}), name)
    except ValidationError as error:
        raise InputError(describe_error(error.errors(), source, whole)) from None


def describe_error(errors: list[Any], source: YamlSource, whole: type[Section]) -> str:
    """Describe the first error. errors: of pydantic. whole: the model that was validated."""
    error = _branch_meant(errors, source)
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, ModelOptionError):
        error = {**cause.error, "loc": (*error["loc"], *cause.error["loc"])}
    key = _key_of(error, source)
    dotted = ".".join(map(str, key))
    prefix = source.prefix(key)
    if error["type"] == "extra_forbidden" and isinstance(cause, ModelOptionError):
        guess = did_you_mean(str(error["loc"][-1]), [*cause.known, *_known_keys(whole, key[:-1])])
        guess = guess if "did you mean" in guess else ""
        options = f"the options of model {cause.model!r} are {', '.join(cause.known)}"
        return f"{prefix}unknown key {dotted!r}{guess} (it is {error['input']!r}; {options})"
    if error["type"] == "extra_forbidden":
        return f"{prefix}unknown key {dotted!r}{did_you_mean(str(key[-1]), _known_keys(whole, key[:-1]))}"
    if error["type"] == "missing":
        return f"{prefix}key {dotted!r} is missing"
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    value = error["input"]
    if error["type"] in ("list_type", "tuple_type") and not isinstance(value, dict):
        message = f"input should be a list: [{value}]"
    shown = f" is {value!r}" if not isinstance(value, dict) and len(repr(value)) < 60 else ""
    return f"{prefix}{dotted or 'scenario'}{shown}: {message}"


def _branch_meant(errors: list[Any], source: YamlSource) -> Any:
    """Return the first error; if a value fits no branch of a union, that of the branch which reads furthest into it."""
    key = _key_of(errors[0], source)
    same = [error for error in errors if _key_of(error, source)[: len(key)] == key]
    return max(same, key=lambda error: len(_key_of(error, source)))


def _key_of(error: Any, source: YamlSource) -> Key:
    """Return the location of an error without the branches of unions, which pydantic adds: parts that the source has
    are keys, and below them all parts that do not look like a branch."""
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
    section: Any = whole
    for part in parent:
        annotation = section.model_fields[part].annotation if part in getattr(section, "model_fields", {}) else None
        candidates = [annotation, *getattr(annotation, "__args__", ())]  # Section, or Section | None
        section = next((candidate for candidate in candidates if hasattr(candidate, "model_fields")), None)
    return list(section.model_fields) if section is not None else []
