import torch

from attacks import Reconstruction
from attacks.span.joining import of_rounds, told_and_untold
from attacks.span.stages import RoundsApart


def found(values, left, held=(), residual=0.1):
    """Images of one pixel value each, 100 pixels: two of them are 10 times the difference of their values apart."""
    images = torch.tensor(values, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 1, 10, 10)
    kept = torch.tensor(held, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 1, 10, 10)
    return Reconstruction(images, torch.full((len(values),), residual), relative_residual=left, held=kept)


def values(images):
    return [round(float(image.mean()), 3) for image in images]


def test_the_set_that_explains_more_stands_first_and_the_other_adds_what_is_new():
    told, untold = found([0.0, 1.0], left=0.1), found([1.001, 2.0], left=0.3)
    for pair in ((told, untold), (untold, told)):
        both = told_and_untold(*pair)
        assert values(both.images) == [0.0, 1.0, 2.0] and both.relative_residual == 0.1
        assert len(both.residual) == 3


def test_a_set_without_images_explains_nothing():
    nothing, one = found([], left=0.0, held=[5.0]), found([1.0], left=0.9)
    both = told_and_untold(nothing, one)
    assert values(both.images) == [1.0] and values(both.held) == [5.0]
    assert both.facts == {"told": 0.0, "untold": 1.0}


def test_what_one_of_them_returned_is_not_held():
    told, untold = found([0.0, 1.0], left=0.1, held=[3.0]), found([2.0], left=0.3, held=[1.0, 3.001, 4.0])
    assert values(told_and_untold(told, untold).held) == [3.0, 4.0]


def test_rounds_give_every_image_and_every_held_one_once():
    apart = RoundsApart((0, 1), together=4, most=2)
    both = of_rounds(apart, [found([0.0, 1.0], 0.1, held=[2.0], residual=0.2), found([1.0, 3.0], 0.1, held=[2.0, 4.0])])
    assert values(both.images) == [1.0, 3.0, 0.0] and values(both.held) == [2.0, 4.0]
