import numpy as np
import pytest
import torch

from clients.training import Batch
from tests.clients.defenses.parts import make


def test_mixup_mixes_images_and_losses_alike():
    images, targets = torch.eye(6).reshape(6, 1, 2, 3), torch.arange(6)
    mixed = make("mixup").local_step(Batch(images, ((1.0, targets),)), torch.Generator().manual_seed(1))
    (own, first), (other, second) = mixed.targets
    assert own + other == pytest.approx(1.0) and 0 < own < 1 and torch.equal(first, targets)
    expected = own * images + other * images[second]  # the target tells which image was mixed in
    torch.testing.assert_close(mixed.inputs, expected)


def test_mixup_weights_follow_the_beta_distribution():
    batch = Batch(torch.zeros(2, 1, 1, 1), ((1.0, torch.zeros(2)),))
    generator = torch.Generator().manual_seed(0)
    weights = [make("mixup", alpha=2.0).local_step(batch, generator).targets[0][0] for _ in range(4000)]
    assert np.mean(weights) == pytest.approx(0.5, abs=0.015)
    assert np.var(weights) == pytest.approx(1 / 20, rel=0.08)  # 1 / (4 (2α + 1))
