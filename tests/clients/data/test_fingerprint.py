import numpy as np
import pytest
from PIL import Image

from clients import data
from clients.config import DataConfig
from clients.data.partition import LEAST_DECODED, fingerprint

COUNT = 2 * LEAST_DECODED


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small images, twice as many as are looked at of large ones."""
    folder, draw = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for part, count in (("train", COUNT), ("test", 1)):
        (folder / part / "a").mkdir(parents=True)
        for i in range(count):
            Image.fromarray(draw.integers(0, 256, (8, 8), np.uint8)).save(folder / part / "a" / f"{i:03d}.png")
    return folder


def digest(folder):
    data._load.cache_clear()
    return fingerprint(DataConfig(name="folder", root=str(folder)))


def test_every_small_image_counts(folder):
    before = digest(folder)
    assert digest(folder) == before
    for i in (0, 1, 100, COUNT - 2, COUNT - 1):
        path = folder / "train" / "a" / f"{i:03d}.png"
        content = path.read_bytes()
        Image.new("L", (8, 8)).save(path)
        assert digest(folder) != before, i
        path.write_bytes(content)
    assert digest(folder) == before
