"""Odd clients of every kind of network, and what `span` returns of them that is nobody's.

`python -m tests.benchmarks.odd_clients --root DATA --kind two_hidden --first 0 --clients 40` prints a row for each kind
of network (`ODD`). Their images are constant, equal, nearly equal, binary or nearly black among others, and have 16x16
pixels; one to ten steps, with momentum, weight decay or Adam; means of several clients and several rounds; updates with
noise, or of which entries were left out or rounded; attackers who are told something wrong. `--each` lists the clients
with strays. A stray is a returned image with no private one within 20 dB, or farther from every private one than half
of the length of that; or a map or vector whose cosine with every private one is below 0.98. Inexact is what is returned
beyond 30 dB, or below 0.998, and no stray; off is an image that misses a private one by more than three times the error
that is stated of it.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks import Knowledge, Observation, Reconstruction, get_attack
from attacks.interface.errors import InputError
from attacks.interface.observation import State
from attacks.networks.probing import watched
from attacks.span.feature_space.network import find_feature_network
from clients.models.networks import ViTTinyOptions
from tests.benchmarks.random_clients import ACTIVATIONS, Images, arguments, data_sets, print_table
from tests.benchmarks.zoo import MNIST_MEAN

SIDE = 16  # of an odd client's images
STRAY, INEXACT = 0.98, 0.998  # cosine with a private map or vector below which one that is returned is called so
SMOOTH = (nn.ReLU, nn.ReLU, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh)
CONTENT = ("usual",) * 6 + ("constant", "twice", "nearly", "dot", "binary", "border")
SPOILED = ("",) * 10 + ("noise", "noise", "left out", "left out", "bits", "bfloat16", "float16", "sent in bfloat16")
Shape = tuple[int, int, int]
Named = tuple[str, nn.Module]


def two_hidden(draw: random.Random, shape: Shape) -> Named:
    kind, width, second = draw.choice(ACTIVATIONS), draw.choice((64, 128, 256)), draw.choice((64, 128))
    layers = (nn.Linear(math.prod(shape), width), kind(), nn.Linear(width, second), kind())
    return f"two hidden layers, {kind.__name__}", nn.Sequential(
        nn.Flatten(), *layers, nn.Linear(second, draw.choice((1, 2, 10, 10)))
    )


def one_hidden(draw: random.Random, shape: Shape) -> Named:
    width, outputs = draw.choice((64, 128, 256)), draw.choice((1, 2, 10, 10))
    layers = (nn.Linear(math.prod(shape), width), nn.ReLU(), nn.Linear(width, outputs))
    return "one hidden layer", nn.Sequential(nn.Flatten(), *layers)


def transformer(draw: random.Random, shape: Shape) -> Named:
    """One or two blocks; weights as torch or as `vit_tiny` draws them; positions learned or fixed."""
    patch, width, depth = draw.choice((4, 8)), draw.choice((48, 96, 192)), draw.choice((1, 2))
    model = ViTTinyOptions(patch=patch, width=width, depth=depth).build(shape, draw.choice((2, 10)))
    for block in model.blocks:
        wide = draw.choice((2, 4)) * width
        block.mlp = nn.Sequential(nn.Linear(width, wide), draw.choice(SMOOTH)(), nn.Linear(wide, width))
    if draw.random() < 0.5:
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.reset_parameters()
    learned = draw.random() < 0.7
    model.tokens.pos_embed.requires_grad_(learned)
    return f"vision transformer, positions {'learned' if learned else 'fixed'}", model


def strided(draw: random.Random, shape: Shape) -> Named:
    """Four convolutions, three or two of stride 2, normalized or not, and the mean over places."""
    kind, norm, given = draw.choice(SMOOTH), draw.choice(("none", "none", "group", "batch")), shape[0]
    layers: list[nn.Module] = []
    sizes = ((16, 2), (draw.choice((32, 64)), 2), (draw.choice((96, 128, 192)), draw.choice((1, 2))), (96, 1))
    for width, stride in sizes:
        normed = {"none": [], "group": [nn.GroupNorm(8, width)], "batch": [nn.BatchNorm2d(width)]}[norm]
        layers += [nn.Conv2d(given, width, 3, stride, 1), *normed, kind()]
        given = width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(given, 10))
    return f"strided convolutions, norm {norm}", model.train(draw.random() < 0.3)


def bottlenecks(draw: random.Random, shape: Shape) -> Named:
    """MobileNetV2's blocks without ways around, in inference mode."""

    def layer(given: int, width: int, size: int, stride: int, groups: int = 1) -> nn.Sequential:
        convolution = nn.Conv2d(given, width, size, stride, size // 2, groups=groups, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU6())

    one, two = draw.choice((48, 64)), draw.choice((96, 144))
    blocks = [layer(shape[0], 16, 3, 2), layer(16, one, 1, 1), layer(one, one, 3, 2, one), layer(one, 32, 1, 1)[:2]]
    blocks += [layer(32, two, 1, 1), layer(two, two, 3, 2, two), layer(two, 64, 1, 1)[:2], layer(64, 128, 1, 1)]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    return "MobileNetV2's blocks", model.eval()


def pooled(draw: random.Random, shape: Shape) -> Named:
    """Two convolutions with max pooling that feed three linear layers fewer numbers than images have pixels."""
    width, pool = draw.choice((6, 12)), (nn.ReLU(), nn.MaxPool2d(2))
    body = (nn.Conv2d(shape[0], 6, 3), *pool, nn.Conv2d(6, width, 3), *pool, nn.Flatten())
    one, two = draw.choice((64, 120)), draw.choice((48, 84))
    head = (nn.Linear(4 * width, one), nn.ReLU(), nn.Linear(one, two), nn.ReLU(), nn.Linear(two, 10))
    return "max pooling", nn.Sequential(*body, *head)


def frozen_body(draw: random.Random, shape: Shape) -> Named:
    """A convolution that is not trained, and three linear layers."""
    kind, width = draw.choice(SMOOTH), draw.choice((8, 16))
    body = nn.Conv2d(shape[0], width, 3, 2, 1).requires_grad_(False)
    one, two = draw.choice((64, 128)), draw.choice((64, 128))
    head = (nn.Linear(64 * width, one), kind(), nn.Linear(one, two), kind(), nn.Linear(two, 10))
    return "frozen body", nn.Sequential(body, kind(), nn.Flatten(), *head)


class Through(nn.Module):
    """What a network sees of its images (N, C, H, W)."""

    def __init__(self, seen: Callable[[Tensor], Tensor]):
        super().__init__()
        self.seen = seen

    def forward(self, images: Tensor) -> Tensor:
        return self.seen(images)


UNSEEN: dict[str, Callable[[Tensor], Tensor]] = {  # of which something is not: size, brightness, contrast, signs
    "size": lambda images: 10 * images / images.flatten(1).norm(dim=1).clamp_min(1e-6)[:, None, None, None],
    "brightness": lambda images: images - images.mean((1, 2, 3), keepdim=True),
    "brightness and contrast": lambda images: nn.functional.layer_norm(images, images.shape[1:]),
    "those of channels": nn.functional.instance_norm,
    "signs": lambda images: 4 * images.square(),
}


def unseen(draw: random.Random, shape: Shape) -> Named:
    """As many features as pixels, of which something is not seen, and three linear layers."""
    name, pixels, width = draw.choice(list(UNSEEN)), math.prod(shape), draw.choice((128, 256))
    layers = (nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 10))
    return f"unseen {name}", nn.Sequential(Through(UNSEEN[name]), nn.Flatten(), *layers)


class Noise(nn.Module):
    """Adds normal noise of a size in training."""

    def __init__(self, size: float):
        super().__init__()
        self.size = size

    def forward(self, given: Tensor) -> Tensor:
        return given + self.size * torch.randn_like(given) if self.training else given


PREFIXES: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda images: images,
    "a sine": lambda images: torch.cat([torch.sin(3 * images), torch.cos(3 * images)], 1),
    "absolute values": torch.abs,
}


def behind_noise(draw: random.Random, shape: Shape) -> Named:
    """Linear layers, a LeNet or convolutions with a mean, that see their images, a sine or absolute values of them;
    with dropout or noise anywhere among the layers, in training or in evaluation mode, or without."""
    seen, kind, width = PREFIXES[draw.choice(list(PREFIXES))], draw.choice(SMOOTH), draw.choice((48, 64))
    given = seen(torch.zeros(1, *shape)).shape[1]
    body = [nn.Conv2d(given, 24, 5, 2, 2), kind(), nn.Conv2d(24, width, 5, 1, 2), kind()]
    mean = [nn.Conv2d(width, 128, 3, 2, 1), kind(), nn.Conv2d(128, 96, 3, 2, 1), kind(), nn.AdaptiveAvgPool2d(1)]
    body, frozen = draw.choice((([], False), (body, False), (body, True), ([*body, *mean], False)))
    layers = [Through(seen), *body, nn.Flatten()]
    nn.Sequential(*layers).requires_grad_(not frozen)
    sizes = [nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1], *draw.choice(((128, 64), (128, 64), (200,))), 10]
    for into, out in itertools.pairwise(sizes[:1] + sizes[-1:] if len(body) > 4 else sizes):
        layers += [nn.Linear(into, out), kind()]
    noise = draw.choice((None, nn.Dropout(0.1), nn.Dropout(0.4), Noise(0.05), Noise(0.5)))
    if noise is None:
        return "odd prefixes, no noise", nn.Sequential(*layers[:-1])
    layers.insert(draw.randrange(len(layers) - 1), noise)
    training = draw.random() < 0.6
    return f"noise, {'training' if training else 'evaluation'} mode", nn.Sequential(*layers[:-1]).train(training)


@dataclass(frozen=True)
class Odd:
    """A kind of odd clients: their network, how many images they have, the lowest and highest log10 of their rate."""

    build: Callable[[random.Random, Shape], Named]
    numbers: tuple[int, ...]
    rates: tuple[float, float] = (-3.0, -1.0)


ODD = {
    "two_hidden": Odd(two_hidden, (1, 2, 3, 4, 8, 16, 32)),
    "one_hidden": Odd(one_hidden, (1, 2, 3, 4, 8, 16, 32, 64)),
    "transformer": Odd(transformer, (1, 1, 1, 2)),
    "several_patches": Odd(transformer, (2, 2, 3, 4, 8)),
    "strided": Odd(strided, (1, 2, 3, 4, 8, 16)),
    "bottlenecks": Odd(bottlenecks, (1, 2, 3, 4, 8), (-1.5, 0.0)),
    "pooled": Odd(pooled, (1, 2, 3, 4, 8, 16)),
    "frozen_body": Odd(frozen_body, (1, 2, 4, 8)),
    "unseen": Odd(unseen, (2, 4, 8)),
    "behind_noise": Odd(behind_noise, (1, 2, 3, 4, 8)),
}


@dataclass(frozen=True)
class Training:
    """What every one of `clients` does, each with images of its own, before a server sees the mean of their replies."""

    clients: int
    steps: int
    batch: int | None
    loss: str
    rate: float
    momentum: float
    decay: float
    adam: bool

    @classmethod
    def drawn(cls, draw: random.Random, rates: tuple[float, float]) -> "Training":
        clients, steps = draw.choice((1, 1, 1, 1, 1, 1, 2, 3)), draw.choice((1, 1, 1, 1, 2, 4, 10))
        batch, loss = draw.choice((None, None, None, 1, 2)), draw.choice(("entropy", "entropy", "entropy", "square"))
        momentum, decay = draw.choice((0.0, 0.0, 0.9)), draw.choice((0.0, 0.0, 0.0, 0.0, 1e-3, 1e-2))
        return cls(clients, steps, batch, loss, 10 ** draw.uniform(*rates), momentum, decay, draw.random() < 0.06)

    def mean(self, model: nn.Module, images: Tensor, labels: Tensor) -> State:
        """The mean of the states that come back; the model's own stays what it was."""
        sent = {name: value.clone() for name, value in model.state_dict().items()}
        mean = {name: torch.zeros_like(value) for name, value in sent.items()}
        for part in torch.arange(len(images)).tensor_split(min(self.clients, len(images))):
            self._train(model, images[part], labels[part])
            for name, value in model.state_dict().items():
                mean[name] += value * (len(part) / len(images)) if value.is_floating_point() else value - mean[name]
            model.load_state_dict(sent)
        return mean

    def _train(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        parameters = [one for one in model.parameters() if one.requires_grad]
        optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, self.rate, self.momentum, 0.0, self.decay)
        if self.adam:
            optimizer = torch.optim.Adam(parameters, 0.01 * self.rate)
        for _ in range(self.steps):
            own = torch.randperm(len(images))[: self.batch]
            optimizer.zero_grad()
            outputs = model(images[own])
            classes = labels[own] % max(2, outputs.shape[1])
            if self.loss == "square" or outputs.shape[1] == 1:
                F.mse_loss(
                    outputs, F.one_hot(classes, max(2, outputs.shape[1]))[:, : outputs.shape[1]].float()
                ).backward()
            else:
                F.cross_entropy(outputs, classes).backward()
            optimizer.step()


def odd_content(draw: random.Random, images: Tensor) -> tuple[str, Tensor]:
    """Images in [0, 1] (N, C, H, W) as they are, or some of them of an odd content, with its name."""
    content, images = draw.choice(CONTENT), images.clone()
    some = images[1::2] if len(images) > 1 else images
    if content == "constant":
        some[:] = torch.rand(len(some), 1, 1, 1)
    elif content in ("twice", "nearly"):
        some[:] = (images[::2][: len(some)] + (content == "nearly") * 0.03 * torch.randn(some.shape)).clamp(0, 1)
    elif content == "dot":
        some[:] = 0
        some[:, :, draw.randrange(SIDE), draw.randrange(SIDE)] = 1
    elif content == "binary":
        images = (images > images.mean()).float()
    elif content == "border":
        images[:, :, :4] = images[:, :, -4:] = 0
    return content, images


def spoiled(draw: random.Random, sent: State, returned: State) -> tuple[str, State, dict[str, float]]:
    """(what was done to the update, the state then, what may be told of it)."""
    kind, size, found = draw.choice(SPOILED), draw.choice((1e-6, 1e-4, 1e-2, 0.05)), {}
    kept, bits = draw.choice((0.1, 0.5, 0.9)), draw.choice((4, 8))
    told = {"noise": {"noise_scale": size}, "left out": {"kept_fraction": kept}, "bits": {"quantization_bits": bits}}
    told["sent in bfloat16"] = {"significant_bits": 8}
    for name, value in returned.items():
        found[name] = value
        if not value.is_floating_point() or value.equal(sent[name]) or not kind:
            continue
        change = value - sent[name]
        if kind == "noise":
            change = change + size * change.norm() / change.numel() ** 0.5 * torch.randn_like(change)
        elif kind == "left out":
            least = change.abs().flatten().sort(descending=True).values[max(1, round(kept * change.numel())) - 1]
            change = change * (change.abs() >= least)
        elif kind == "bits":
            step = change.abs().max() / (2 ** (bits - 1) - 1)
            change = (change / step).round() * step
        elif kind in ("bfloat16", "float16"):
            change = change.to(getattr(torch, kind)).float()
        found[name] = value.bfloat16().float() if kind == "sent in bfloat16" else sent[name] + change
    return kind, found, told.get(kind, {})


def odd_client(seed: int, odd: Odd, sets: list[Images]) -> tuple[str, str, Observation, Knowledge, Tensor]:
    """(its network, how it came about, what a server sees of it and is told, its private images)."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    images, labels = draw.choice(sets)
    number, mean = draw.choice(odd.numbers), draw.choice((0.0, 0.5, MNIST_MEAN))
    chosen = torch.randperm(len(labels))[:number]
    content, pixels = odd_content(draw, images[chosen])
    private, shape = pixels - mean, (images.shape[1], SIDE, SIDE)
    kind, model = odd.build(draw, shape)
    training, rounds = Training.drawn(draw, odd.rates), draw.choice(("one",) * 6 + ("same", "other"))
    pairs, told, how = [], {}, ""
    for part in {"one": [slice(None)], "same": [slice(None)] * 2, "other": [slice(0, None, 2), slice(1, None, 2)]}[
        rounds
    ]:
        if not len(private[part]):
            continue
        sent = {name: value.clone() for name, value in model.state_dict().items()}
        how, returned, told = spoiled(draw, sent, training.mean(model, private[part], labels[chosen][part]))
        pairs.append((sent, returned))
        model.load_state_dict(returned)
    model.load_state_dict(pairs[0][0])
    wrong, known = draw.randrange(1, 2 * number + 2), dict(told) if draw.random() < 0.4 else {}
    known |= {"num_private": draw.choice((None, None, number, wrong))}
    said = draw.choice((None, mean, mean, draw.random()))
    known |= {"pixel_mean": None if said is None else (said,) * shape[0]}
    if draw.random() < 0.05:
        known |= {"quantization_bits": 8}
    said = f"{number} images, {content}, less {mean:g}; {rounds} round; {training}; {how or 'plain'}; told {known}"
    return kind, said, Observation(model, tuple(pairs), shape), Knowledge(**known), private


def of_private(observation: Observation, private: Tensor, layer: str) -> Tensor:
    """What a layer is fed of the private images (2 N, …), in inference mode and in training mode."""
    model, fed = observation.model, list[Tensor]()
    modes, sent = model.training, {name: value.clone() for name, value in model.state_dict().items()}
    module = {"": model.get_submodule(layer)}
    with torch.no_grad(), watched(module, lambda name: lambda module, given: fed.append(given[0]), before=True):
        for mode in (False, True):
            model.train(mode)(private)
    model.train(modes).load_state_dict(sent)
    return torch.cat(fed)


def cosines(found: Reconstruction, observation: Observation, private: Tensor) -> Tensor:
    """The largest cosine (F,) of each map or vector that was returned with a private one."""
    features = found.features
    if features is None or not len(features):
        return torch.zeros(0)
    network = find_feature_network(observation.model, observation.input_shape)
    layer = str(found.facts["layer"]) if "layer" in found.facts else network.layers[0] if network else ""
    fed, module = of_private(observation, private, layer), observation.model.get_submodule(layer)
    if features.dim() == 2 and isinstance(module, nn.Conv2d):
        fed = F.unfold(fed, module.kernel_size, module.dilation, module.padding, module.stride).mT.flatten(0, 1)
    if isinstance(module, nn.Linear):  # of tokens, each by itself
        fed = fed.flatten(0, -2)
    true, own = (F.normalize(part.flatten(1).double(), dim=1) for part in (fed, features))
    return (own[:, : true.shape[1]] @ true.T).amax(1)


def odd_counted(seed: int, sets: list[Images], odd: Odd) -> tuple[str, Counter, str]:
    """(kind of client, what came back of it, how it came about)."""
    try:
        kind, said, observation, knowledge, private = odd_client(seed, odd, sets)
    except InputError as error:  # there is nothing to see where training diverged
        return "diverged", Counter(clients=1, refused=1), str(error)
    row = Counter(clients=1, private=len(private))
    try:
        found = get_attack("span").run(observation, knowledge, torch.Generator().manual_seed(seed))
    except InputError:
        return kind, row + Counter(refused=1), said
    near, size = 0.1 * private[0].numel() ** 0.5, private.flatten(1).norm(dim=1)
    bounds = torch.where(size > near / 10, (size / 2).clamp_max(near), near)
    others = found.images[:0] if found.held is None else found.held
    away, held = (torch.cdist(part.flatten(1), private.flatten(1)) / bounds for part in (found.images, others))
    alike, away = cosines(found, observation, private), away.amin(1)
    strays = int((away > 1).sum()) + int((alike < STRAY).sum())
    inexact = int((away > 10**-0.5).sum()) + int((alike < INEXACT).sum()) - strays
    row += Counter(
        returned=len(away), features=len(alike), strays=strays, inexact=inexact, clients_with_strays=strays > 0
    )
    stated = found.residual if "pixel_error" in found.facts else found.residual[:0]
    missed = torch.cdist(found.images.flatten(1), private.flatten(1)).amin(1) / private[0].numel() ** 0.5
    row += Counter(off=int((missed[: len(stated)] > 3 * stated + 1e-5).sum()))
    return kind, row + Counter(held=int((held <= 1).any(1).sum())), f"{said}; {found.warnings}"


def main() -> None:
    torch.set_num_threads(1)
    given = arguments(__doc__, ODD)
    sets = [
        (F.adaptive_avg_pool2d((images - images.min()) / (images.max() - images.min()), SIDE), labels)
        for images, labels in data_sets(given.root)
    ]

    def clients() -> Iterator[tuple[str, Counter]]:
        for seed in range(given.first, given.first + given.clients):
            kind, row, said = odd_counted(seed, sets, ODD[given.kind])
            if given.each and row["strays"] + row["inexact"] + row["off"]:
                print(f"seed {seed}: {dict(row)} {said}", flush=True)
            yield kind, row

    names = ("clients", "refused", "private", "returned", "features", "strays", "clients_with_strays", "held")
    print_table(clients(), (*names, "inexact", "off"))


if __name__ == "__main__":
    main()
