"""YAML with memory: every key knows the file and line it came from, and `extends:` merges files."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from attacks.interface.errors import InputError

Key = tuple[str | int, ...]
LARGEST_FILE = 2**20  # bytes; the longest scenario of the repository has 5,000
MOST_VALUES = 100_000  # of a file, aliases written out: a few hundred bytes can stand for gigabytes
DEEPEST = 50  # mappings and lists inside each other
PATHS = {  # the keys whose values are files or folders
    ("data", "root"),
    ("model", "checkpoint"),
    ("model", "name"),
    ("model", "pretrain", "folder"),
    ("model", "pretrain", "data", "root"),
}


class _Refused(yaml.MarkedYAMLError):
    """YAML that is well-formed, and not taken all the same. problem: what is wrong, for people."""


def _no_value(problem: str, node: yaml.Node) -> _Refused:
    return _Refused(problem=problem, problem_mark=node.start_mark)


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e-3 as a number and 2024-01-01 as text, as YAML 1.2 and every other language do.

    A key that stands twice in a mapping is an error: PyYAML keeps the last one and drops the first in silence. So is a
    value that its tag does not fit, and a text that no file system and no terminal can take.
    """

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError):  # PyYAML lets them out
            kind = node.tag.rpartition(":")[2]
            raise _no_value(f"{str(node.value)[:60]!r} is no {kind}", node) from None
        if isinstance(value, str) and ("\0" in value or any("\ud800" <= sign <= "\udfff" for sign in value)):
            raise _no_value(f"{value[:60]!r} holds a character that no text may hold", node)
        return value

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in lines:
                problem = f"key {key.value!r} stands in line {lines[key.value]} already: remove one of the two"
                raise _no_value(problem, key)
            lines[key.value] = key.start_mark.line + 1
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d+)([eE][-+]?\d+)$"),
    list("-+.0123456789"),
)


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
        return _compose(text)[1]
    except _Refused as error:
        raise InputError(f"value {text[:60]!r}: {error.problem}") from None
    except yaml.YAMLError:
        raise InputError(f"value {text[:60]!r} is not YAML: quote it") from None


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
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"scenario {str(path)!r} is no file")
        if (size := path.stat().st_size) > LARGEST_FILE:
            raise InputError(f"scenario {str(path)!r} has {size:,} bytes, a scenario at most {LARGEST_FILE:,}")
        text = path.read_text()
    except FileNotFoundError:
        raise InputError(f"scenario {str(path)!r} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"scenario {str(path)!r} cannot be read: {error}") from None
    try:
        node, data = _compose(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        wrong = "" if isinstance(error, _Refused) else "not YAML: "
        raise InputError(f"{path}{line}: {wrong}{getattr(error, 'problem', None) or error}") from None
    if data is None:
        raise InputError(f"{path}: the file is empty; a scenario is at least `name: something`")
    if not isinstance(data, dict):
        raise InputError(f"{path}: a scenario is a mapping of sections, this is a {type(data).__name__}")
    lines: dict[Key, str] = {}
    _collect_lines(node, (), path, lines)
    return Source(data, lines)


def _compose(text: str) -> tuple[Any, Any]:
    """(the nodes, the values) of a YAML document; YAMLError where there is none, or one that is out of all proportion:
    that is found out before its values are made."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            problem = f"more than {DEEPEST} lists and mappings inside each other"
            raise _Refused(problem=problem, problem_mark=event.start_mark)
    node = yaml.compose(text, _Loader)
    if node is not None and _written_out(node, {}) > MOST_VALUES:
        raise _no_value(f"more than {MOST_VALUES:,} values, its aliases written out", node)
    return node, yaml.load(text, _Loader)


def _written_out(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """The number of nodes with every alias written out. known: what has been counted, 0 for what is being counted."""
    if node in known:
        if not known[node]:
            raise _no_value("an alias stands inside of what it stands for", node)
        return known[node]
    known[node] = 0
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        parts = node.value
    known[node] = 1 + sum(_written_out(part, known) for part in parts)
    return known[node]


def _collect_lines(node: yaml.Node, key: Key, path: Path, lines: dict[Key, str]) -> None:
    entries: list[tuple[Any, yaml.Node, yaml.Node]] = []  # (key, where it stands, value)
    if isinstance(node, yaml.MappingNode):
        entries = [(name.value, name, value) for name, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        entries = [(index, value, value) for index, value in enumerate(node.value)]
    for part, at, value in entries:
        lines[(*key, part)] = f"{path}, line {at.start_mark.line + 1}"
        _collect_lines(value, (*key, part), path, lines)
