"""The project as it is installed or run by Flower, without all else that lies in its folder."""

import shutil
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PACKAGES = ("attacks", "clients", "simulator")
FILES = ("fedspill.py", "pyproject.toml", "README.md", "LICENSE")


def copy_app(folder: Path) -> Path:
    """A copy in `folder`, which is made. `flwr run` walks through all of an app's folder, and an environment in it, as
    `make` puts there, takes it seven seconds; setuptools leaves a `build` beside what it builds."""
    for package in PACKAGES:
        shutil.copytree(PROJECT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(PROJECT / name, folder)
    return folder
