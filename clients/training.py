"""Local training, standard or linearized around the checkpoint received."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.interface.attack import Progress, silent
from clients.config import TrainingConfig
from clients.defenses.base import Batch, Defense, LocalRun, Setting
from clients.losses import training_loss

DEFAULT_EPOCHS = 5


@dataclass(frozen=True)
class TrainingReport:
    """first_loss, last_loss: mean loss of the first and last epoch. steps: optimizer steps taken."""

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
    proximal: float = 0.0,
    defenses: Sequence[tuple[Defense, Setting]] = (),
    move_statistics: bool = False,
    progress: Progress = silent,
) -> TrainingReport:
    """Train `model` in place on images (N, C, H, W) in its input space, in the precision of its parameters.

    generator: shuffles minibatches. proximal: μ of FedProx's ½ μ ‖θ − θ₀‖². defenses: whose `instrument` and
    `local_step` apply, each in its setting. move_statistics: whether BatchNorm normalizes with those of the batch and
    averages them, as in training from scratch; clients keep the ones they received. progress: called with (steps done,
    steps planned, loss of the last epoch) after every epoch.
    """
    start = time.perf_counter()
    model.train()
    if not move_statistics:
        _keep_batch_norm_statistics(model)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    images = images.to(parameters[0].dtype)
    received = [parameter.detach().clone() for parameter in parameters]
    count = len(images)
    optimizer = make_optimizer(parameters, config)
    if proximal:  # in the optimizer: a defense that makes gradients of its own, as DP-SGD, wraps it
        optimizer.register_step_pre_hook(lambda *_: _pull_back(parameters, received, proximal))
    run = LocalRun(
        linearize(model) if config.dynamics == "linearized" else model,
        optimizer,
        _shuffled(count, min(config.batch_size or count, count), generator, images.device),
    )
    for defense, setting in defenses:
        run = defense.instrument(run, count, setting)

    limit = planned_steps(config, count)
    first_loss, last_loss, steps = math.nan, math.nan, 0
    while steps < limit:
        total, seen = torch.zeros((), device=images.device), 0
        for chosen in run.batches():
            inputs, wanted = (images, targets) if chosen is None else (images[chosen], targets[chosen])
            batch = Batch(inputs, ((1.0, wanted),))
            for defense, _ in defenses:
                batch = defense.local_step(batch, generator)
            run.optimizer.zero_grad(set_to_none=True)
            loss = _weighted_loss(config.loss, run.predict(batch.inputs), batch)
            if len(inputs):
                loss.backward()
                total += loss.detach() * len(inputs)
            run.optimizer.step()
            seen += len(inputs)
            steps += 1
            if steps == limit:
                break
        last_loss = float(total) / max(seen, 1)
        first_loss = last_loss if math.isnan(first_loss) else first_loss
        progress(steps, limit, last_loss)
        if not math.isfinite(last_loss) or (config.stop_at_loss is not None and last_loss < config.stop_at_loss):
            break
    model.eval()
    return TrainingReport(first_loss, last_loss, steps, time.perf_counter() - start)


def planned_steps(config: TrainingConfig, images: int) -> int:
    """Optimizer steps that a client with so many images takes, unless its loss stops it early."""
    if config.steps is not None:
        return config.steps
    return (config.epochs or DEFAULT_EPOCHS) * math.ceil(images / min(config.batch_size or images, images))


def make_optimizer(parameters: list[nn.Parameter], config: TrainingConfig) -> torch.optim.Optimizer:
    """A fresh optimizer: local momentum and moments do not survive a round."""
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=config.momentum, weight_decay=decay)
    adaptive = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return adaptive(parameters, lr=rate, weight_decay=decay)


def _shuffled(
    count: int, batch: int, generator: torch.Generator, device: torch.device
) -> Callable[[], Iterable[Tensor | None]]:
    """One epoch of minibatches in a new order; all images at once, as None, where they fit one batch."""

    def epoch() -> Iterable[Tensor | None]:
        return (None,) if batch == count else torch.randperm(count, generator=generator).to(device).split(batch)

    return epoch


def _weighted_loss(name: str, outputs: Tensor, batch: Batch) -> Tensor:
    parts = [training_loss(name, outputs, targets) * weight for weight, targets in batch.targets]
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum()


def linearize(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """f_lin(x; θ) = f(x; θ₀) + ∇f(x; θ₀)ᵀ(θ − θ₀), θ₀ the parameters now and θ those of `model` when it is called.

    The result is differentiable in θ; its kernel is frozen at θ₀ (Loo et al. 2024, section 2).
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    start = {name: parameter.detach().clone() for name, parameter in trained.items()}

    def predict(images: Tensor) -> Tensor:
        rest = {name: value for name, value in model.state_dict().items() if name not in trained}
        step = {name: parameter - start[name] for name, parameter in trained.items()}
        linearization = torch.func.jvp(
            lambda parameters: torch.func.functional_call(model, {**parameters, **rest}, (images,)), (start,), (step,)
        )
        return linearization[0] + linearization[1]

    return predict


def _keep_batch_norm_statistics(model: nn.Module) -> None:
    """BatchNorm normalizes with the statistics received and does not move them."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def _pull_back(parameters: list[nn.Parameter], received: list[Tensor], strength: float) -> None:
    """Add the gradient of ½ μ ‖θ − θ₀‖², which holds no data, to those of the parameters."""
    with torch.no_grad():
        for parameter, before in zip(parameters, received, strict=True):
            pull = strength * (parameter - before)
            parameter.grad = pull if parameter.grad is None else parameter.grad + pull
