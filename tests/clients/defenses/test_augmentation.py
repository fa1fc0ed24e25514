import torch

from clients.chain import invariances
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


def test_its_views_are_what_a_step_may_see():
    image = torch.rand(1, 1, 8, 8)
    own = make("augmentation", shift=1, flip=True)
    views = [view(image) for view in own.invariances()]
    expected = [image.roll((i, j), (2, 3)) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    assert len(views) == 18 and all(torch.equal(a, b) for a, b in zip(views, expected, strict=False))
    seen = own.local_step(Batch(image.repeat(30, 1, 1, 1), ((1.0, torch.zeros(30)),)), torch.Generator().manual_seed(0))
    assert all(any(torch.equal(one[None], view) for view in views) for one in seen.inputs)
    assert make("augmentation", shift=0, flip=False, noise=0.1).invariances()[0](image).equal(image)
    assert make("noise").invariances() == ()


def test_two_augmentations_reach_what_one_does_after_the_other():
    image = torch.rand(1, 1, 8, 8)
    chain = [make("augmentation", shift=1), make("noise"), make("augmentation", shift=0, flip=True)]
    views = invariances(chain)
    assert len(views) == 18 and any(torch.equal(view(image), image.roll(1, 2).flip(3)) for view in views)
