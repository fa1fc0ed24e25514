import pickle
import struct

import numpy as np
import pytest
import torch

from clients.data.cifar10 import BATCHES
from tests.clients.data.data_sources import images_of, load, patterns, refused


def write_cifar_npz(path, seed=0):
    pixels = patterns(25, (32, 32, 3), seed)
    np.savez(path, x_train=pixels[:20], y_train=np.arange(20) % 10, x_test=pixels[20:], y_test=np.arange(5))
    return pixels


def batch(pixels, labels, protocol=2):
    data = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), 3072)
    return pickle.dumps({b"data": data, b"labels": labels, b"batch_label": b"a batch"}, protocol)


def write_batches(folder, protocol=2):
    folder.mkdir(parents=True, exist_ok=True)
    pixels = patterns(6 * 4, (32, 32, 3))
    for number, name in enumerate(BATCHES):
        chunk = pixels[4 * number : 4 * number + 4]
        (folder / name).write_bytes(batch(chunk, [number, 1, 2, 3], protocol))
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


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_cifar10_batches(tmp_path, protocol):
    pixels = write_batches(tmp_path / "cifar-10-batches-py", protocol)
    data = load("cifar10", tmp_path)
    assert data.train.labels.tolist() == [0, 1, 2, 3, 1, 1, 2, 3, 2, 1, 2, 3, 3, 1, 2, 3, 4, 1, 2, 3]
    assert data.test.labels.tolist() == [5, 1, 2, 3]
    assert torch.equal(images_of(data.train, 9), torch.from_numpy(pixels[9:10]).permute(0, 3, 1, 2).float() / 255)


def test_a_batch_as_python_2_wrote_it(tmp_path):
    """The official files: byte strings, __setstate__ with raw bytes, labels as a list."""
    write_batches(tmp_path)
    data = bytes(range(256)) * 12
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
    dtype = b"cnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntb"
    state = b"(I1\n(I1\nI3072\nt" + dtype + b"I00\nT" + struct.pack("<i", 3072) + data + b"tb"
    official = b"\x80\x02}(U\x04data" + array + state + b"U\x06labels]K\x07au."
    (tmp_path / "test_batch").write_bytes(official)
    split = load("cifar10", tmp_path).test
    assert split.labels.tolist() == [7]
    assert torch.equal(images_of(split, 0).flatten(), torch.tensor(list(data)).float() / 255)


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_malicious_pickles_are_refused_and_not_run(tmp_path):
    write_batches(tmp_path)
    witness, path = tmp_path / "witness", tmp_path / "data_batch_3"
    for payload, name in [
        (Evil(exec, f"open({str(witness)!r}, 'w')"), "builtins.exec"),
        (Evil(__import__("os").system, f"touch {witness}"), "system"),
        (Evil(getattr, {}, "clear"), "builtins.getattr"),
        (np.random.default_rng, "numpy.random"),
    ]:
        path.write_bytes(pickle.dumps({b"data": payload, b"labels": [1]}))
        text = refused("cifar10", tmp_path)
        assert str(path) in text and name in text and "refused" in text
    assert not witness.exists()
    path.write_bytes(pickle.dumps({b"data": np.array([None, {}]), b"labels": [1]}))
    assert "dtype 'O8': only numbers are read" in refused("cifar10", tmp_path)
    for broken in (b"", b"\x80\x02}", b"garbage", pickle.dumps([1]), pickle.dumps({b"data": 3}), b"\x80\x02h\x05."):
        path.write_bytes(broken)
        assert str(path) in refused("cifar10", tmp_path)


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
