import numpy as np
import pytest
import torch

from tests.clients.data.data_sources import images_of, load, patterns, refused


def write_npz(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 7), (1, 5, 7)),
        ((5, 7, 3), (3, 5, 7)),
        ((5, 7, 1), (1, 5, 7)),
        ((3, 5, 7), (3, 5, 7)),
        ((1, 5, 7), (1, 5, 7)),
    ],
)
def test_npz_layouts(tmp_path, shape, expected):
    pixels = patterns(10, shape)
    path = write_npz(
        tmp_path / "own.npz", x_train=pixels, y_train=np.arange(10) % 2, x_test=pixels, y_test=np.arange(10) % 2
    )
    images = images_of(load("npz", path).train, 4)
    assert images.shape == (1, *expected)
    channels_last = pixels[4].ndim == 3 and shape[2] in (1, 3)
    wanted = pixels[4].transpose(2, 0, 1) if channels_last else pixels[4].reshape(expected)
    assert torch.equal(images[0], torch.from_numpy(wanted.copy()).float() / 255)


def test_npz_floats_and_a_split_of_its_own(tmp_path):
    pixels = np.linspace(0, 1, 50).reshape(50, 1, 1) * np.ones((50, 4, 4))
    path = write_npz(tmp_path / "own.npz", x_train=pixels.astype(">f8"), y_train=np.repeat([3, 7], 25)[:, None])
    data = load("npz", path)
    assert data.class_names == ("3", "7")
    assert len(data.train.labels) == 40 and len(data.test.labels) == 10
    levels = torch.cat([data.train.images(np.arange(40)), data.test.images(np.arange(10))])[:, 0, 0, 0]
    torch.testing.assert_close(levels.sort()[0], torch.linspace(0, 1, 50))
    assert data.train.labels.tolist() == (data.train.images(np.arange(40))[:, 0, 0, 0] > 0.5).int().tolist()


def test_npz_labels(tmp_path):
    pixels = patterns(6, (4, 4))
    strings = write_npz(tmp_path / "a.npz", x_train=pixels, y_train=np.array(list("baabab")))
    assert load("npz", strings).class_names == ("a", "b")
    signs = write_npz(tmp_path / "b.npz", x_train=pixels, y_train=np.array([-1, 1, 1, -1, 1, 1]))
    assert load("npz", signs).class_names == ("-1", "1")
    named = write_npz(
        tmp_path / "c.npz", x_train=pixels, y_train=np.array([0, 2, 2, 0, 2, 0]), class_names=np.array(["x", "y", "z"])
    )
    assert load("npz", named).class_names == ("x", "z")


PIXELS = np.zeros((6, 4, 4))
LABELS = np.arange(6) % 2


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"x_train": PIXELS}, "has no y_train (it has x_train)"),
        ({"x_train": PIXELS, "y_train": LABELS, "x_test": PIXELS}, "has one of x_test and y_test"),
        ({"x_train": PIXELS + 255, "y_train": LABELS}, "x_train lies in [255, 255]: scale its floats to [0, 1]"),
        ({"x_train": PIXELS - 0.5, "y_train": LABELS}, "x_train lies in [-0.5, -0.5]"),
        ({"x_train": PIXELS * np.nan, "y_train": LABELS}, "x_train lies in [nan, nan]"),
        ({"x_train": PIXELS.astype(np.int64), "y_train": LABELS}, "x_train is int64: uint8 or floats"),
        ({"x_train": PIXELS[:, None].repeat(2, 1), "y_train": LABELS}, "x_train has shape (6, 2, 4, 4)"),
        ({"x_train": PIXELS[:0], "y_train": LABELS[:0]}, "x_train holds no pixels"),
        ({"x_train": PIXELS, "y_train": LABELS[:5]}, "x_train holds 6 images, y_train 5 labels"),
        ({"x_train": PIXELS, "y_train": LABELS / 2}, "train labels are float64 of shape (6,)"),
        ({"x_train": PIXELS, "y_train": np.eye(6, dtype=int)}, "train labels are int64 of shape (6, 6)"),
        (
            {"x_train": PIXELS, "y_train": LABELS, "x_test": PIXELS, "y_test": LABELS + 1},
            "class '2' has test images and no training images",
        ),
        (
            {"x_train": PIXELS, "y_train": LABELS, "x_test": PIXELS[:, 1:], "y_test": LABELS},
            "images are (1, 4, 4) in x_train, (1, 3, 4) in x_test",
        ),
        (
            {"x_train": PIXELS, "y_train": LABELS, "class_names": np.array(["a"])},
            "labels from 0 to 1, and 1 class_names",
        ),
        (
            {"x_train": PIXELS, "y_train": np.array([0, {}, 1, 1, 0, 1])},
            "y_train holds objects, which are pickles: they are never loaded",
        ),
        ({"x_train": PIXELS[:1], "y_train": LABELS[:1]}, "1 images are too few"),
    ],
)
def test_bad_npz(tmp_path, arrays, expected):
    assert expected in refused("npz", write_npz(tmp_path / "own.npz", **arrays))


def test_files_that_are_no_npz(tmp_path):
    path = write_npz(tmp_path / "own.npz", x_train=PIXELS, y_train=LABELS)
    for content in (b"", b"text", path.read_bytes()[:-40]):
        path.write_bytes(content)
        assert refused("npz", path) == f"{str(path)!r} is no npz file"
    assert refused("npz", tmp_path).endswith("this is a folder")
