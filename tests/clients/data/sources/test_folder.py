import numpy as np
import pytest
import torch
from PIL import Image

from attacks.interface.errors import InputError
from tests.clients.data.data_sources import images_of, load, patterns, refused


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
