"""Clients of held-out images: no constant of the span attack was chosen with any of them in view, but those of
`thresholds.CROWDED` (seed 0 of MNIST), and of `CERTAINTY` and `EXTREME`, which were chosen on other clients of the same
test images.

The images come from the official test splits of three data sets: MNIST's 10,000, the lossless 932 of CIFAR-10, and of
Tiny-ImageNet's validation images the last fifth of each class (figure 18 of docs/records/paper_open.md has trained on
others). No scenario, document or test has made them a client's private images. Networks, order and choice of images are
drawn from the client's seed.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.interface.torch_tools import numpy_generator, torch_generator
from clients.config import ClientConfig, DataConfig, ModelConfig, PartitionConfig, TrainingConfig
from clients.data import load_dataset
from clients.data.arrays import Dataset
from clients.defenses.base import Defense, DefenseContext
from clients.models import build_model
from clients.training import train

DATA = ("mnist", "cifar10", "tiny_imagenet")
USED = {"tiny_imagenet": 0.8}  # share of each class's test images that others may have used
CLASSES = 20  # outputs of a network where nothing else is said: the most that a data set has
MEAN_OF = 500  # training images whose mean, per channel, every client subtracts


def mlp(width: int, **options: object) -> ModelConfig:
    """Two hidden layers."""
    return ModelConfig(name="mlp", options={"width": width, **options})


PLAIN = TrainingConfig(epochs=5, batch_size=4, learning_rate=0.05)


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of client, and what its attacker is told. rounds: of one client, each from where the last one ended.
    classes: outputs of the network. device: that trains it."""

    name: str
    images: int = 20
    model: ModelConfig = field(default_factory=lambda: mlp(256))
    training: TrainingConfig = PLAIN
    defense: Defense = field(default_factory=Defense)
    told: Knowledge = field(default_factory=Knowledge)
    rounds: int = 1
    classes: int = CLASSES
    device: str = "cpu"


@dataclass(frozen=True)
class Client:
    """private: (N, C, H, W), as its network is given them. others: (Q, C, H, W), held-out images it does not hold."""

    observation: Observation
    private: Tensor
    others: Tensor


def make_client(kind: Kind, data: str, root: Path, seed: int, others: int = 0) -> Client:
    """The client of a kind that a seed draws, trained; others: how many further images are drawn."""
    images, labels = draw_images(data, root, kind.images + others, seed)
    private = images[: kind.images]
    return Client(observe(kind, private, labels[: kind.images], seed), private, images[kind.images :])


def draw_images(data: str, root: Path, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Different held-out images (count, C, H, W), less the mean that clients subtract, and their classes (count,)."""
    dataset, mean = _read(data, str(root))
    chosen = numpy_generator(seed, "held out").permutation(unused(dataset.test.labels, data))[:count]
    return dataset.test.images(chosen) - mean, torch.from_numpy(dataset.test.labels[chosen])


def unused(labels: np.ndarray, data: str) -> np.ndarray:
    """Indices of the test images that are held out, from the labels (N,) of all of them."""
    rank = np.zeros(len(labels))
    for label in np.unique(labels):
        rank[labels == label] = np.linspace(0, 1, int((labels == label).sum()), endpoint=False)
    return np.flatnonzero(rank >= USED.get(data, 0.0))


def observe(kind: Kind, images: Tensor, labels: Tensor, seed: int) -> Observation:
    """What a server sees of a client that trains on images (N, C, H, W) of classes (N,), from the seed's network."""
    shape = (images.shape[1], images.shape[2], images.shape[3])
    model = build_model(kind.model, shape, kind.classes, seed)
    return Observation(model, tuple(_round(kind, model, images, labels, seed, r) for r in range(kind.rounds)), shape)


def _round(kind: Kind, model: nn.Module, images: Tensor, labels: Tensor, seed: int, number: int) -> tuple[State, State]:
    """(the checkpoint that was sent, the one that came back); the model goes on from what came back."""
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    model.to(kind.device)
    train(
        model,
        images.to(kind.device),
        labels.to(kind.device),
        kind.training,
        torch_generator(seed, "held out", number),
    )
    model.cpu()
    parts = {"data": DataConfig(), "partition": PartitionConfig(), "model": kind.model, "training": kind.training}
    context = DefenseContext(ClientConfig(seed=seed, clients=1, **parts), number, 0, model)
    delta = {name: value - sent[name] for name, value in model.state_dict().items()}
    protected, _ = kind.defense.protect_update(delta, context)
    returned = {name: sent[name] + value for name, value in protected.items()}
    model.load_state_dict(returned)
    return sent, returned


def pixel_mean(data: str, root: Path) -> tuple[float, ...]:
    """The mean that clients subtract, per channel."""
    return tuple(_read(data, str(root))[1].flatten().tolist())


@lru_cache(maxsize=len(DATA))
def _read(data: str, root: str) -> tuple[Dataset, Tensor]:
    """The data set, and the mean (C, 1, 1) that clients subtract."""
    dataset = load_dataset(DataConfig(name=data, root=root))
    return dataset, dataset.train.images(np.arange(MEAN_OF)).mean((0, 2, 3))[:, None, None]


@dataclass(frozen=True)
class Tally:
    """Of private images: exact, recovered: how many have a returned one within 40 and within 20 dB (PSNR). Of returned
    ones: strays, how many have no private one within 20 dB. Pixels range over 1."""

    private: int = 0
    exact: int = 0
    recovered: int = 0
    strays: int = 0

    @classmethod
    def of(cls, private: Tensor, returned: Tensor) -> "Tally":
        if not len(returned):
            return cls(len(private))
        error = torch.cdist(private.flatten(1).double(), returned.flatten(1).double()) / private[0].numel() ** 0.5
        exact, recovered = (int((error.amin(1) <= bound).sum()) for bound in (0.01, 0.1))
        return cls(len(private), exact, recovered, int((error.amin(0) > 0.1).sum()))

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def __str__(self) -> str:
        return f"{self.exact}/{self.recovered}/{self.strays}"
