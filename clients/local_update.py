"""One client's half of a round, without Flower: load the partition, train, report."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.interface.observation import State
from attacks.interface.seeding import derive_seed, torch_generator
from clients.config import ClientConfig, TrainingConfig
from clients.defenses import Defense, Encoding, Setting, TrainingSet
from clients.defenses.flower_mod import FlowerMod, LocalDP
from clients.models import build_model
from clients.partition import FederatedData, split_data
from clients.targets import Task, encode_targets
from clients.training import TrainingReport, train


@dataclass(frozen=True)
class ClientUpdate:
    """What a client returns: its state dict on the CPU, and how training went.

    metrics: what its defenses say, `epsilon` and `bytes` (of the update as it travels) among them. distilled: the
    images (M, C, H, W) in [0, 1] that it trained on instead of its own, or None; only the scorer gets them.
    """

    state: State
    num_images: int
    report: TrainingReport
    device: str
    metrics: dict[str, float] = field(default_factory=dict)
    distilled: Tensor | None = None


RunMod = Callable[[FlowerMod | LocalDP, State], State]
"""Applies a Flower mod to the state that is about to be returned."""


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


def local_update(
    config: ClientConfig,
    received: State,
    round: int,
    client: int,
    proximal: float = 0.0,
    memory: dict[str, dict[str, Any]] | None = None,
    run_mod: RunMod | None = None,
) -> ClientUpdate:
    """Train on the partition of `client`, starting from `received`, behind the defenses of the scenario.

    memory: what each defense keeps between rounds, by its label; changed in place. run_mod: how Flower mods are run.
    """
    torch.set_num_threads(config.threads)
    device = "cuda" if config.use_gpu and torch.cuda.is_available() else "cpu"
    data = load_data(config)
    model = make_model(config, data)
    model.load_state_dict(received)
    images, labels = data.client(client)
    memory = {} if memory is None else memory
    chain = [(entry.make(), entry.label) for entry in config.defenses]
    settings = [Setting(config, round, client, model, memory.setdefault(label, {})) for _, label in chain]
    metrics: dict[str, float] = {}
    inputs = centered(images, data.pixel_mean).to(getattr(torch, config.model.precision))
    private = TrainingSet(inputs, load_targets(config, data.task, labels))
    for (defense, _), setting in zip(chain, settings, strict=True):
        defense.check(setting)
        private, said = defense.prepare_data(private, setting)
        metrics |= said
    model.to(device)
    generator = torch_generator(config.seed, "training", round, client)
    with torch.random.fork_rng(devices=[0] if device == "cuda" else []):
        torch.manual_seed(derive_seed(config.seed, "dropout", round, client))  # modules draw from the global generator
        report = train(
            model,
            private.inputs.to(device),
            private.targets.to(device),
            config.training,
            generator,
            proximal,
            list(zip([defense for defense, _ in chain], settings, strict=True)),
        )
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    encoding = Encoding()
    for (defense, _), setting in zip(chain, settings, strict=True):
        state, said = _protect(defense, setting, received, state, run_mod)
        spent = defense.spent(setting, report.steps, len(private.inputs))
        if "epsilon" in metrics and "epsilon" in spent:  # two guarantees: the better one
            spent = {"epsilon": min(metrics["epsilon"], spent["epsilon"])}
        metrics |= said | spent
        encoding = defense.encode(encoding)
    entries = sum(value.numel() for value in state.values() if value.is_floating_point())
    metrics["bytes"] = encoding.bytes(entries)
    mean = torch.tensor(data.pixel_mean).view(1, -1, 1, 1)
    distilled = (private.inputs.cpu() + mean).clamp(0, 1) if private.distilled else None
    return ClientUpdate(state, len(images), report, device, metrics, distilled)


def _protect(
    defense: Defense, setting: Setting, received: State, state: State, run_mod: RunMod | None
) -> tuple[State, dict[str, float]]:
    """(what is sent instead of `state`, what the defense says of it)."""
    if isinstance(defense, FlowerMod | LocalDP):
        if run_mod is None:
            raise InputError(f"defense {defense.name!r} is a Flower mod: it needs Flower's ClientApp to run in")
        return run_mod(defense, state), {}
    trained = [name for name, parameter in setting.model.named_parameters() if parameter.requires_grad]
    delta = {name: state[name] - received[name] for name in trained}
    protected, said = defense.protect_update(delta, setting)
    unchanged = all(protected[name] is delta[name] for name in trained)  # no rounding where nothing was done
    sent = {} if unchanged else {name: received[name] + protected[name] for name in trained}
    return {**state, **sent}, said


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
