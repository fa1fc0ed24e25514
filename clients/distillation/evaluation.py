"""Measure a distilled set: test accuracy of three learners (Loo et al. 2024, table 1). Name the kernels of KIP and
RKIP.

The kernels differ in the share of each layer in the kernel's diagonal. With two hidden layers and no biases that is

    limit           0, ½, ½         the limit of standard parameterization, in which the first layer vanishes
    authors         ⅓, ⅓, ⅓         NTK parameterization without biases, with which Loo et al. (2024) distilled
    width_matched   n₀/w : 1 : 1    the mean kernel of networks of the width w that will learn from the set

and a learner of width 512 on 784 pixels has 0.43, 0.28, 0.28.
"""

import copy
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from attacks.interface.errors import InputError, did_you_mean
from attacks.kernel.empirical import empirical_ntk_blocks, kernel_duals, kernel_regression
from attacks.kernel.infinite import InfiniteNTK
from attacks.networks.probing import outputs_at
from clients.config import TrainingConfig
from clients.distillation.methods import Kernel
from clients.training import accuracy, train

KernelName = Literal["limit", "authors", "width_matched"]
KERNELS: tuple[KernelName, ...] = get_args(KernelName)


def named_kernel(name: str, network: InfiniteNTK, width: int) -> InfiniteNTK:
    """Return the kernel of this name for a network of `width` whose own limit is `network`.

    network: of the depth, biases and parameterization of the finite network. Raise InputError for another name.
    """
    if name == "authors":
        return InfiniteNTK(network.depth, bias=False, parameterization="ntk")
    if name not in KERNELS:
        raise InputError(f"distillation kernel is {name!r}, unknown{did_you_mean(name, list(KERNELS))}")
    matched = None if name == "limit" else width
    return InfiniteNTK(network.depth, matched, network.bias, parameterization=network.parameterization)


TEST_BATCH = 250
STOP_AT_MSE = 1e-3
MOMENTUM = 0.9


@dataclass(frozen=True)
class StandardTraining:
    """Training of the finite network.

    mse: mean over images of Σ_k (f_k − y_k)², at the last step.
    """

    accuracy: float
    mse: float
    steps: int
    limit: int
    learning_rate: float


@dataclass(frozen=True, eq=False)
class Learners:
    """The three learners of table 1 and the images they are tested on.

    model: a finite network at its initialization, the one that `standard` and `linearized` train.
    kernel: of the infinitely wide one.
    test_images: (Q, C, H, W), in the input space of the networks.
    labels: (Q,) groups.
    ridge: of both closed forms, in units of the kernel's mean diagonal.
    max_steps: limit of standard training, the same for a set of 20 and for all images, which take more steps to fit.
    """

    model: nn.Module
    kernel: Kernel
    test_images: Tensor
    labels: Tensor
    ridge: float = 1e-5
    max_steps: int = 10_000

    def infinite_width(self, images: Tensor, targets: Tensor) -> float:
        """Return the test accuracy of kernel regression on images (S, C, H, W) and targets (S, K)."""
        images, targets = images.double(), targets.double()
        cross = self.kernel(self.test_images.double(), images)
        return accuracy(kernel_regression(self.kernel(images), targets, cross, self.ridge), self.labels)

    def linearized(self, images: Tensor, targets: Tensor) -> float:
        """Return the test accuracy of the network linearized at θ₀: f_θ₀(x) + K_xS K_SS⁻¹ (y − f_θ₀(S))."""
        images, targets = images.double(), targets.double()
        state = {name: value.detach().double() for name, value in self.model.state_dict().items()}
        wanted = (targets - outputs_at(self.model, state, images)).reshape(-1, 1)
        kernel = empirical_ntk_blocks(self.model, state, images).reshape(len(wanted), len(wanted))
        duals = kernel_duals(kernel, wanted, self.ridge).reshape(targets.shape)
        predicted = []
        for batch in self.test_images.double().split(TEST_BATCH):
            cross = empirical_ntk_blocks(self.model, state, batch, images)
            predicted.append(outputs_at(self.model, state, batch) + torch.einsum("qkml,ml->qk", cross, duals))
        return accuracy(torch.cat(predicted), self.labels)

    def standard(self, images: Tensor, targets: Tensor) -> StandardTraining:
        """Train by full-batch gradient descent with momentum 0.9 on ½ the squared error, to an MSE of 1e-3 or the step
        limit.

        The learning rate is low, as in the paper: with its momentum, a step is worth one of plain gradient descent of
        rate N / ‖K_θ₀‖_∞ ≤ N / λ_max.
        """
        model = copy.deepcopy(self.model)
        state = {name: value.detach() for name, value in model.state_dict().items()}
        kernel = empirical_ntk_blocks(model, state, images).reshape(targets.numel(), targets.numel())
        rate = (1 - MOMENTUM) * len(images) / float(torch.linalg.matrix_norm(kernel, torch.inf))
        config = TrainingConfig(
            loss="mse", learning_rate=rate, momentum=MOMENTUM, steps=self.max_steps, stop_at_loss=STOP_AT_MSE / 2
        )
        report = train(model, images, targets, config, torch.Generator())  # full batches: nothing is shuffled
        with torch.no_grad():
            outputs = torch.cat([model(batch) for batch in self.test_images.split(TEST_BATCH)])
        return StandardTraining(
            accuracy(outputs, self.labels), 2 * report.last_loss, report.steps, self.max_steps, rate
        )
