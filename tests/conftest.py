"""What all tests share."""

import gc
import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
os.environ["FEDSPILL_ALLOW_CODE"] = "all"  # the tests' own models; tests/simulator/test_own_code.py takes it back


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real images: FEDSPILL_DATA, or shared/data beside the project."""
    folder = Path(os.environ.get("FEDSPILL_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real images at {folder}: let FEDSPILL_DATA name their folder")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that none is begun when all the others are through."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """What is imported by now stays: Python need not look through it again and again for what could be freed."""
    gc.freeze()
