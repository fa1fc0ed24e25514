import io

import numpy as np
import pytest
from PIL import Image

from attacks.interface.errors import InputError
from tests.clients.data.data_sources import images_of, load, refused


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


def test_the_validation_file_alone_serves_for_both(tmp_path):
    """Five images of class 0 and ten of class 2, mixed: four fifths of each are trained on, the first ones."""
    labels = [2, 0, 2, 2, 0, 2, 2, 0, 2, 2, 0, 2, 2, 0, 2]
    grey = [jpeg((10 * i, 10 * i, 10 * i)) for i in range(15)]
    write_tiny(tmp_path / "val_3.npz", grey, labels)
    data = load("tiny_imagenet", tmp_path)
    assert data.class_names == ("goldfish", "bison")
    assert np.bincount(data.train.labels).tolist() == [4, 8] and np.bincount(data.test.labels).tolist() == [1, 2]
    shades = images_of(data.test, 0, 1, 2).mean((1, 2, 3)) * 255  # the fifth 0 is image 13, the last two 2s 12 and 14
    assert sorted(round(float(shade), -1) for shade in shades) == [120, 130, 140]


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
