import gzip
import struct

import numpy as np
import pytest
import torch

from tests.clients.data.data_sources import images_of, load, patterns, refused


def write_idx(path, array, magic=None, packed=True):
    header = struct.pack(f">{1 + array.ndim}i", magic or 2048 + array.ndim, *array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if packed else content)


def write_idx_set(folder, packed=True, seed=0):
    ending = ".gz" if packed else ""
    for part, count in (("train", 12), ("t10k", 5)):
        write_idx(folder / f"{part}-images-idx3-ubyte{ending}", patterns(count, (4, 6), seed), packed=packed)
        write_idx(folder / f"{part}-labels-idx1-ubyte{ending}", np.arange(count) % 10, packed=packed)


@pytest.mark.parametrize(
    ("name", "folder", "packed"),
    [("mnist", ".", True), ("mnist", "mnist", False), ("mnist", "MNIST/raw", True), ("fashion_mnist", "raw", False)],
)
def test_idx_files(tmp_path, name, folder, packed):
    write_idx_set(tmp_path / folder, packed)
    data = load(name, tmp_path)
    assert data.train.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    expected = torch.from_numpy(patterns(12, (4, 6))[[7, 2]]).float() / 255
    assert torch.equal(images_of(data.train, 7, 2)[:, 0], expected)
    assert images_of(data.test, 0).shape == (1, 1, 4, 6)
    assert data.class_names[9] == {"mnist": "9", "fashion_mnist": "Ankle boot"}[name]


def test_idx_files_that_are_missing_or_damaged(tmp_path):
    write_idx_set(tmp_path)
    labels, images = tmp_path / "t10k-labels-idx1-ubyte.gz", tmp_path / "t10k-images-idx3-ubyte.gz"
    good = images.read_bytes()

    write_idx(labels, np.arange(4))
    assert "5 images" in refused("mnist", tmp_path) and "4 labels" in refused("mnist", tmp_path)
    write_idx(labels, np.array([0, 1, 2, 3, 10]))
    assert "holds the label 10: 0 to 9 are expected" in refused("mnist", tmp_path)
    labels.unlink()
    assert refused("mnist", tmp_path).endswith("missing: t10k-labels-idx1-ubyte")
    write_idx(labels, np.arange(5))

    write_idx(images, patterns(5, (4, 6)), magic=2049)
    assert "t10k-images-idx3-ubyte.gz' is no IDX file of this kind" in refused("mnist", tmp_path)
    images.write_bytes(gzip.compress(gzip.decompress(good)[:-1]))
    assert "holds 119 bytes of data, its header says 5x4x6" in refused("mnist", tmp_path)
    for broken in (good[:-9], b"not gzip", gzip.compress(b"abc"), b""):
        images.write_bytes(broken)
        assert str(images) in refused("mnist", tmp_path)


def test_mnist(shared_data):
    data = load("mnist", shared_data)
    assert data.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert np.bincount(data.train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert len(data.test.labels) == 10_000
    images = data.train.images(np.arange(60_000))
    assert float(images.mean()) == pytest.approx(0.1307, abs=1e-4)
    assert float(images.std()) == pytest.approx(0.3081, abs=1e-4)
