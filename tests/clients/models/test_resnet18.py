import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from attacks import InputError
from clients.config import DataConfig, ModelConfig, TrainingConfig
from clients.data import load_dataset
from clients.models import build_model
from clients.models.checkpoint import find_head
from clients.training import train

SHAPE = (3, 32, 32)
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def build(outputs=10, shape=SHAPE, seed=0, **options):
    return build_model(ModelConfig(**{"name": "resnet18", "channels": 4, **options}), shape, outputs, seed)


def published_shapes():
    """Keys and shapes of torchvision's resnet18-f37072fd.pth, in its order, written down from its documentation."""
    shapes = {"conv1.weight": (64, 3, 7, 7), **norm("bn1", 64)}
    for stage, (before, width) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)], start=1):
        for block in (0, 1):
            name, into = f"layer{stage}.{block}", before if block == 0 else width
            shapes |= {f"{name}.conv1.weight": (width, into, 3, 3), **norm(f"{name}.bn1", width)}
            shapes |= {f"{name}.conv2.weight": (width, width, 3, 3), **norm(f"{name}.bn2", width)}
            if block == 0 and stage > 1:
                shapes |= {f"{name}.downsample.0.weight": (width, into, 1, 1), **norm(f"{name}.downsample.1", width)}
    return shapes | {"fc.weight": (1000, 512), "fc.bias": (1000,)}


def norm(name, width):
    return {f"{name}.{part}": () if part == "num_batches_tracked" else (width,) for part in NORM}


def random_statistics(model):
    """BatchNorm that is no identity, so that a forgotten one is noticed."""
    generator = torch.Generator().manual_seed(1)
    state = model.state_dict()
    for value in state.values():
        if value.dim() == 1:
            value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
    return state


def test_keys_shapes_and_number_of_parameters_are_those_of_the_published_network():
    model = build(1000, channels=64)
    found = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert found == published_shapes() and list(found) == list(published_shapes())
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_689_512


@pytest.mark.parametrize("size", [32, 37])
def test_forward_is_that_of_the_definition(size):
    model = build(shape=(3, size, size), precision="float64")
    s = random_statistics(model)

    def normalized(x, name):
        mean, var, scale, shift = (
            s[f"{name}.{part}"].view(1, -1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 1e-5).sqrt() * scale + shift

    images = torch.randn(2, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = F.max_pool2d(normalized(F.conv2d(images, s["conv1.weight"], None, 2, 3), "bn1").clamp_min(0), 3, 2, 1)
    for name, stride in [
        ("layer1.0", 1), ("layer1.1", 1), ("layer2.0", 2), ("layer2.1", 1),
        ("layer3.0", 2), ("layer3.1", 1), ("layer4.0", 2), ("layer4.1", 1),
    ]:  # fmt: skip
        hidden = normalized(F.conv2d(x, s[f"{name}.conv1.weight"], None, stride, 1), f"{name}.bn1").clamp_min(0)
        hidden = normalized(F.conv2d(hidden, s[f"{name}.conv2.weight"], None, 1, 1), f"{name}.bn2")
        if f"{name}.downsample.0.weight" in s:
            x = normalized(F.conv2d(x, s[f"{name}.downsample.0.weight"], None, stride), f"{name}.downsample.1")
        x = (hidden + x).clamp_min(0)
    expected = x.flatten(2).mean(2) @ s["fc.weight"].T + s["fc.bias"]
    with torch.no_grad():
        assert torch.allclose(model(images), expected, rtol=1e-10, atol=1e-12)


def test_a_small_stem_is_one_convolution_of_stride_one_under_the_same_key():
    small, published = build(stem="cifar", input_scale=0.25), build()
    shapes = {name: tuple(value.shape) for name, value in small.state_dict().items()}
    assert shapes == {n: tuple(v.shape) for n, v in published.state_dict().items()} | {"conv1.weight": (4, 3, 3, 3)}
    s, images = random_statistics(small), torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    seen = []
    small.layer1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    small(images)
    hidden = F.conv2d(images / 0.25, s["conv1.weight"], None, 1, 1)
    expected = F.batch_norm(hidden, s["bn1.running_mean"], s["bn1.running_var"], s["bn1.weight"], s["bn1.bias"])
    torch.testing.assert_close(seen[0], expected.clamp_min(0))


def test_weights_of_that_stem_know_their_task(shared_data):
    """74 % of 932 images, as its notes say; of the first 200 here, 0.74 ± 0.09 is three standard deviations."""
    path, images = shared_data / "models" / "resnet18_c16_cifar10.safetensors", shared_data / "cifar10"
    if not path.is_file():
        pytest.skip(f"no weights at {path}")
    model = build(channels=16, stem="cifar", input_scale=0.25, checkpoint=str(path))
    split = load_dataset(DataConfig(name="cifar10", root=str(images))).test
    pixels, labels = split.images(np.arange(200)), torch.from_numpy(split.labels[:200])
    with torch.no_grad():
        assert float((model(pixels - 0.5).argmax(1) == labels).float().mean()) == pytest.approx(0.74, abs=0.09)


def test_weights_load_from_safetensors_and_from_a_pytorch_file(tmp_path):
    model = build(seed=1)
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    torch.save(model.state_dict(), tmp_path / "a.pth")
    for name in ("a.safetensors", "a.pth"):
        loaded = build(seed=2, checkpoint=str(tmp_path / name)).state_dict()
        assert all(torch.equal(value, loaded[key]) for key, value in model.state_dict().items())


def test_a_pytorch_file_that_runs_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"weight": Evil()}))
    torch.save({"epoch": 3}, tmp_path / "other.pth")
    for name, says in (("evil.pth", "tensors alone"), ("other.pth", "no state dict")):
        with pytest.raises(InputError, match=says):
            build(checkpoint=str(tmp_path / name))


def test_a_head_of_other_classes_is_refused_or_drawn_anew(tmp_path):
    source = build(1000, seed=1)
    torch.save(source.state_dict(), tmp_path / "a.pth")
    with pytest.raises(InputError, match="replace_head"):
        build(10, checkpoint=str(tmp_path / "a.pth"))
    model = build(10, seed=2, checkpoint=str(tmp_path / "a.pth"), replace_head=True)
    assert model.fc.weight.shape == (10, 32)
    assert torch.equal(model.fc.weight, build(10, seed=2).fc.weight)
    assert torch.equal(model.layer4[1].conv2.weight, source.layer4[1].conv2.weight)
    with pytest.raises(InputError, match="does not fit"):
        build(10, channels=5, checkpoint=str(tmp_path / "a.pth"), replace_head=True)


def test_a_head_of_several_layers_takes_the_place_of_the_published_one(tmp_path):
    source = build(1000, seed=1)
    torch.save(source.state_dict(), tmp_path / "a.pth")
    model = build(10, seed=2, head=[7, 5], checkpoint=str(tmp_path / "a.pth"), replace_head=True)
    assert [tuple(p.shape) for p in model.fc.parameters()] == [(7, 32), (7,), (5, 7), (5,), (10, 5), (10,)]
    assert torch.equal(model.layer4[1].conv2.weight, source.layer4[1].conv2.weight)


@pytest.mark.parametrize(
    ("model", "head"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), "3"),
        (nn.ModuleDict({"features": nn.Conv2d(1, 2, 3), "classifier": nn.Sequential(nn.Linear(4, 3))}), "classifier"),
        (nn.ModuleDict({"net": nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(4, 3))}), "net.2"),
    ],
)
def test_the_head_is_the_largest_part_with_linear_layers_alone(model, head):
    assert find_head(model) == head


def test_old_files_without_batch_counters_load(tmp_path):
    state = build(seed=1).state_dict()
    save_file({k: v for k, v in state.items() if "num_batches" not in k}, tmp_path / "a.safetensors")
    loaded = build(seed=2, checkpoint=str(tmp_path / "a.safetensors"))
    assert torch.equal(loaded.conv1.weight, state["conv1.weight"])


def test_fine_tuning_leaves_frozen_batch_norm_as_it_was():
    """The paper's protocol: neither its factors nor its statistics move."""
    model = build(frozen=["*bn?.*", "*downsample.1.*"], precision="float64")
    random_statistics(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(4, *SHAPE, generator=generator), torch.tensor([0, 1, 2, 3])
    train(model, images, labels, TrainingConfig(steps=3, learning_rate=0.01, batch_norm="eval"), generator)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name, value in before.items() if value.dim() in (2, 4)} | {"fc.bias"}
    assert model.conv1.weight.dtype == torch.float64
    step = model.conv1.weight.detach() - before["conv1.weight"]
    assert not torch.equal(step, step.float().double())  # no step was rounded to float32


def test_training_from_scratch_moves_the_statistics():
    model = build()
    generator = torch.Generator().manual_seed(0)
    images = 3 + torch.randn(64, *SHAPE, generator=generator)
    expected = F.conv2d(images, model.conv1.weight.detach(), None, 2, 3).mean((0, 2, 3))
    train(model, images, torch.zeros(64).long(), TrainingConfig(steps=1), generator)
    assert torch.allclose(model.bn1.running_mean, 0.1 * expected, atol=1e-5)  # PyTorch's momentum of 0.1, from 0
    assert not model.training
