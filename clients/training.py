"""Local training, standard or linearized around the checkpoint received."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clients.config import TrainingConfig
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
) -> TrainingReport:
    """Train `model` in place on images (N, C, H, W) in its input space.

    generator: shuffles minibatches. proximal: μ of FedProx's ½ μ ‖θ − θ₀‖².
    """
    start = time.perf_counter()
    _keep_batch_norm_statistics(model)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    received = [parameter.detach().clone() for parameter in parameters]
    predict = linearize(model) if config.dynamics == "linearized" else model
    optimizer = make_optimizer(parameters, config)

    count, batch = len(images), min(config.batch_size or len(images), len(images))
    limit = planned_steps(config, count)
    first_loss, last_loss, steps = math.nan, math.nan, 0
    while steps < limit:
        total, seen = torch.zeros((), device=images.device), 0
        order = torch.randperm(count, generator=generator).to(images.device) if batch < count else None
        for chosen in (None,) if order is None else order.split(batch):
            inputs, wanted = (images, targets) if chosen is None else (images[chosen], targets[chosen])
            loss = training_loss(config.loss, predict(inputs), wanted)
            penalty = _proximal_term(parameters, received, proximal) if proximal else 0.0
            optimizer.zero_grad(set_to_none=True)
            (loss + penalty).backward()
            optimizer.step()
            total += loss.detach() * len(inputs)
            seen += len(inputs)
            steps += 1
            if steps == limit:
                break
        last_loss = float(total) / seen
        first_loss = last_loss if math.isnan(first_loss) else first_loss
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
    """Training mode, except that BatchNorm normalizes with the statistics received and does not move them."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def _proximal_term(parameters: list[nn.Parameter], received: list[Tensor], strength: float) -> Tensor:
    squared = [((now - before) ** 2).sum() for now, before in zip(parameters, received, strict=True)]
    return 0.5 * strength * torch.stack(squared).sum()
