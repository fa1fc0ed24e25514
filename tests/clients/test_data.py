import gzip
import io
import pickle
import struct
import subprocess
import sys

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from attacks.errors import InputError
from clients.config import DataConfig
from clients.data import SOURCES, load_dataset
from clients.data.cifar10 import BATCHES


def load(name, root=None, **columns):
    return load_dataset(DataConfig(name=name, root=None if root is None else str(root), **columns))


def refused(name, root=None, **columns):
    """The message of the one error."""
    with pytest.raises(InputError) as error:
        load(name, root, **columns)
    text = str(error.value)
    assert "\n" not in text
    return text


def images_of(split, *indices):
    return split.images(np.array(indices))


def patterns(count, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


# names and roots


def test_importing_the_sources_is_cheap():
    script = "import sys, clients.data; print([m for m in ('sklearn', 'datasets', 'PIL', 'ray') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"


def test_unknown_names():
    assert refused("mnits") == "data.name is 'mnits', unknown; did you mean 'mnist'?; a hub data set is OWNER/NAME"
    assert all(name in refused("qqq") for name in SOURCES)


@pytest.mark.parametrize("name", sorted(set(SOURCES) - {"digits"}))
def test_a_missing_root(name, tmp_path):
    assert refused(name).startswith(f"data.root is not given: data {name!r} expects as its value a")
    absent = tmp_path / "absent"
    assert refused(name, absent).startswith(f"data.root is {str(absent)!r}: data {name!r} expects there a")
    assert refused(name, absent).endswith("there is no such file or folder")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert refused(name, empty).startswith(f"data.root is {str(empty)!r}: data {name!r} expects there a")


def test_loading_twice_reads_once():
    assert load("digits") is load("digits")


# digits


def test_digits():
    data = load("digits")
    assert len(data.train.labels) == 1437 and len(data.test.labels) == 360
    assert data.class_names == tuple("0123456789")
    counts = np.bincount(data.train.labels) + np.bincount(data.test.labels)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as scikit-learn documents them
    images = data.train.images(np.arange(1437))
    assert images.shape == (1437, 1, 8, 8) and images.dtype == torch.float32
    assert images.min() == 0 and images.max() == 1


# IDX


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


# CIFAR-10


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


# Tiny-ImageNet


def jpeg(color, mode="RGB", size=(64, 64)):
    buffer = io.BytesIO()
    Image.new(mode, size, color).save(buffer, "JPEG")
    return buffer.getvalue()


def write_tiny(path, pictures, labels, class_names=("goldfish, Carassius", "bullfrog, Rana", "bison")):
    offset = np.cumsum([0, *map(len, pictures)])
    names = np.array([f"{path.stem}/{i}.JPEG" for i in range(len(pictures))])
    np.savez(
        path,
        jpeg=np.frombuffer(b"".join(pictures), np.uint8),
        offset=offset,
        y=np.array(labels, np.int16),
        name=names,
        wnids=np.array([f"n{i}" for i in range(len(class_names))]),
        class_names=np.array(class_names),
    )


def test_tiny_imagenet_files(tmp_path):
    write_tiny(tmp_path / "train_2cls.npz", [jpeg((255, 0, 0)), jpeg(128, "L"), jpeg((0, 0, 255))], [2, 0, 2])
    write_tiny(tmp_path / "val_3.npz", [jpeg((0, 255, 0)), jpeg((0, 0, 0)), jpeg((255, 255, 255))], [1, 0, 2])
    data = load("tiny_imagenet", tmp_path)
    assert data.class_names == ("goldfish", "bison")
    assert data.train.labels.tolist() == [1, 0, 1]
    assert data.test.labels.tolist() == [0, 1]  # the bullfrog is no class of the training images
    assert images_of(data.test, 1, 0).mean((1, 2, 3)).tolist() == pytest.approx([1, 0], abs=0.01)
    red_grey = images_of(data.train, 0, 1)
    assert red_grey.shape == (2, 3, 64, 64) and red_grey.is_contiguous()
    assert red_grey[:, :, 5, 5].flatten().tolist() == pytest.approx([1, 0, 0, 0.5, 0.5, 0.5], abs=0.02)


def test_bad_tiny_imagenet_files(tmp_path):
    write_tiny(tmp_path / "train_1.npz", [jpeg((255, 0, 0)), b"no picture"], [0, 1])
    assert refused("tiny_imagenet", tmp_path).endswith("found for val: none")
    write_tiny(tmp_path / "val_1.npz", [jpeg((255, 0, 0), size=(32, 64)), jpeg((0, 0, 0))], [0, 1])
    data = load("tiny_imagenet", tmp_path)
    with pytest.raises(InputError, match=r"image 'train_1/1.JPEG' could not be read"):
        images_of(data.train, 1)
    with pytest.raises(InputError, match=r"image 'val_1/0.JPEG' is 32x64 pixels, the first image is 64x64"):
        images_of(data.test, 0)


def test_tiny_imagenet(shared_data):
    data = load("tiny_imagenet", shared_data / "tiny_imagenet")
    assert len(data.class_names) == 20 and data.class_names[0] == "goldfish"
    assert np.bincount(data.train.labels).tolist() == [250] * 20
    assert np.bincount(data.test.labels).tolist() == [50] * 20
    images = images_of(data.train, 0, 4999)
    assert images.shape == (2, 3, 64, 64) and 0 <= images.min() < images.max() <= 1


# class folders


def save(path, color, mode="RGB", size=(6, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)


def test_train_and_test_folders(tmp_path):
    save(tmp_path / "train/cat/b.png", (255, 0, 0))
    save(tmp_path / "train/cat/a.png", (0, 255, 0))
    save(tmp_path / "train/ant/x.BMP", (51, 51, 51))
    save(tmp_path / "test/cat/z.png", (0, 0, 255, 9), "RGBA")
    (tmp_path / "train/ant/notes.txt").write_text("not an image")
    (tmp_path / "train/.hidden").mkdir()
    data = load("folder", tmp_path)
    assert data.class_names == ("ant", "cat")
    assert data.train.labels.tolist() == [0, 1, 1] and data.test.labels.tolist() == [1]
    assert images_of(data.test, 0)[0, :, 0, 0].tolist() == [0, 0, 1]


def test_the_first_image_decides_between_grey_and_colour(tmp_path):
    save(tmp_path / "grey/train/a/1.png", 51, "L")
    save(tmp_path / "grey/train/b/1.png", (255, 255, 255))
    save(tmp_path / "grey/test/a/1.png", 255, "1")
    data = load("folder", tmp_path / "grey")
    assert images_of(data.train, 0, 1).shape == (2, 1, 4, 6)
    assert images_of(data.train, 0, 1)[:, 0, 0, 0].tolist() == pytest.approx([0.2, 1])
    assert images_of(data.test, 0).max() == 1
    save(tmp_path / "colour/train/a/1.png", (51, 0, 0))
    save(tmp_path / "colour/train/b/1.png", 255, "L")
    save(tmp_path / "colour/test/a/1.png", 0, "L")
    assert images_of(load("folder", tmp_path / "colour").train, 0, 1)[:, 2, 0, 0].tolist() == [0, 1]


def test_class_folders_without_a_split(tmp_path):
    for number in range(20):
        save(tmp_path / f"class{number % 2}/{number:02d}.png", 10 * number, "L")
    data = load("folder", tmp_path)
    assert len(data.train.labels) == 16 and len(data.test.labels) == 4
    images = torch.cat([data.train.images(np.arange(16)), data.test.images(np.arange(4))])
    labels = np.concatenate([data.train.labels, data.test.labels])
    numbers = (images[:, 0, 0, 0] * 255).round().int().numpy() // 10
    assert sorted(numbers) == list(range(20))
    assert (numbers % 2 == labels).all()


def test_bad_folders(tmp_path):
    save(tmp_path / "train/a/1.png", 0, "L")
    assert "only train has class folders: name that folder to have it split" in refused("folder", tmp_path)
    save(tmp_path / "test/b/1.png", 0, "L")
    assert "class 'b' is in test and not in train" in refused("folder", tmp_path)
    save(tmp_path / "train/b/7.png", 0, "L", (6, 5))
    text = refused("folder", tmp_path)
    assert text.startswith(f"image {str(tmp_path / 'train/b/7.png')!r} is 6x5 pixels, the first image is 6x4")
    (tmp_path / "train/b/7.png").write_bytes(b"no picture")
    assert f"image {str(tmp_path / 'train/b/7.png')!r} could not be read" in refused("folder", tmp_path)
    Image.fromarray(np.full((4, 6), 40_000, np.uint16)).save(tmp_path / "train/b/7.png")
    assert "save it with 8 bits per channel" in refused("folder", tmp_path)


def test_a_truncated_image_is_named(tmp_path):
    for number in range(2):
        noise = Image.fromarray(patterns(1, (40, 40, 3))[0])
        (tmp_path / f"class{number}").mkdir()
        noise.save(tmp_path / f"class{number}/a.png")
    path = tmp_path / "class1/a.png"
    path.write_bytes(path.read_bytes()[:2000])
    data = load("folder", tmp_path)
    with pytest.raises(InputError, match=r"class1/a.png' could not be read"):
        for split in (data.train, data.test):
            images_of(split, 0)


# the user's own npz


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
        ({"x_train": PIXELS, "y_train": np.array([0, {}, 1, 1, 0, 1])}, "Object arrays cannot be loaded"),
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


# the Hugging Face hub, from a local folder: nothing here needs a network


@pytest.fixture
def parquet(tmp_path):
    """Writes splits of (image, label) rows, and returns the folder's path and a cache folder."""

    def write(label=None, image="image", target="label", **splits):
        label = label or datasets.ClassLabel(names=["even", "odd"])
        features = datasets.Features({image: datasets.Image(), target: label, "note": datasets.Value("string")})
        folder = tmp_path / "owner" / "set"
        folder.mkdir(parents=True)
        for split, rows in splits.items():
            columns = {image: [row[0] for row in rows], target: [row[1] for row in rows], "note": [""] * len(rows)}
            table = datasets.Dataset.from_dict(columns, features=features)
            table.to_parquet(folder / f"{split}-00000-of-00001.parquet")
        return str(folder), tmp_path / "cache"

    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    yield write
    if not bars:
        datasets.enable_progress_bars()


def grey(level, size=(5, 4)):
    return Image.new("L", size, level)


def test_hub(parquet, capfd):
    rows = [(grey(10 * i), i % 2) for i in range(8)]
    name, cache = parquet(train=rows, test=rows[:3])
    data = load(name, cache)
    assert data.class_names == ("even", "odd")
    assert data.train.labels.tolist() == [0, 1] * 4 and data.test.labels.tolist() == [0, 1, 0]
    images = images_of(data.train, 7, 1)
    assert images.shape == (2, 1, 4, 5)
    assert (images[:, 0, 0, 0] * 255).round().tolist() == [70, 10]
    text = refused(name, cache, image_column="label")
    assert text.startswith("data.image_column is 'label': it holds ClassLabel") and text.endswith("no images")
    assert capfd.readouterr() == ("", "")


def test_hub_other_columns_and_labels(parquet):
    rows = [(grey(i), ["dog", "ant"][i % 2]) for i in range(4)]
    name, cache = parquet(datasets.Value("string"), "img", "kind", train=rows, validation=rows[1:])
    data = load(name, cache, image_column="img", label_column="kind")
    assert data.class_names == ("ant", "dog")
    assert data.train.labels.tolist() == [1, 0, 1, 0] and data.test.labels.tolist() == [0, 1, 0]
    expected = f"data.image_column is 'image': data {name!r} has the columns img, kind, note"
    assert refused(name, cache) == expected
    text = refused(name, cache, image_column="img")
    assert text == f"data.label_column is 'label': data {name!r} has the columns img, kind, note"


def test_hub_without_test_images(parquet):
    name, cache = parquet(train=[(grey(10 * i), i % 2) for i in range(10)])
    data = load(name, cache)
    assert len(data.train.labels) == 8 and len(data.test.labels) == 2
    levels = torch.cat([data.train.images(np.arange(8)), data.test.images(np.arange(2))])[:, 0, 0, 0]
    assert (levels.sort()[0] * 255).round().tolist() == list(range(0, 100, 10))


def test_hub_withheld_test_labels(parquet):
    rows = [(grey(i), i % 2) for i in range(6)]
    name, cache = parquet(train=rows, validation=rows[:2], test=[(grey(0), -1)])
    assert len(load(name, cache).test.labels) == 2


def test_hub_sizes_that_differ(parquet):
    name, cache = parquet(train=[(grey(1), 0), (grey(2, (5, 9)), 1)], test=[(grey(1), 0)])
    data = load(name, cache)
    with pytest.raises(InputError, match=r"train image 1' is 5x9 pixels, the first image is 5x4"):
        images_of(data.train, 0, 1)


def test_hub_that_cannot_be_reached(tmp_path, monkeypatch):
    def unreachable(*arguments, **options):
        raise ConnectionError("first line\nsecond line " + "x" * 999)

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    text = refused("nobody/nothing", tmp_path)
    expected = "data 'nobody/nothing' could not be loaded from the Hugging Face hub: ConnectionError: first line second"
    assert text.startswith(expected) and len(text) < 400


def test_a_local_folder_that_does_not_exist(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    assert "could not be loaded from the Hugging Face hub" in refused(str(tmp_path / "no/set"), tmp_path)
