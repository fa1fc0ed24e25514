import numpy as np
import pytest
import torch

from tests.clients.data.data_sources import images_of, load, patterns, refused


def write_cifar_npz(path, seed=0):
    pixels = patterns(25, (32, 32, 3), seed)
    np.savez(path, x_train=pixels[:20], y_train=np.arange(20) % 10, x_test=pixels[20:], y_test=np.arange(5))
    return pixels


@pytest.mark.parametrize("as_file", [True, False])
def test_cifar10_npz(tmp_path, as_file):
    pixels = write_cifar_npz(tmp_path / "exact.npz")
    np.savez(tmp_path / "a_lossy_copy.npz", jpeg_train=np.zeros(9, np.uint8), y_train=np.zeros(1))
    data = load("cifar10", tmp_path / "exact.npz" if as_file else tmp_path)
    assert torch.equal(images_of(data.train, 3), torch.from_numpy(pixels[3:4]).permute(0, 3, 1, 2).float() / 255)
    assert torch.equal(images_of(data.test, 1), torch.from_numpy(pixels[21:22]).permute(0, 3, 1, 2).float() / 255)
    assert data.class_names[3] == "cat"


def test_two_npz_files_that_qualify(tmp_path):
    write_cifar_npz(tmp_path / "a.npz")
    write_cifar_npz(tmp_path / "b.npz")
    assert "a.npz, b.npz all qualify" in refused("cifar10", tmp_path)


def test_the_official_batches_are_refused_with_a_remedy(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"not read")
    for root in (tmp_path, tmp_path / "cifar-10-batches-py"):
        text = refused("cifar10", root)
        assert "are pickles, which are never loaded" in text and "uoft-cs/cifar10" in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"x_train": np.zeros((20, 32, 32, 3))}, "x_train is float64 of shape (20, 32, 32, 3): uint8"),
        ({"x_test": np.zeros((5, 3, 32, 32), np.uint8)}, "x_test is uint8 of shape (5, 3, 32, 32)"),
        ({"y_train": np.arange(19) % 10}, "19 labels of int64 for 20 images"),
        ({"y_train": np.arange(20)}, "labels from 0 to 19: 0 to 9 are expected"),
    ],
)
def test_bad_cifar10_npz(tmp_path, changes, expected):
    write_cifar_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", **{**np.load(tmp_path / "a.npz"), **changes})
    assert expected in refused("cifar10", tmp_path)


def test_cifar10(shared_data):
    data = load("cifar10", shared_data / "cifar10")
    assert len(data.train.labels) == 4660 and len(data.test.labels) == 932  # the lossless file, not the JPEGs
    names = [data.class_names[label] for label in data.train.labels[:4]]
    assert names == ["frog", "truck", "truck", "deer"]
    assert [data.class_names[label] for label in data.test.labels[:4]] == ["cat", "ship", "ship", "airplane"]
    assert (images_of(data.train, 0)[0, :, 0, 0] * 255).tolist() == [59, 62, 63]
    means = data.train.images(np.arange(4660)).mean((0, 2, 3)).tolist()
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=0.01)
