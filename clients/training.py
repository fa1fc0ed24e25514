"""Local training, standard or linearized around the checkpoint received; its losses, and the targets they take."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.base import Progress, silent
from attacks.interface.errors import InputError
from attacks.interface.torch_tools import SGD, Adam, AdamW, exact_convolutions
from attacks.update.local_training import default_coding
from clients.batch_norm import moving_statistics, training_mode
from clients.config import TrainingConfig

DEFAULT_EPOCHS = 5


@dataclass(frozen=True)
class Batch:
    """The batch of a step.

    inputs: (B, C, H, W).
    targets: alternatives, each with its weight; the loss is the weighted sum of the losses against them.
    """

    inputs: Tensor
    targets: tuple[tuple[float, Tensor], ...]


@dataclass(frozen=True)
class TrainingLoop:
    """The parts of local training.

    predict: images (B, C, H, W) -> outputs (B, K), differentiable in the parameters.
    batches: one epoch of index tensors into the N images, None for all of them.
    """

    predict: Callable[[Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    batches: Callable[[], Iterable[Tensor | None]]


class TrainingHook:
    """Changes local training, as a defense does; this one changes nothing."""

    def instrument(self, loop: TrainingLoop, count: int) -> TrainingLoop:
        """Return another way to form batches, gradients and steps, for `count` images."""
        return loop

    def local_step(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Return another batch to take a step on."""
        return batch


@dataclass(frozen=True)
class FedProx(TrainingHook):
    """The proximal term ½ μ ‖θ − θ₀‖² of FedProx (Li et al. 2020), θ₀ the parameters received.

    It is added in the optimizer: this hook has to come before a defense that wraps the optimizer, as DP-SGD.
    """

    strength: float

    def instrument(self, loop: TrainingLoop, count: int) -> TrainingLoop:
        parameters = [parameter for group in loop.optimizer.param_groups for parameter in group["params"]]
        received = [parameter.detach().clone() for parameter in parameters]

        @torch.no_grad()
        def pull_back(*_: object) -> None:
            for parameter, before in zip(parameters, received, strict=True):
                pull = self.strength * (parameter - before)
                parameter.grad = pull if parameter.grad is None else parameter.grad + pull

        if self.strength:
            loop.optimizer.register_step_pre_hook(pull_back)
        return loop


@dataclass(frozen=True)
class TrainingReport:
    """How local training went.

    first_loss, last_loss: mean loss of the first and last epoch.
    steps: optimizer steps taken.
    """

    first_loss: float
    last_loss: float
    steps: int
    seconds: float


def train(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    config: TrainingConfig,
    generator: torch.Generator,
    hooks: Sequence[TrainingHook] = (),
    *,
    progress: Progress = silent,
) -> TrainingReport:
    """Train `model` in place on images (N, C, H, W) in its input space, in the precision of its parameters.

    generator: shuffles minibatches. hooks: change the loop and then every batch, in this order. progress: called with
    (steps done, steps planned, loss of the last epoch) after every epoch. Raise InputError as `check_dynamics` does.
    """
    check_dynamics(model, config)
    start = time.perf_counter()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    images, count = images.to(parameters[0].dtype), len(images)
    with exact_convolutions(), training_mode(model, config.batch_norm):
        loop = TrainingLoop(
            linearize(model) if config.dynamics == "linearized" else model,
            make_optimizer(parameters, config),
            _shuffled(count, min(config.batch_size or count, count), generator, images.device),
        )
        for hook in hooks:
            loop = hook.instrument(loop, count)
        if config.autocast is not None:
            mixed = mixed_precision(loop.predict, images.device.type, getattr(torch, config.autocast))
            loop = replace(loop, predict=mixed)

        def make_batch(chosen: Tensor | None) -> Batch:
            parts = (images, targets) if chosen is None else (images[chosen], targets[chosen])
            batch = Batch(parts[0], ((1.0, parts[1]),))
            for hook in hooks:
                batch = hook.local_step(batch, generator)
            return batch

        limit, steps = planned_steps(config, count), 0
        losses: list[float] = []
        while steps < limit:
            loss, taken = _run_epoch(loop, make_batch, config.loss, at_most=limit - steps)
            steps += taken
            losses.append(loss)
            progress(steps, limit, loss)
            if not math.isfinite(loss) or (config.stop_at_loss is not None and loss < config.stop_at_loss):
                break
    return TrainingReport(losses[0], losses[-1], steps, time.perf_counter() - start)


def _run_epoch(
    loop: TrainingLoop, make_batch: Callable[[Tensor | None], Batch], loss_name: str, at_most: int
) -> tuple[float, int]:
    """Return (mean loss over the images seen, steps taken), after `at_most` steps at the latest."""
    parameter = loop.optimizer.param_groups[0]["params"][0]
    total, seen, steps = torch.zeros((), device=parameter.device), 0, 0  # a tensor: no step waits for the device
    for chosen in loop.batches():
        batch = make_batch(chosen)
        loop.optimizer.zero_grad(set_to_none=True)
        outputs, count = loop.predict(batch.inputs), len(batch.inputs)
        parts = [training_loss(loss_name, outputs, targets) * weight for weight, targets in batch.targets]
        loss = parts[0] if len(parts) == 1 else torch.stack(parts).sum()
        if count:
            loss.backward()
            total += loss.detach() * count
        loop.optimizer.step()
        seen, steps = seen + count, steps + 1
        if steps == at_most:
            break
    return float(total) / max(seen, 1), steps


def check_dynamics(model: nn.Module, config: TrainingConfig) -> None:
    """Raise InputError for linearized training with batch statistics: outputs depend on the other images."""
    if config.dynamics == "linearized" and moving_statistics(model, config.batch_norm):
        raise InputError(
            "training.dynamics is linearized, and BatchNorm normalizes with the statistics of each batch: set "
            "training.batch_norm to eval"
        )


def planned_steps(config: TrainingConfig, images: int) -> int:
    """Return the optimizer steps of a client with so many images, unless its loss stops it early."""
    if config.steps is not None:
        return config.steps
    return (config.epochs or DEFAULT_EPOCHS) * math.ceil(images / min(config.batch_size or images, images))


def make_optimizer(parameters: list[nn.Parameter], config: TrainingConfig) -> torch.optim.Optimizer:
    """Make a fresh optimizer: local momentum and moments do not survive a round."""
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "sgd":
        return SGD(parameters, lr=rate, momentum=config.momentum, weight_decay=decay)
    adaptive = Adam if config.optimizer == "adam" else AdamW
    return adaptive(parameters, lr=rate, weight_decay=decay)


def _shuffled(
    count: int, batch: int, generator: torch.Generator, device: torch.device
) -> Callable[[], Iterable[Tensor | None]]:
    """Return a function for one epoch of minibatches in a new order; one batch of all images is None."""
    if batch == count:
        return lambda: (None,)
    return lambda: torch.randperm(count, generator=generator).to(device).split(batch)


def mixed_precision(
    predict: Callable[[Tensor], Tensor], device_type: str, dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    """Compute the matrix products of a prediction in `dtype` (torch.autocast), its outputs in float32 for the loss."""

    def run(images: Tensor) -> Tensor:
        with torch.autocast(device_type, dtype):
            return predict(images).float()

    return run


def linearize(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return f_lin(x; θ) = f(x; θ₀) + ∇f(x; θ₀)ᵀ(θ − θ₀), θ₀ the parameters now, θ those of `model` when it is called.

    It is differentiable in θ, and its kernel is frozen at θ₀ (Loo et al. 2024, section 2).
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    start = {name: parameter.detach().clone() for name, parameter in trained.items()}

    def predict(images: Tensor) -> Tensor:
        step = {name: parameter - start[name] for name, parameter in trained.items()}
        linearization = torch.func.jvp(
            lambda parameters: torch.func.functional_call(model, parameters, (images,)), (start,), (step,)
        )
        return linearization[0] + linearization[1]

    return predict


def training_loss(name: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of outputs (N, K) against targets as `encode_targets` makes them.

    mse: mean over images of ½ Σ_k (f_k − y_k)², the authors' normalization. cross_entropy: softmax, or logistic with
    targets ±1 for one output. hinge: max(0, 1 − y f), and Crammer and Singer's for several outputs.
    """
    if name == "mse":
        return 0.5 * ((outputs - targets) ** 2).sum(1).mean()
    if outputs.shape[1] == 1:
        margin = outputs * targets
        return (F.softplus(-margin) if name == "cross_entropy" else torch.relu(1 - margin)).mean()
    if name == "cross_entropy":
        return F.cross_entropy(outputs, targets)
    own = outputs.gather(1, targets[:, None])
    rival = outputs.scatter(1, targets[:, None], -torch.inf).amax(1, keepdim=True)
    return torch.relu(1 + rival - own).mean()


def encode_targets(
    labels: Tensor,
    num_groups: int,
    outputs: int,
    loss: str,
    coding: tuple[float, float] | None = None,
    source: str = "the data set",
) -> Tensor:
    """Targets of group indices (N,), as `training_loss` takes them.

    mse: (N, outputs) float, coding[1] for the right group and coding[0] else; with one output (N, 1), coding[1] for
    group 1. Default: `default_coding`. hinge and cross_entropy: ∓1 (N, 1) for one output, else the int64 labels; they
    have no coding. source: how errors call the data.
    Raise InputError if the groups do not fit the outputs.
    """
    needed = 2 if outputs == 1 else outputs
    if num_groups > needed:
        remedy = f"set model.outputs to {num_groups} or leave it out"
        raise InputError(f"model.outputs is {outputs}, {source} has {num_groups} classes: {remedy}")
    low, high = coding if coding and loss == "mse" else default_coding(outputs)
    if outputs == 1:
        return torch.where(labels == 1, high, low).float()[:, None]
    if loss != "mse":
        return labels.long()
    return torch.full((len(labels), outputs), low).scatter(1, labels.long()[:, None], high)


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of images whose group is predicted: by the sign of one output, or the largest of several."""
    predicted = (outputs[:, 0] > 0).long() if outputs.shape[1] == 1 else outputs.argmax(1)
    return float((predicted == labels).double().mean())
