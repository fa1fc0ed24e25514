"""Clients that train as people do, and what `span` returns of them that is no picture that the client fed.

`python -m tests.benchmarks.training_tricks --root DATA --first 5000 --clients 10` prints a row for each trick; `--each`
lists the clients with strays. Networks are MLPs of one or two hidden layers, Flower's quickstart CNN and vision
transformers; one to twenty steps, batches, rates, momentum, mean and deviation are drawn. Fed: different pictures that
any step saw; of SCAFFOLD those too that the correction is the gradient of. Raw: returned images within
26 dB of an image as it was before augmentation or mixing. A stray is a returned image farther than that from every
picture fed and every raw image, or features whose cosine with all that was fed is below 0.98; far: images beyond 20 dB.
"""

import argparse
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks import Knowledge, Observation, get_attack
from attacks.interface.errors import InputError
from attacks.interface.observation import State
from tests.benchmarks.odd_clients import STRAY, cosines, pooled, transformer
from tests.benchmarks.random_clients import Images, data_sets

FAR = 0.05  # root mean square distance, of pixels in [0, 1]
SIDE = 16
Pictures = Callable[[Tensor], Tensor]


def crops(images: Tensor) -> Tensor:
    wide, size = F.pad(images, (2,) * 4), images.shape[-1]
    places = zip(wide, corners(5, len(images)), strict=True)
    return torch.stack([one[:, i : i + size, j : j + size] for one, (i, j) in places])


def corners(below: int, count: int) -> list[list[int]]:
    return torch.randint(below, (count, 2)).tolist()


def erased(images: Tensor) -> Tensor:
    images = images.clone()
    for one, (i, j) in zip(images, corners(SIDE - 5, len(images)), strict=True):
        one[:, i : i + 5, j : j + 5] = 0
    return images


def cut_mixed(images: Tensor) -> Tensor:
    (i, j), other, images = corners(SIDE // 2, 1)[0], images[torch.randperm(len(images))], images.clone()
    images[..., i : i + 8, j : j + 8] = other[..., i : i + 8, j : j + 8]
    return images


def near(images: Tensor) -> Tensor:
    half = len(images) // 2
    return torch.cat([images[: len(images) - half], images[:half].roll(1, 3)])


def every_second(images: Tensor, value: float) -> Tensor:
    images = images.clone()
    images[::2] = value
    return images


def marked(images: Tensor) -> Tensor:
    mark = torch.rand(images.shape[1:]) < 0.1
    return torch.where(mark, torch.rand(images.shape[1:]), images)


def two_heads(left: Tensor, right: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(left, y % left.shape[1]) + F.cross_entropy(right, y % right.shape[1])


FED: dict[str, Pictures] = {  # in every step
    "crops": crops,
    "flips": lambda x: torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x, x.flip(3)),
    "colour jitter": lambda x: x * (0.8 + 0.4 * torch.rand(len(x), 1, 1, 1)) + 0.1 * torch.randn(x.shape[1], 1, 1),
    "erasing": erased,
    "noised views": lambda x: (x + 0.1 * torch.randn_like(x)).clamp(0, 1),
    "mixup": lambda x: torch.lerp(x, x[torch.randperm(len(x))], float(torch.rand(()))),
    "CutMix": cut_mixed,
}
CONTENT: dict[str, Pictures] = {
    "duplicates": lambda x: torch.cat([x[: len(x) - len(x) // 2], x[: len(x) // 2]]),
    "an image and its shifted self": near,
    "every second image black": lambda x: every_second(x, 0.0),
    "watermark": marked,
    "border": lambda x: F.pad(F.adaptive_avg_pool2d(x, SIDE - 6), (3,) * 4, value=0.5),
    "gray, three channels": lambda x: x.mean(1, keepdim=True).expand(-1, 3, -1, -1).clone(),
}
LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {  # of outputs, classes, what was fed
    "": lambda z, y, x: F.cross_entropy(z, y),
    "label smoothing": lambda z, y, x: F.cross_entropy(z, y, label_smoothing=0.1),
    "focal loss": lambda z, y, x: ((1 - (p := z.softmax(1).gather(1, y[:, None]))) ** 2 * -p.log()).mean(),
    "BCE, many labels": lambda z, y, x: F.binary_cross_entropy_with_logits(z, (torch.rand_like(z) < 0.3).float()),
    "autoencoder": lambda z, y, x: F.mse_loss(z, x.flatten(1)),
    "two heads": lambda z, y, x: two_heads(*z.tensor_split(2, dim=1), y),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "": lambda own, rate, momentum: torch.optim.SGD(own, rate, momentum),
    "weight decay": lambda own, rate, momentum: torch.optim.SGD(own, rate, momentum, weight_decay=5e-3),
    "Adam": lambda own, rate, momentum: torch.optim.Adam(own, 1e-3),
    "AdamW": lambda own, rate, momentum: torch.optim.AdamW(own, 1e-3),
    "RMSprop": lambda own, rate, momentum: torch.optim.RMSprop(own, 1e-3),
    "Adagrad": lambda own, rate, momentum: torch.optim.Adagrad(own, 1e-3),
}
SENT: dict[str, Callable[[Tensor], Tensor]] = {
    "update in float16": lambda change: change.half().float(),
    "update in 8 bits": lambda change: (change * (s := 127 / change.abs().max().clamp_min(1e-30))).round() / s,
    "the largest tenth": lambda change: change * (change.abs() >= change.abs().quantile(0.9)),
    "noise of a thousandth": lambda c: c + 1e-3 * c.norm() / c.numel() ** 0.5 * torch.randn_like(c),
}
OTHERS = ("plain", "clipped gradients", "accumulation", "SAM", "mean of the way's weights", "cosine rate", "FedProx")
OTHERS += ("SCAFFOLD", "dropout", "pixels 0 to 255", "pixels 0 to 255, small rate")
TRICKS = (*FED, *CONTENT, *list(LOSSES)[1:], *list(OPTIMIZERS)[1:], *SENT, *OTHERS)


@dataclass
class Client:
    """x: images (N, C, H, W) in [0, 1]. scale: of pixels, which the network is fed less `mean`. fed: what it saw."""

    trick: str
    draw: random.Random
    x: Tensor
    classes: Tensor
    mean: float
    scale: float
    fed: list[Tensor] = field(default_factory=list)

    def inputs(self, images: Tensor) -> Tensor:
        return (images - self.mean) * self.scale

    def network(self) -> tuple[str, nn.Module]:
        draw, shape, outputs = self.draw, (self.x.shape[1], SIDE, SIDE), 10
        pixels = math.prod(shape)
        kind, width = draw.choice(("one_hidden",) * 4 + ("two_hidden",) * 7 + ("pooled", "transformer")), 256
        if self.trick == "autoencoder":
            kind, outputs = draw.choice(("one_hidden", "two_hidden")), pixels
        if kind in ("pooled", "transformer"):
            return {"pooled": pooled, "transformer": transformer}[kind](draw, shape)
        drop = [nn.Dropout(0.3)] if self.trick == "dropout" else []
        if kind == "one_hidden":
            layers = (nn.Linear(pixels, width), nn.ReLU(), *drop, nn.Linear(width, outputs))
            return kind, nn.Sequential(nn.Flatten(), *layers)
        act = draw.choice((nn.ReLU, nn.ReLU, nn.GELU, nn.Tanh))
        layers = (nn.Linear(pixels, width), act(), *drop, nn.Linear(width, 128), act(), *drop, nn.Linear(128, outputs))
        return kind, nn.Sequential(nn.Flatten(), *layers)

    def loss(self, model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
        self.fed.append(self.inputs(images))
        outputs = model(self.fed[-1])
        return LOSSES.get(self.trick, LOSSES[""])(outputs, classes % outputs.shape[1], self.fed[-1])

    def train(self, model: nn.Module, others: Images) -> State:
        """Return the state that the client returns; the model is trained. others: whose gradient SCAFFOLD adds."""
        sent, draw = {name: value.clone() for name, value in model.state_dict().items()}, self.draw
        own = [one for one in model.parameters() if one.requires_grad]
        rate, steps, momentum = self.rate(), draw.choice((1, 2, 4, 10, 20)), draw.choice((0.0, 0.0, 0.9))
        batch, parts = draw.choice((1.0, 1.0, 0.5, 0.25)), 2 if self.trick == "accumulation" else 1
        size, way, order = max(1, int(batch * len(self.x))), list[State](), list[int]()
        optimizer = OPTIMIZERS.get(self.trick, OPTIMIZERS[""])(own, rate, momentum)
        correction = torch.autograd.grad(self.loss(model, *others), own) if self.trick == "SCAFFOLD" else []
        for step in range(steps):
            optimizer.zero_grad()
            for _ in range(parts):
                order = order if len(order) >= size else torch.randperm(len(self.x)).tolist()
                chosen, order = order[:size], order[size:]
                images, classes = FED.get(self.trick, lambda x: x)(self.x[chosen]), self.classes[chosen]
                self.loss(model, images, classes).backward()
            self.change_gradients(model, sent, correction, (images, classes))
            for group in optimizer.param_groups if self.trick == "cosine rate" else ():
                group["lr"] = rate * (1 + math.cos(math.pi * step / steps)) / 2
            optimizer.step()
            way.append({name: value.clone() for name, value in model.state_dict().items()})
        if self.trick != "mean of the way's weights":
            return way[-1]
        return {name: torch.stack([one[name] for one in way]).mean(0) for name in sent}

    def rate(self) -> float:
        rate = 10 ** self.draw.uniform(-3, -1)
        if self.scale > 100:  # larger rates diverge
            return rate * (1e-5 if self.trick == "pixels 0 to 255, small rate" else 1e-4)
        return rate

    def change_gradients(self, model: nn.Module, sent: State, correction: list[Tensor], batch: Images) -> None:
        own = {name: one for name, one in model.named_parameters() if one.requires_grad}
        if self.trick == "clipped gradients":
            nn.utils.clip_grad_norm_(own.values(), 0.5)
        for one, more in zip(own.values(), correction, strict=False):
            one.grad += more
        for name, one in own.items() if self.trick == "FedProx" else ():
            one.grad += 0.1 * (one.detach() - sent[name])
        if self.trick == "SAM":
            size = torch.stack([one.grad.norm() for one in own.values()]).norm()
            moves = [0.05 * one.grad / size for one in own.values()]
            for sign in (1, -1):
                with torch.no_grad():
                    for one, move in zip(own.values(), moves, strict=True):
                        one += sign * move
                if sign > 0:
                    model.zero_grad()
                    self.loss(model, *batch).backward()


def client(trick: str, seed: int, sets: list[Images]) -> tuple[Client, str, Observation, Knowledge]:
    """(the client, trained, its network, what a server sees of it and is told)."""
    draw = random.Random(f"{seed} {trick}")
    torch.manual_seed(draw.randrange(2**31))
    images, labels = draw.choice(sets)
    chosen, size = torch.randperm(len(labels)), draw.choice((1, 2, 3, 4, 8, 8, 16))
    own, others = chosen[:size], chosen[size : size + 8]
    raw, spread = trick.startswith("pixels"), draw.choice((1.0, 2.0, 4.0))
    alter = CONTENT.get(trick, lambda x: x)
    mean, scale = (0.0, 255.0) if raw else (draw.choice((0.0, 0.45)), spread)
    made = Client(trick, draw, alter(images[own]), labels[own], mean, scale)
    kind, model = made.network()
    model.train()
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    returned = made.train(model, (alter(images[others]), labels[others]))
    change = SENT.get(trick, lambda change: change)
    returned = {name: sent[name] + change(value - sent[name]) for name, value in returned.items()}
    model.load_state_dict(sent)
    channels = made.x.shape[1]
    told = {"pixel_mean": (made.mean,) * channels, "pixel_std": (1 / made.scale,) * channels}
    told |= {"num_private": len(made.x)} if draw.random() < 0.3 else {}
    return made, kind, Observation(model, ((sent, returned),), tuple(made.x.shape[1:])), Knowledge(**told)


def counted(trick: str, seed: int, sets: list[Images]) -> tuple[Counter, str]:
    """(what came back of a client, how it came about)."""
    made, kind, observation, knowledge = client(trick, seed, sets)
    fed = torch.cat(made.fed)
    row = Counter(clients=1, private=len(made.x), fed=len(fed.flatten(1).unique(dim=0)))
    try:
        found = get_attack("span").run(observation, knowledge, torch.Generator().manual_seed(seed))
    except InputError as error:
        return row + Counter(refused=1), str(error)
    bound = FAR * made.scale * made.x[0].numel() ** 0.5
    own = made.inputs(made.x)
    away, raw = (
        torch.cdist(found.images.flatten(1).double(), part.flatten(1).double()) for part in (torch.cat([fed, own]), own)
    )
    alike = cosines(found, observation, fed)
    strays = int((away.amin(1) > bound).sum()) + int((alike < STRAY).sum())
    row += Counter(returned=len(away), features=len(alike), strays=strays, far=int((away.amin(1) > 2 * bound).sum()))
    row += Counter(raw=int((raw.amin(1) <= bound).sum()))
    errors = ", ".join(f"{value:.3f}" for value in (away.amin(1) / bound * FAR).tolist())
    return row, f"{kind}, {len(made.x)} images; off by {errors}; {found.warnings}"


def small_sets(root: Path) -> list[Images]:
    """CIFAR-10 and MNIST in 16x16 pixels, in [0, 1]."""
    ranged = [((x - x.min()) / (x.max() - x.min()), labels) for x, labels in data_sets(root)[:2]]
    return [(F.adaptive_avg_pool2d(x, SIDE), labels) for x, labels in ranged]


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tricks", nargs="*", choices=TRICKS, default=TRICKS)
    parser.add_argument("--first", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--each", action="store_true")
    given = parser.parse_args()
    sets = small_sets(given.root)
    names = ("clients", "refused", "private", "fed", "returned", "raw", "features", "strays", "far")
    print("| trick |", " | ".join(names), "|")
    print("|---" * (1 + len(names)) + "|", flush=True)
    for trick in given.tricks:
        row = Counter()
        for seed in range(given.first, given.first + given.clients):
            one, said = counted(trick, seed, sets)
            row += one
            if given.each and one["strays"]:
                print(f"seed {seed}, {trick}: {dict(one)} {said}", flush=True)
        print("|", " | ".join([trick, *(str(row[name]) for name in names)]), "|", flush=True)


if __name__ == "__main__":
    main()
