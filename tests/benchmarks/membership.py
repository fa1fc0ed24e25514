"""Membership in clients of hundreds of images: what is told beside published signals, on Flower's quickstart network.

`python -m tests.benchmarks.membership --root DATA` prints a line of CSV for each client and signal: of 500 members and
592 others, both of CIFAR-10's lossless subset, the area under the ROC curve and the true-positive rates at 1 and 5 %
false positives. Ten clients of 500 images train a round on batches of 32 by Adam (1e-3), for ten rounds. *gradient* is
the project's, *cosine* is that of an image's gradient with the update, *cosine, others* is FedMIA-II's signal, that
cosine less its mean over the other clients of the round, *loss* that of the returned network, *loss, others* that of
FedMIA-I. All are means over rounds, the first or all of them, in units of their standard deviation.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.gradient_membership import gradient_scores
from attacks.interface.observation import Observation, State
from attacks.membership import MembershipScore
from tests.attacks.user_networks import Quickstart

CLIENTS, IMAGES, BATCH, RATE = 10, 500, 32, 1e-3
SHAPE = (3, 32, 32)


def lossless(root: Path) -> tuple[Tensor, Tensor]:
    """All images of the subset, in [−1, 1], and their classes."""
    with np.load(root / "cifar10" / "cifar10_lossless_subset.npz") as data:
        pixels = np.concatenate([data["x_train"], data["x_test"]]).transpose(0, 3, 1, 2)
        labels = np.concatenate([data["y_train"], data["y_test"]]).astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(pixels)).float() / 127.5 - 1, torch.from_numpy(labels)


def trained(state: State, images: Tensor, labels: Tensor, generator: torch.Generator) -> State:
    """The parameters after an epoch from `state`."""
    model = Quickstart()
    model.load_state_dict(state)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    for batch in torch.randperm(len(images), generator=generator).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def federation(images: Tensor, labels: Tensor, rounds: int, seed: int) -> list[tuple[State, list[State]]]:
    """(parameters sent, those that every client returned) of every round; client c holds the c-th 500 images."""
    torch.manual_seed(seed)
    state, found = dict(Quickstart().state_dict()), []
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rounds):
        back = [trained(state, images[own], labels[own], generator) for own in shares()]
        found.append((state, back))
        state = {name: torch.stack([one[name] for one in back]).mean(0) for name in state}
    return found


def shares() -> list[slice]:
    return [slice(c * IMAGES, (c + 1) * IMAGES) for c in range(CLIENTS)]


def published(sent: State, back: list[State], client: int, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The signals of one round, (Q,) each, higher for members."""
    model = Quickstart()
    names = [name for name, _ in model.named_parameters()]
    updates = torch.stack([torch.cat([(sent[name] - one[name]).flatten() for name in names]) for one in back])

    def loss(parameters: State, image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, parameters, (image[None],)), label[None])

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))
    cosines = []
    for part, classes in zip(images.split(256), labels.split(256), strict=True):
        flat = torch.cat([value.flatten(1) for value in gradients(sent, part, classes).values()], 1)
        cosines.append(F.normalize(flat, dim=1) @ F.normalize(updates, dim=1).T)
    cosine = torch.cat(cosines)
    with torch.no_grad():
        losses = torch.stack(
            [
                F.cross_entropy(torch.func.functional_call(model, one, (images,)), labels, reduction="none")
                for one in back
            ],
            1,
        )
    others = [other for other in range(len(back)) if other != client]
    return {
        "cosine": cosine[:, client],
        "cosine, others": cosine[:, client] - cosine[:, others].mean(1),
        "loss": -losses[:, client],
        "loss, others": losses[:, others].mean(1) - losses[:, client],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[300, 301])
    parser.add_argument("--clients", type=int, default=5, help="of each federation that are attacked")
    given = parser.parse_args()
    torch.set_num_threads(1)
    everything, classes = lossless(given.root)
    print("seed,client,signal,rounds,auc,auc_low,auc_high,tpr_1pct,tpr_1pct_low,tpr_1pct_high", flush=True)
    for seed in given.seeds:
        order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(seed))
        images, labels = everything[order], classes[order]
        rounds = federation(images, labels, given.rounds, seed)
        for client in range(given.clients):
            chosen = torch.cat(
                [torch.arange(len(images))[shares()[client]], torch.arange(CLIENTS * IMAGES, len(images))]
            )
            own, kinds = images[chosen], labels[chosen]
            found: dict[str, list[Tensor]] = {}
            for sent, back in rounds:
                observation = Observation(Quickstart(), ((sent, back[client]),), SHAPE)
                signals = {"gradient": gradient_scores(observation, own, kinds)}
                for name, values in (signals | published(sent, back, client, own, kinds)).items():
                    found.setdefault(name, []).append(((values - values.mean()) / values.std()).double())
            for name, told in found.items():
                for number in (1, len(told)):
                    print_line(seed, client, name, torch.stack(told[:number]).mean(0), number)


def print_line(seed: int, client: int, signal: str, values: Tensor, rounds: int) -> None:
    """A line of CSV of a signal (Q,), whose first values are the members'."""
    score = MembershipScore.of(-values[:IMAGES], -values[IMAGES:])
    told = score.true_positives_1pct
    figures = (score.auc, *score.auc_interval, told.rate, *told.interval)
    print(f'{seed},{client},"{signal}",{rounds},' + ",".join(f"{value:.4g}" for value in figures), flush=True)


if __name__ == "__main__":
    main()
