import torch

from attacks.update.spectrum import group_views


def test_shifted_and_mirrored_images_are_put_together_in_the_order_they_come():
    generator = torch.Generator().manual_seed(0)
    first, second, third = torch.rand(3, 1, 8, 8, generator=generator)
    images = torch.stack([second, first.roll((1, -1), (1, 2)), first, second.flip(2), third, first.roll(1, 1).flip(2)])
    assert group_views(images, 3).tolist() == [0, 1, 1, 0, 2, 1]


def test_one_image_and_none_are_groups_of_their_own():
    assert group_views(torch.rand(1, 1, 4, 4), 1).tolist() == [0]
    assert group_views(torch.rand(0, 1, 4, 4), 3).tolist() == []
