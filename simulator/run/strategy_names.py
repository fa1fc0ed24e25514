"""Which strategies the installed Flower has."""

import ast
import importlib.util
from pathlib import Path

TREES = ("FedXgbBagging", "FedXgbCyclic")  # they aggregate trees, not tensors


def known_strategies() -> list[str]:
    """The strategies of the installed Flower, read off its file: importing them takes most of a second."""
    package = importlib.util.find_spec("flwr")
    assert package is not None and package.origin is not None
    file = Path(package.origin).parent / "serverapp" / "strategy" / "__init__.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets)
    )
    return sorted(name for name in ast.literal_eval(names) if name not in ("Strategy", "Result", *TREES))
