import torch

from clients.training import Batch
from tests.clients.defenses.parts import make


def test_augmentation_moves_pixels_and_loses_none():
    images = torch.rand(16, 1, 8, 8)
    moved = make("augmentation", shift=2, flip=True).local_step(
        Batch(images, ((1.0, torch.zeros(16)),)), torch.Generator().manual_seed(0)
    )
    for image, other in zip(images, moved.inputs, strict=True):
        turns = [image.roll((i, j), (1, 2)) for i in range(-2, 3) for j in range(-2, 3)]
        assert any(torch.equal(other, turn) or torch.equal(other, turn.flip(2)) for turn in turns)
    still = make("augmentation", shift=0).local_step(moved, torch.Generator())
    assert torch.equal(still.inputs, moved.inputs)
