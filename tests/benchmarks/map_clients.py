"""Clients that train a ResNet-18, and how near the maps come that the span attack finds of them."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from attacks import Knowledge, Observation, Reconstruction, get_attack
from attacks.interface.observation import State
from attacks.interface.torch_tools import torch_generator
from attacks.span.maps.inversion import PixelSpace
from clients.models.networks import ResNet18, ResNet18Options, Stem

SCALE = 0.25  # what pixels, minus 0.5, are divided by
CLASSES = 10


@dataclass(frozen=True)
class LocalTraining:
    """What a client does in a round: SGD, cross-entropy; batch 0 is all images."""

    rate: float = 0.01
    epochs: int = 1
    batch: int = 0
    momentum: float = 0.0
    weight_decay: float = 0.0
    mode: str = "eval"


@dataclass(frozen=True)
class MapClient:
    """A network at the parameters that were sent, its private images and the parameters returned."""

    model: ResNet18
    images: Tensor
    final: State

    @property
    def observation(self) -> Observation:
        shape = (self.images.shape[1], self.images.shape[2], self.images.shape[3])
        return Observation(self.model, ((dict(self.model.state_dict()), self.final),), shape)

    def attacked(self, seed: int = 0) -> Reconstruction:
        """What the span attack finds, told nothing but the mean that was subtracted."""
        knowledge = Knowledge(pixel_mean=(0.5, 0.5, 0.5))
        return get_attack("span").run(self.observation, knowledge, torch_generator(seed, "attack"))

    def maps(self, layer: str, training: bool) -> Tensor:
        """The private images' maps (N, …), flat, in front of a layer, at the parameters sent."""
        seen: list[Tensor] = []
        handle = self.model.get_submodule(layer).register_forward_pre_hook(
            lambda _, fed: seen.append(fed[0].flatten(1))
        )
        state = {name: value.clone() for name, value in self.model.state_dict().items()}
        with torch.no_grad():
            self.model.train(training)(self.images)
        self.model.eval().load_state_dict(state)
        handle.remove()
        return seen[0]

    def errors(self, found: Reconstruction, training: bool = False) -> list[float]:
        """For each private image how far the nearest map that was found lies from its own, relative to its length."""
        true = self.maps(str(found.facts["layer"]), training)
        if found.features is None or not len(found.features):
            return [math.inf] * len(true)
        nearest = torch.cdist(true, found.features.flatten(1)).min(1).values
        return sorted((nearest / true.norm(dim=1)).tolist())


def leaves(count: int, side: int, seed: int) -> Tensor:
    """Images (count, 3, side, side) of discs with the contrast of photographs, minus 0.5."""
    return PixelSpace((3, side, side), None).decoys(count, torch.Generator().manual_seed(seed))


def random_resnet(channels: int, side: int, stem: Stem = "cifar", batches: int = 10) -> ResNet18:
    """Random weights; the running statistics are those of discs."""
    torch.manual_seed(0)
    model = ResNet18(3, CLASSES, ResNet18Options(channels=channels, stem=stem, input_scale=SCALE)).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the plain mean over all batches
    with torch.no_grad():
        for batch in range(batches):
            model(leaves(16, side, batch))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1
    return model.eval()


def trained_resnet(weights: Path) -> ResNet18:
    """A ResNet-18 of 16 channels with a 3x3 stem, at the weights of a file."""
    state = load_file(weights)
    model = ResNet18(3, CLASSES, ResNet18Options(channels=len(state["conv1.weight"]), stem="cifar", input_scale=SCALE))
    model.load_state_dict(state)
    return model.eval()


def cifar(file: Path, count: int, seed: int, split: str = "test") -> tuple[Tensor, Tensor]:
    """(images (count, 3, 32, 32) minus 0.5, labels) of a file with `x_SPLIT` and `y_SPLIT`."""
    data = np.load(file)
    chosen = np.random.default_rng(seed).permutation(len(data[f"x_{split}"]))[:count]
    images = torch.tensor(data[f"x_{split}"][chosen]).permute(0, 3, 1, 2).float() / 255
    return images - 0.5, torch.tensor(data[f"y_{split}"][chosen]).long()


def client(model: ResNet18, images: Tensor, labels: Tensor, training: LocalTraining, seed: int = 0) -> MapClient:
    """The client that trains so on these images; the network keeps the parameters that were sent."""
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    model.train(training.mode == "train")
    sgd = torch.optim.SGD(
        model.parameters(), training.rate, momentum=training.momentum, weight_decay=training.weight_decay
    )
    generator = torch.Generator().manual_seed(seed)
    for _ in range(training.epochs):
        for chosen in torch.randperm(len(images), generator=generator).split(training.batch or len(images)):
            sgd.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            sgd.step()
    final = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(initial)
    return MapClient(model.eval(), images, final)
