"""A network whose training misbehaves according to the number of images it is given."""

import os
import time

import torch
from torch import Tensor, nn


class Faulty(nn.Module):
    """7 images raise, 6 give NaN, 5 take too long, 4 kill the process; any other number is fine."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        count = len(images) if self.training else 0
        if count == 7:
            raise RuntimeError("out of cheese")
        if count == 5:
            time.sleep(100_000)
        if count == 4:
            os._exit(3)
        outputs = self.out(torch.relu(self.hidden(images.flatten(1))))
        return outputs * torch.nan if count == 6 else outputs


def make() -> Faulty:
    return Faulty()
