"""A recording without a federation: clients of digits, normalized by mean and deviation, train a small network."""

import json

import torch
from sklearn.datasets import load_digits
from torch import nn

from attacks import Knowledge
from attacks.interface.normalization import Normalization
from simulator.results.keys import ALL, ObservationKey, RecordedObservation
from simulator.results.storage import CellStore

SHAPE, NORMALIZATION = (1, 8, 8), Normalization((0.3,), (0.4,))
MODEL = """
from torch import nn
def net(hidden=400):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                         nn.Linear(hidden, 10))
"""


def digits(client, count=10):
    """(pixels (N, 1, 8, 8) in [0, 1], labels) of a client."""
    data, part = load_digits(), slice(100 + client * count, 100 + (client + 1) * count)
    return torch.tensor(data.images[part] / 16, dtype=torch.float32)[:, None], torch.tensor(data.target[part])


def network(hidden=400):
    names = {}
    exec(MODEL, names)
    torch.manual_seed(0)
    return names["net"](hidden)


def trained(model, start, client, epochs=4):
    """The state dict after a client's local SGD."""
    model.load_state_dict(start)
    images, labels = digits(client)
    inputs = NORMALIZATION.inputs(images)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs), generator=torch.Generator().manual_seed(client)).split(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
            optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def record(folder, clients=(0, 1, 2), names=None, told=True):
    """One round, written down as `fedspill.Record` does. clients: whose digits the recorded clients 0, 1, … have.
    names: what they call themselves. told: whether they say how many images they have."""
    store, model = CellStore(folder), network()
    store.checkpoints.mkdir(parents=True)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    replies = [trained(model, start, client) for client in clients]
    initial, numbers = store.save_global(0, start), tuple(range(len(clients)))
    knowledge = Knowledge(num_private=10 if told else None)
    for number, state in enumerate(replies):
        pair = (initial, store.save_client(1, number, state))
        key = ObservationKey(1, number, "server")
        store.save_observation(RecordedObservation.of(key, (pair,), (number,), numbers), knowledge)
    mean = {name: torch.stack([state[name] for state in replies]).mean(0) for name in start}
    observer = RecordedObservation.of(
        ObservationKey(1, ALL, "observer"),
        ((initial, store.save_global(1, mean)),),
        numbers,
        numbers,
        adversary="observer",
    )
    store.save_observation(observer, Knowledge())
    images = {str(number): 10 for number in numbers} if told else {}
    content = {
        "format": 1,
        "fedspill": "0",
        "strategy": "FedAvg",
        "clients": {str(n): {"node": 100 + n, "name": None if names is None else names[n]} for n in numbers},
        "rounds": [{"round": 1, "clients": numbers, "images": images}],
        "problems": [],
    }
    (folder / "recording.json").write_text(json.dumps(content))
    (folder / "net.py").write_text(MODEL)
    return folder
