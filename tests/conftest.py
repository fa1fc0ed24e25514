"""What all tests share."""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attacks import ATTACKS
from attacks.interface.plugins import Registry

torch.set_num_threads(1)
os.environ["FEDSPILL_ALLOW_CODE"] = "all"  # the tests' own models; tests/simulator/test_own_code.py takes it back


PLUGINS: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "an attack or a defense at an import path, FILE.py:CLASS, that common tests run over in the place of ours"
    parser.addoption("--plugin", action="append", default=[], metavar="PATH", help=what)


def pytest_configure(config: pytest.Config) -> None:
    PLUGINS[:] = config.getoption("--plugin")


def under_test(registry: Registry[Any]) -> list[Any]:
    """The names that common tests run over: of --plugin, by the class in each, else all that are registered."""
    for path in PLUGINS:
        registry.find(path)
    return [pytest.param(path, id=path.rpartition(":")[2]) for path in PLUGINS] or sorted(registry)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real images: FEDSPILL_DATA, or shared/data beside the project."""
    folder = Path(os.environ.get("FEDSPILL_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real images at {folder}: let FEDSPILL_DATA name their folder")
    return folder


@pytest.fixture(scope="module", autouse=True)
def parts_of_their_own() -> Iterator[None]:
    """Attacks, defenses, models and data that the tests of a file bring stay there, in whatever order files run."""
    registries = [ATTACKS]
    with contextlib.suppress(ImportError):  # of a machine with PyTorch alone
        from clients.data import SOURCES
        from clients.defenses.base import DEFENSES
        from clients.models.factory import MODELS

        registries += [DEFENSES, MODELS, SOURCES]
    before = [dict(registry) for registry in registries]
    yield
    for registry, parts in zip(registries, before, strict=True):
        registry.clear()
        registry.update(parts)


RUNS = "run_scenario"  # the fixture that starts Ray


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that ask for a run are slow. Files with slow tests come first, so that none is begun when all the others
    are through."""
    for item in items:
        if RUNS in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def no_ray_unless_slow(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ray takes seconds to start: a test that starts it and is not marked `slow` fails."""
    ray = sys.modules.get("ray")
    if ray is None or request.node.get_closest_marker("slow") is not None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "init", lambda *args, **options: pytest.fail("starts Ray: mark the test `slow`"))
        yield


def pytest_collection_finish() -> None:
    """What is imported by now stays: Python need not look through it again and again for what could be freed."""
    gc.freeze()
