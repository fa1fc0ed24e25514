"""docs/design.md walks a checkpoint through the code: every function and every folder that it names has to be there."""

import ast
import re
from pathlib import Path

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
    assert len(STEPS) >= 20
    assert [f"{name} in {file}" for name, file in STEPS if name not in defined(file)] == []


def test_every_function_of_the_walk_is_named_once():
    names = [name for name, _ in STEPS]
    assert len(set(names)) == len(names)


def test_every_package_is_drawn():
    tree = PAGE[PAGE.index("fedspill.py  ") : PAGE.index("**Who may import whom.**")]
    packages = [p for top in ("attacks", "clients", "simulator") for p in (PROJECT / top).iterdir() if p.is_dir()]
    named = [path.name for path in packages if (path / "__init__.py").exists()]
    assert [name for name in named if f"{name}/" not in tree] == []
