"""docs/design.md walks a checkpoint through the code: every function and every folder that it names has to be there."""

import ast
import re
from pathlib import Path

from tests.test_architecture import LAYERS

PROJECT = Path(__file__).resolve().parents[1]
PAGE = (PROJECT / "docs" / "design.md").read_text()
STEPS = re.findall(r"^\| \d+ \| `([\w.]+)` \| `([\w/.]+)` \|", PAGE, re.MULTILINE)


def defined(file):
    """Names of functions and classes, methods as Class.method."""
    names = set()
    for node in ast.parse((PROJECT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            names |= {f"{node.name}.{part.name}" for part in ast.walk(node) if isinstance(part, ast.FunctionDef)}
    return names


def test_every_function_of_the_walk_is_where_the_page_says():
    assert 12 <= len(STEPS) <= 16
    assert [f"{name} in {file}" for name, file in STEPS if name not in defined(file)] == []


def test_every_function_of_the_walk_is_named_once():
    names = [name for name, _ in STEPS]
    assert len(set(names)) == len(names)


def test_the_layers_are_drawn_in_their_order():
    """As tests/test_architecture.py asserts it, highest first; parts in one line need not know each other."""
    tree = PAGE[PAGE.index("fedspill.py  ") : PAGE.index("## Twelve types")]
    drawn = {}
    for line in tree.splitlines():
        package = re.match(r"    (simulator|clients|attacks)/ ", line)
        drawn |= {package[1]: []} if package else {}
        if drawn and re.match(r"    (\w+/)?  +[a-z]", line):
            names = re.findall(
                r"(?<![\w./])(\w+)(?:/|\.py)(?=  | *$)", line.removeprefix(f"    {package[1]}/" if package else "")
            )
            list(drawn.values())[-1].append(names)
    for package, order in LAYERS.items():
        places = {name: place for place, names in enumerate(drawn[package]) for name in names}
        assert set(places) == set(order.split()), package
        rank = {name: place for place, name in enumerate(reversed(order.split()))}
        assert sorted(places, key=lambda name: (places[name], rank[name])) == sorted(places, key=rank.get), package
