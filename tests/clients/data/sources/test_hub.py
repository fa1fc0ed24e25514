import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from attacks.interface.errors import InputError
from tests.clients.data.data_sources import images_of, load, refused


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
