"""Run one client's half of a round, without Flower: read its images, train behind its defenses, and report."""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks.interface.observation import State
from attacks.interface.torch_tools import derive_seed, torch_generator
from clients.chain import DefenseChain, RunMod
from clients.config import ClientConfig
from clients.data.arrays import Task
from clients.data.partition import FederatedData, split_data
from clients.defenses import TrainingSet
from clients.defenses.guarantee import Guarantee
from clients.models import build_model
from clients.training import FedProx, TrainingReport, encode_targets, train


def code_version() -> str:
    """Return a digest of the source that clients run: server and clients have to run the same."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for package in ("attacks", "clients") for path in (root / package).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def whereabouts() -> dict[str, str | int]:
    """Return where a client ran: its process, kind of worker and the GPUs that Ray granted it."""
    import ray  # 0.2 s of a process that has no need of it otherwise

    facts: dict[str, str | int] = {"pid": os.getpid(), "worker": "local", "gpu-ids": ""}
    if ray.is_initialized():
        context = ray.get_runtime_context()
        worker = {ray.WORKER_MODE: "ray-worker", ray.SCRIPT_MODE: "ray-driver"}.get(context.worker.mode, "ray")
        facts |= {"worker": worker, "gpu-ids": ",".join(map(str, ray.get_gpu_ids()))}
    return facts


def has_gpu_share() -> bool:
    """Return whether this process may use a GPU: a worker of Ray needs a share of one; any other process does not."""
    where = whereabouts()
    return where["worker"] != "ray-worker" or bool(where["gpu-ids"])


@dataclass(frozen=True)
class ClientUpdate:
    """The reply of a client: its state dict on the CPU, and a report of training.

    metrics: of its defenses, and `bytes` of the update as it travels.
    distilled: the images (M, C, H, W) in [0, 1] that it trained on instead of its own, or None; only the scorer gets
        them.
    guarantees: of differential privacy, after this round.
    """

    state: State
    num_images: int
    report: TrainingReport
    device: str
    metrics: dict[str, float] = field(default_factory=dict)
    distilled: Tensor | None = None
    guarantees: tuple[Guarantee, ...] = ()


def load_data(config: ClientConfig) -> FederatedData:
    return split_data(config.data, config.partition, config.clients, config.seed)


def num_outputs(config: ClientConfig, task: Task) -> int:
    """Return the outputs of the network: as configured, 1 for two groups under mse or hinge, else one per group."""
    single = len(task.groups) == 2 and config.training.loss in ("mse", "hinge")
    return config.model.outputs or (1 if single else len(task.groups))


def load_targets(config: ClientConfig, task: Task, labels: Tensor) -> Tensor:
    """Return the targets that the clients' loss wants for these group labels (N,)."""
    training, outputs, source = config.training, num_outputs(config, task), f"data {config.data.name!r}"
    return encode_targets(labels, len(task.groups), outputs, training.loss, training.coding, source)


def make_model(config: ClientConfig, data: FederatedData) -> torch.nn.Module:
    """Build the federation's initial model, the same in every process with the same config."""
    return build_model(config.model, data.shape, num_outputs(config, data.task), config.seed)


def local_update(
    config: ClientConfig,
    received: State,
    round: int,
    client: int,
    *,
    data: FederatedData | None = None,
    proximal: float = 0.0,
    memory: dict[str, dict[str, Any]] | None = None,
    run_mod: RunMod | None = None,
) -> ClientUpdate:
    """Train on the partition of `client`, starting from `received`, behind the defenses of the scenario.

    data: the split images; default: the scenario's. proximal: μ of FedProx. memory: of each defense between rounds, by
    its label; changed in place. run_mod: runs Flower mods.
    """
    torch.set_num_threads(config.threads)
    device = "cuda" if config.use_gpu and torch.cuda.is_available() and has_gpu_share() else "cpu"
    data = data or load_data(config)
    model = make_model(config, data)
    model.load_state_dict(received)
    images, labels = data.client(client)
    inputs = data.normalization.inputs(images).to(getattr(torch, config.model.precision))
    chain = DefenseChain.of(config, round, client, model, {} if memory is None else memory)
    private, prepared = chain.prepare(TrainingSet(inputs, load_targets(config, data.task, labels)))
    model.to(device)
    with torch.random.fork_rng(devices=[0] if device == "cuda" else []):
        torch.manual_seed(derive_seed(config.seed, "dropout", round, client))  # modules draw from the global generator
        report = train(
            model,
            private.inputs.to(device),
            private.targets.to(device),
            config.training,
            torch_generator(config.seed, "training", round, client),
            (FedProx(proximal), *chain.links),
        )
    trained = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    state, protected = chain.protect(received, trained, run_mod)
    guarantees = chain.privacy_spent(report.steps, len(private.inputs))
    metrics = {**prepared, **protected, "bytes": chain.bytes_sent(state)}
    distilled = data.normalization.pixels(private.inputs.cpu()).clamp(0, 1) if private.distilled else None
    return ClientUpdate(state, len(images), report, device, metrics, distilled, guarantees)
