"""Training losses, each a mean over images, and the targets that they are computed against."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.interface.errors import InputError

BINARY_CODING = (-1.0, 1.0)
CLASS_CODING = (-0.1, 0.9)


def training_loss(name: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean loss of outputs (N, K) against targets as `encode_targets` made them.

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

    mse: (N, outputs) float, coding[1] for the right group and coding[0] else; default −0.1 and 0.9. With one output
    (N, 1), coding[0] for group 0 and coding[1] for group 1; default ∓1. hinge and cross_entropy: ∓1 (N, 1) for one
    output, else the int64 labels; they have no coding. source: how errors call the data.
    Raise InputError if the groups do not fit the outputs.
    """
    needed = 2 if outputs == 1 else outputs
    if num_groups > needed:
        remedy = f"set model.outputs to {num_groups} or leave it out"
        raise InputError(f"model.outputs is {outputs}, {source} has {num_groups} classes: {remedy}")
    if outputs == 1:
        low, high = coding if coding and loss == "mse" else BINARY_CODING
        return torch.where(labels == 1, high, low).float()[:, None]
    if loss != "mse":
        return labels.long()
    low, high = coding or CLASS_CODING
    return torch.full((len(labels), outputs), low).scatter(1, labels.long()[:, None], high)


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Share of images whose group is predicted: the sign of one output, the largest of several."""
    predicted = (outputs[:, 0] > 0).long() if outputs.shape[1] == 1 else outputs.argmax(1)
    return float((predicted == labels).double().mean())
