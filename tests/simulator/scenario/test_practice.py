"""The scenarios of practice: each says its price in its first line, passes `check`, and misses its data in one line."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SCENARIOS = Path(__file__).parents[3] / "scenarios"
ON_USERS_DATA = {"cifar_cnn": "cifar10", "own_data": "folder", "cross_silo_resnet": "cifar10", "mnist_mlp": "mnist"}


@pytest.fixture
def data(tmp_path):
    """A file as of CIFAR-10 and a folder of pictures, both of noise."""
    draws = np.random.default_rng(0)
    pixels = draws.integers(0, 256, (1700, 32, 32, 3), np.uint8)
    labels = np.arange(1700) % 10
    np.savez(tmp_path / "cifar10.npz", x_train=pixels[:1500], y_train=labels[:1500], x_test=pixels[1500:],
             y_test=labels[1500:])  # fmt: skip
    for i in range(240):
        path = tmp_path / "folder" / f"class{i % 3}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[i, :12, :12, 0]).save(path)
    return {"cifar10": tmp_path / "cifar10.npz", "folder": tmp_path / "folder"}


@pytest.mark.parametrize("name", [*ON_USERS_DATA, "hospital"])
def test_the_price_is_in_the_first_lines(name):
    lines = (SCENARIOS / f"{name}.yaml").read_text().splitlines()
    assert any(line.startswith("# Price: ") and "two cores" in line for line in lines[:2])


@pytest.mark.parametrize("name", list(ON_USERS_DATA))
def test_data_that_is_missing_is_one_line(fedspill, name):
    result = fedspill("check", SCENARIOS / f"{name}.yaml")
    assert result.returncode == 2 and result.stdout == ""
    said = f"fedspill: data.root is not given: data {ON_USERS_DATA[name]!r} expects as its value"
    assert result.stderr.startswith(said) and result.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "source", "more"),
    [
        ("cifar_cnn", "cifar10", ["partition.alpha=10"]),  # of 1,000 images everybody has some
        ("own_data", "folder", ["data.test=40"]),
        ("cross_silo_resnet", "cifar10", ["model.channels=4"]),
        ("hospital", None, []),
    ],
)
def test_each_passes_its_check(fedspill, data, name, source, more):
    settings = [*more, *([f"data.root={data[source]}"] if source else [])]
    result = fedspill("check", SCENARIOS / f"{name}.yaml", *(part for one in settings for part in ("--set", one)))
    assert result.returncode == 0, result.stderr
    assert f"{name}: " in result.stdout and "cost:" in result.stdout
