"""One client's half of a round, without Flower: load the partition, train, report."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from attacks.observation import State
from attacks.seeding import derive_seed, torch_generator
from clients.config import ClientConfig, TrainingConfig
from clients.models import build_model
from clients.partition import FederatedData, split_data
from clients.targets import Task, encode_targets
from clients.training import TrainingReport, train


@dataclass(frozen=True)
class ClientUpdate:
    """What a client returns: its state dict on the CPU, and how training went."""

    state: State
    num_images: int
    report: TrainingReport
    device: str


def centered(images: Tensor, pixel_mean: tuple[float, ...]) -> Tensor:
    """Images in [0, 1] -> the model's input space: the per-channel mean is subtracted. (N, C, H, W)."""
    return images - torch.tensor(pixel_mean, dtype=images.dtype).view(1, -1, 1, 1)


def load_data(config: ClientConfig) -> FederatedData:
    return split_data(config.data, config.partition, config.clients, config.seed)


def num_outputs(config: ClientConfig, task: Task) -> int:
    """Outputs of the network: as configured, else 1 for two groups under mse or hinge, else one per group."""
    single = len(task.groups) == 2 and config.training.loss in ("mse", "hinge")
    return config.model.outputs or (1 if single else len(task.groups))


def load_targets(config: ClientConfig, task: Task, labels: Tensor, training: TrainingConfig | None = None) -> Tensor:
    """What the loss of `training` (default: the clients') wants for these group labels (N,)."""
    training, outputs = training or config.training, num_outputs(config, task)
    return encode_targets(
        labels, len(task.groups), outputs, training.loss, training.coding, f"data {config.data.name!r}"
    )


def make_model(config: ClientConfig, data: FederatedData) -> torch.nn.Module:
    """The federation's initial model, the same in every process that has the same config."""
    return build_model(config.model, data.shape, num_outputs(config, data.task), config.seed)


def local_update(config: ClientConfig, received: State, round: int, client: int, proximal: float = 0.0) -> ClientUpdate:
    """Train on the partition of `client`, starting from `received`."""
    torch.set_num_threads(config.threads)
    device = "cuda" if config.use_gpu and torch.cuda.is_available() else "cpu"
    data = load_data(config)
    model = make_model(config, data)
    model.load_state_dict(received)
    model.to(device)
    images, labels = data.client(client)
    targets = load_targets(config, data.task, labels)
    inputs = centered(images, data.pixel_mean)
    generator = torch_generator(config.seed, "training", round, client)
    with torch.random.fork_rng(devices=[0] if device == "cuda" else []):
        torch.manual_seed(derive_seed(config.seed, "dropout", round, client))  # modules draw from the global generator
        report = train(model, inputs.to(device), targets.to(device), config.training, generator, proximal)
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    return ClientUpdate(state, len(images), report, device)


def code_version() -> str:
    """A digest of the source that clients run: server and clients have to run the same."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for package in ("attacks", "clients") for path in (root / package).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def whereabouts() -> dict[str, str | int]:
    """Where a client ran: process, host and the accelerators that Ray granted it."""
    facts: dict[str, str | int] = {"pid": os.getpid(), "worker": "local", "gpu-ids": ""}
    import ray

    if ray.is_initialized():
        context = ray.get_runtime_context()
        worker = {ray.WORKER_MODE: "ray-worker", ray.SCRIPT_MODE: "ray-driver"}.get(context.worker.mode, "ray")
        facts |= {"worker": worker, "gpu-ids": ",".join(map(str, ray.get_gpu_ids()))}
    return facts
