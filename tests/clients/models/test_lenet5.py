import pytest

from attacks import InputError
from clients.config import ModelConfig
from clients.models import build_model

SHAPE = (1, 28, 28)


def build(outputs=10, shape=SHAPE, seed=0, **options):
    return build_model(ModelConfig(**options), shape, outputs, seed)


def test_lenet5_has_the_classic_number_of_parameters():
    # 28x28, one channel, multiplier 1: 156 + 2,416 + 48,120 + 10,164 + 850
    assert sum(p.numel() for p in build(name="lenet5").parameters()) == 61_706


@pytest.mark.parametrize(
    ("options", "says"),
    [({"shape": (1, 8, 8)}, "8x8"), ({"activation": "maxout"}, r"model\.activation is 'maxout'")],
)
def test_lenet5_refuses_tiny_images_and_activations_of_whole_layers(options, says):
    with pytest.raises(InputError, match=says):
        build(name="lenet5", **options)
