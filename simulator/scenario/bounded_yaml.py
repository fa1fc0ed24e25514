"""YAML of somebody else's, read within bounds: what is out of all proportion is refused before its values are made."""

import re
from pathlib import Path
from typing import Any

import yaml

from attacks.interface.errors import InputError

LARGEST_FILE = 2**20  # bytes; the longest scenario of the repository has 5,000
MOST_VALUES = 20_000  # of a file, aliases written out, which let a few hundred bytes stand for gigabytes
DEEPEST = 50  # mappings and lists inside each other


class _Refused(yaml.MarkedYAMLError):
    """YAML that is well-formed, and not taken all the same. problem: what is wrong, for people."""


def _no_value(problem: str, node: yaml.Node | yaml.Event) -> _Refused:
    return _Refused(problem=problem, problem_mark=node.start_mark)


class Dumped(yaml.SafeLoader):
    """SafeLoader, for what `yaml.safe_dump` wrote, within bounds.

    A key that stands twice in a mapping is an error: PyYAML keeps the last one and drops the first in silence. So is a
    value that its tag does not fit, and a text that no file system and no terminal can take.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = self.values = 0

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError):  # PyYAML lets them out
            kind = node.tag.rpartition(":")[2]
            raise _no_value(f"{str(node.value)[:60]!r} is no {kind}", node) from None
        if isinstance(value, str) and ("\0" in value or any("\ud800" <= sign <= "\udfff" for sign in value)):
            raise _no_value(f"{value[:60]!r} holds a character that no text may hold", node)
        return value

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        self.values += 1
        if self.values > MOST_VALUES:
            raise _no_value(f"more than {MOST_VALUES:,} values", self.peek_event())
        nested = self.check_event(yaml.CollectionStartEvent)
        self.depth += nested
        if self.depth > DEEPEST:
            raise _no_value(f"more than {DEEPEST} lists and mappings inside each other", self.peek_event())
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
                raise _no_value(problem, key)
            lines[key.value] = key.start_mark.line + 1
        return node


class Typed(Dumped):
    """For what people type: 1e-3 is a number and 2024-01-01 a text, as in YAML 1.2 and every other language."""


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
    """(the nodes, the values) of a file. what: the error calls it. InputError, with the line, where it is no YAML, no
    regular file, or out of all proportion."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{what} {str(path)!r} is no file")
        if (size := path.stat().st_size) > LARGEST_FILE:
            raise InputError(f"{what} {str(path)!r} has {size:,} bytes, a {what} at most {LARGEST_FILE:,}")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{what} {str(path)!r} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{what} {str(path)!r} cannot be read: {error}") from None
    try:
        return parse_document(text, loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}: {problem_of(error) or f'not YAML: {_reason(error)}'}") from None


def parse_document(text: str, loader: type[Dumped]) -> tuple[yaml.Node | None, Any]:
    """(the nodes, the values) of a text; YAMLError where there are none, or more than anybody means."""
    reader = loader(text)
    try:
        node = reader.get_single_node()
        if node is None:
            return None, None
        if _written_out(node, {}) > MOST_VALUES:
            raise _no_value(f"more than {MOST_VALUES:,} values, its aliases written out", node)
        return node, reader.construct_document(node)
    finally:
        reader.dispose()


def problem_of(error: yaml.YAMLError) -> str:
    """What is wrong with YAML that is well-formed; "" where it is not."""
    return str(error.problem) if isinstance(error, _Refused) else ""


def _reason(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error)


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
