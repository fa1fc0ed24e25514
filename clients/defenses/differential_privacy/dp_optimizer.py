"""The optimizer of opacus with noise that does not depend on the device. Imported late: opacus takes a second."""

import torch
from opacus.optimizers import DPOptimizer


class SeededDPOptimizer(DPOptimizer):
    """Draws its noise on the CPU, from the generator given; opacus would draw on the device of the parameters."""

    def add_noise(self) -> None:
        deviation = self.noise_multiplier * self.max_grad_norm
        for parameter in self.params:
            total = parameter.summed_grad
            noise = torch.normal(0.0, deviation, total.shape, generator=self.generator, dtype=total.dtype)
            parameter.grad = (total + noise.to(total.device)).view_as(parameter)
