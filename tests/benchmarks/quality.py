"""Span against NTK in time to equal quality: digits of a FedAvg client, each attack as a user would run it."""

import torch
from torch import Tensor, nn

from attacks import Attack, get_attack
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from tests.benchmarks.timing import four_products, seconds_of, timed

COUNT, WIDTH = 20, 512
ITERATIONS = 3_000  # budget of the NTK attack


def print_table(device: torch.device) -> None:
    """The NTK attack to the end of its budget; the span attack with as few rounds as reach that median L2."""
    images = digits()
    observation = client(images)
    unit = 5 * timed([four_products(device)], device)[0]
    print(f"Time to equal quality: {COUNT} digits of a FedAvg client, 64-{WIDTH}-{WIDTH}-10; u = twenty 1024³ products")
    print("attack                         seconds        u   L2 median   within 0.5")

    def run(label: str, attack: Attack) -> float:
        found: list[Tensor] = []

        def attacked() -> None:
            generator = torch.Generator().manual_seed(0)
            found.append(attack.run(observation, Knowledge(), generator).images)

        seconds = seconds_of(attacked, device)
        l2 = torch.cdist(images.flatten(1), found[0].flatten(1)) if len(found[0]) else images.flatten(1)
        nearest = l2.amin(1) if len(found[0]) else l2.norm(dim=1)
        within = int((nearest < 0.5).sum())
        print(f"{label:28}{seconds:10.1f} {seconds / unit:8.1f} {float(nearest.median()):11.3f} {within:6} of {COUNT}")
        return float(nearest.median())

    options = {"kernel": "hybrid", "iterations": ITERATIONS, "device": device.type}
    reached = run(f"ntk, {ITERATIONS:,} iterations", get_attack("ntk", **options))
    for rounds in (1, 2, 4, 8):
        if run(f"span, at most {rounds} round{'s' * (rounds > 1)}", get_attack("span", rounds=rounds)) <= reached:
            break
    print()


def digits() -> Tensor:
    """(COUNT, 1, 8, 8), the mean pixel subtracted."""
    from sklearn.datasets import load_digits

    images = torch.tensor(load_digits().images[:COUNT] / 16, dtype=torch.float32)[:, None]
    return images - images.mean()


def client(images: Tensor) -> Observation:
    """Cross-entropy, 5 epochs of batches of 5, learning rate 0.05."""
    torch.manual_seed(0)
    hidden = [nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(WIDTH, 10))
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer, labels = torch.optim.SGD(model.parameters(), lr=0.05), torch.arange(len(images)) % 10
    for _ in range(5):
        for batch in torch.arange(len(images)).split(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return Observation(model, ((initial, dict(model.state_dict())),), (1, 8, 8))
