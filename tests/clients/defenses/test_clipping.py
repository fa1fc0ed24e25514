import pytest
import torch

from tests.clients.defenses.parts import context, flat, make


@pytest.mark.parametrize(("bound", "factor"), [(5.0, 0.5), (20.0, 1.0)])
def test_clipping_scales_to_the_norm_and_leaves_shorter_updates_alone(bound, factor):
    delta = {"w": torch.tensor([[6.0, 0.0]]), "b": torch.tensor([8.0])}  # of norm 10
    clipped, _ = make("clipping", norm=bound).protect_update(delta, context())
    assert flat(clipped).tolist() == [6 * factor, 0, 8 * factor]
