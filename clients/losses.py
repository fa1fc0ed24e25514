"""Training losses, with their normalization: each is a mean over images."""

import torch
import torch.nn.functional as F
from torch import Tensor


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


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Share of images whose group is predicted: the sign of one output, the largest of several."""
    predicted = (outputs[:, 0] > 0).long() if outputs.shape[1] == 1 else outputs.argmax(1)
    return float((predicted == labels).double().mean())
