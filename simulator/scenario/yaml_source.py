"""YAML with memory: every key knows the file and line it came from, and `extends:` merges files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from attacks.interface.errors import InputError
from simulator.scenario.bounded_yaml import Typed, parse_document, problem_of, read_document

Key = tuple[str | int, ...]
PATHS = {  # the keys whose values are files or folders
    ("data", "root"),
    ("model", "checkpoint"),
    ("model", "name"),
    ("model", "pretrain", "folder"),
    ("model", "pretrain", "data", "root"),
}


@dataclass
class Source:
    """A mapping and, for each key in it, where it was written."""

    data: dict[str, Any]
    lines: dict[Key, str] = field(default_factory=dict)

    def where(self, key: Key) -> str:
        """ "FILE, line N" of a key or of the nearest parent that was written down; empty where none was."""
        above = (key[:length] for length in range(len(key), 0, -1))
        return next((self.lines[parent] for parent in above if parent in self.lines), "")

    def prefix(self, key: Key) -> str:
        """What a message about a key begins with: "FILE, line N: ", or nothing."""
        where = self.where(key)
        return f"{where}: " if where else ""


def parse_value(text: str) -> Any:
    """The right-hand side of `--set key=value` and `--know key=value`, as YAML."""
    try:
        return parse_document(text, Typed)[1]
    except yaml.YAMLError as error:
        problem = problem_of(error)
        raise InputError(f"value {text[:60]!r}{f': {problem}' if problem else ' is not YAML: quote it'}") from None


def read_yaml(path: Path, ancestors: tuple[Path, ...] = ()) -> Source:
    """Read a scenario file with everything it extends; its own keys win."""
    path = path.resolve()
    if path in ancestors:
        raise InputError(f"{path}: extends leads back to the file itself")
    source = _read_one(path)
    source.data = _replace_paths(source.data, lambda file: _beside(path.parent, file))
    parent = source.data.pop("extends", None)
    if parent is None:
        return source
    if not isinstance(parent, str):
        raise InputError(f"{source.where(('extends',))}: extends is {parent!r}, it has to be the path of a YAML file")
    base = read_yaml(path.parent / parent, (*ancestors, path))
    return Source(merge(base.data, source.data), {**base.lines, **source.lines})


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`: mappings merge key by key, everything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def leaves(data: Any, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every value that is neither a mapping nor a list, with its key."""
    if not isinstance(data, dict | list):
        yield key, data
        return
    for part, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield from leaves(value, (*key, part))


def as_key(dotted: str) -> Key:
    """ "a.0.b" as pydantic and `Source.lines` write it: numbers index lists."""
    return tuple(int(part) if part.isdigit() else part for part in dotted.split("."))


def assign(data: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of `data` with the dotted `key` set; numbers index lists."""
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
    """Workers on other nodes and in other folders, and later readers of a run, have to find the same files."""
    return _replace_paths(data, _resolved)


def _resolved(path: str) -> str:
    try:
        return str(Path(path).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:  # nobody's home, links in a circle, too long
        raise InputError(f"{path[:100]!r} is no path: {error}") from None


def _beside(folder: Path, file: str) -> str:
    """The file or folder beside the scenario, where there is one; else it is one of the working folder."""
    return str(folder / file) if (folder / file).exists() else file


def _replace_paths(data: dict[str, Any], replace: Callable[[str], str]) -> dict[str, Any]:
    """The data with every path in it replaced; of FILE.py:factory that of the file."""
    for key, value in leaves(data):
        if key in PATHS and value and isinstance(value, str) and (key[-1] != "name" or ".py:" in value):
            file, colon, factory = value.partition(".py:")
            path = replace(file + colon.rstrip(":"))
            data = assign(data, ".".join(map(str, key)), f"{path}:{factory}" if colon else path)
    return data


def _read_one(path: Path) -> Source:
    node, data = read_document(path, "scenario", Typed)
    if node is None or data is None:
        raise InputError(f"{path}: the file is empty; a scenario is at least `name: something`")
    if not isinstance(data, dict):
        raise InputError(f"{path}: a scenario is a mapping of sections, this is a {type(data).__name__}")
    lines: dict[Key, str] = {}
    _collect_lines(node, (), path, lines)
    return Source(data, lines)


def _collect_lines(node: yaml.Node, key: Key, path: Path, lines: dict[Key, str]) -> None:
    entries: list[tuple[Any, yaml.Node, yaml.Node]] = []  # (key, where it stands, value)
    if isinstance(node, yaml.MappingNode):
        entries = [(name.value, name, value) for name, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        entries = [(index, value, value) for index, value in enumerate(node.value)]
    for part, at, value in entries:
        lines[(*key, part)] = f"{path}, line {at.start_mark.line + 1}"
        _collect_lines(value, (*key, part), path, lines)
