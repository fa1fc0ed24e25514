from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attacks import InputError, torch_generator
from clients.data import _load
from clients.data.partition import _split_data, split_data
from clients.local_update import make_model
from clients.training import train
from simulator.run.estimate import estimate_pretraining
from simulator.run.pretraining import Pretraining, pretrain
from simulator.scenario.scenario import validate
from simulator.scenario.yaml_source import YamlSource


def scenario(data=None, replace_head=False, own=None, precision="float32", **pretraining):
    section = {"steps": 4, "batch_size": 20, "learning_rate": 0.05, **pretraining}
    if data is not None:
        section["data"] = data
    content = {
        "name": "fine",
        "data": {**(own or {}), "public": 40 if own is None else 4, "test": 40},
        "partition": {"images": 4},
        "federation": {"clients": 1},
        "model": {
            "name": "resnet18",
            "channels": 4,
            "precision": precision,
            "replace_head": replace_head,
            "pretrain": section,
        },
    }
    return validate(YamlSource(content))


def start(scenario):
    config = scenario.cells()[0].client_config(use_gpu=False)
    data = split_data(scenario.data, scenario.partition, 1, scenario.seed)
    return make_model(config, data), config, data


@pytest.fixture
def colours(tmp_path):
    """60 grey images of 12x12 pixels in three classes, as bright as their class."""
    labels = np.arange(60) % 3
    images = np.broadcast_to((labels * 100).astype(np.uint8)[:, None, None, None], (60, 12, 12, 1))
    arrays = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    np.savez(tmp_path / "colours.npz", **arrays)
    return {"name": "npz", "root": str(tmp_path / "colours.npz"), "public": 50}


def test_pretraining_moves_statistics_and_keeps_the_head_of_other_data_out(tmp_path, colours):
    plan = scenario(data=colours)
    model, config, data = start(plan)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pretrain(model, config, data, tmp_path, lambda done, total, loss: None)
    assert not torch.equal(model.bn1.running_mean, before["bn1.running_mean"])
    assert not torch.equal(model.layer4[1].conv2.weight, before["layer4.1.conv2.weight"])
    assert torch.equal(model.fc.weight, before["fc.weight"]) and model.fc.weight.shape[0] == 10


def test_pretraining_in_double_precision_has_a_price():
    assert estimate_pretraining(SimpleNamespace(cells=scenario(precision="float64").cells())) > 0


def test_other_images_are_scaled_by_the_mean_of_their_pixels_and_have_their_own_classes(colours):
    _, config, data = start(scenario(data=colours))
    pretraining = Pretraining.of(config, data)
    assert pretraining.images.shape == (50, 1, 8, 8) and pretraining.network().fc.weight.shape[0] == 3
    shades = (pretraining.images + data.normalization.mean[0])[:, 0]
    assert torch.allclose(shades, (pretraining.targets * 100 / 255)[:, None, None].expand_as(shades), atol=1e-6)


def test_targets_are_those_of_its_own_loss():
    """Of the squared error, 1 − 1/10 for the class of an image and −1/10 for the nine others."""
    _, config, data = start(scenario(loss="mse"))
    assert config.training.loss == "cross_entropy"
    expected = torch.full((40, 10), -0.1).scatter(1, data.public()[1][:, None], 0.9)
    torch.testing.assert_close(Pretraining.of(config, data).targets, expected)


def test_weights_are_kept_and_found_again(tmp_path):
    steps = []
    states = []
    for _ in range(2):
        model, config, data = start(scenario())
        pretrain(model, config, data, tmp_path, lambda done, total, loss: steps.append((done, total)))
        states.append(model.state_dict())
    assert steps == [(2, 4), (4, 4)]  # two batches of 20 per epoch, trained once only
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert len(list((tmp_path / "pretrained").glob("*.safetensors"))) == 1
    model, config, data = start(scenario(steps=5))
    pretrain(model, config, data, tmp_path, lambda done, total, loss: None)
    assert len(list((tmp_path / "pretrained").glob("*.safetensors"))) == 2


def test_on_the_public_pool_it_is_plain_training_of_the_same_network(tmp_path):
    model, config, data = start(scenario(folder=str(tmp_path / "kept")))
    pretrain(model, config, data, tmp_path / "run", lambda done, total, loss: None)
    other, _, _ = start(scenario())
    images, labels = data.public()
    generator = torch_generator(0, "pretraining")
    inputs = images - torch.tensor(data.normalization.mean).view(1, -1, 1, 1)
    train(other, inputs, labels, config.model.pretrain, generator)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
    assert (tmp_path / "kept").is_dir() and not (tmp_path / "run").exists()


def test_a_head_drawn_anew_is_not_the_one_that_features_grew_towards(tmp_path):
    model, config, data = start(scenario(replace_head=True))
    assert not torch.equal(Pretraining.of(config, data).network().fc.weight, model.fc.weight)
    before = model.fc.weight.clone()
    pretrain(model, config, data, tmp_path, lambda done, total, loss: None)
    assert torch.equal(model.fc.weight, before) and bool(model.bn1.running_mean.any())


@pytest.mark.parametrize("root", [None, "/tmp"])
def test_the_federation_s_own_data_is_refused_since_private_images_are_in_it(root):
    _, config, data = start(scenario(data={"name": "digits", "root": root, "public": 40}))
    with pytest.raises(InputError, match="the federation's own"):
        Pretraining.of(config, data)


@pytest.fixture
def own_images(tmp_path, monkeypatch):
    """40 random images of 8x8 pixels in d.npz and, the same, in copy.npz, in the working directory."""
    monkeypatch.chdir(tmp_path)
    images, labels = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8), np.arange(40) % 2
    for name in ("d.npz", "copy.npz"):
        np.savez(tmp_path / name, x_train=images, y_train=labels)
    return tmp_path


@pytest.mark.parametrize("root", ["d.npz", "./d.npz", "{folder}/../{name}/d.npz", "copy.npz"])
def test_private_images_are_refused_however_their_file_is_written(own_images, root):
    root = root.format(folder=own_images, name=own_images.name)
    plan = scenario(data={"name": "npz", "root": root, "public": 20}, own={"name": "npz", "root": "d.npz"})
    _, config, data = start(plan)
    with pytest.raises(InputError, match="private images"):
        Pretraining.of(config, data)
    assert plan.model.pretrain.data.root == str((own_images / root).resolve())


def test_the_folder_of_weights_does_not_depend_on_where_a_run_is_read(own_images):
    assert scenario(folder="kept").model.pretrain.folder == str(own_images / "kept")


def test_data_with_other_channels_is_refused(tmp_path):
    images = np.zeros((20, 8, 8, 3), np.uint8)
    labels = np.arange(20) % 2
    np.savez(tmp_path / "rgb.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    _, config, data = start(scenario(data={"name": "npz", "root": str(tmp_path / "rgb.npz"), "public": 10}))
    with pytest.raises(InputError, match="3 channels"):
        Pretraining.of(config, data)


def test_weights_of_other_images_or_labels_under_the_same_name_are_not_taken(colours):
    def digest():
        _load.cache_clear()  # another process would read it anew
        _split_data.cache_clear()
        _, config, data = start(scenario(data=colours))
        return Pretraining.of(config, data).digest

    before, arrays = digest(), dict(np.load(colours["root"]))
    assert digest() == before
    np.savez(colours["root"], **arrays | {"y_train": (arrays["y_train"] + 1) % 3})
    labels = digest()
    np.savez(colours["root"], **arrays | {"x_train": arrays["x_train"] // 2})
    assert len({before, labels, digest()}) == 3
