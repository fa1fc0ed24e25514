import pytest
import torch

from tests.clients.defenses.parts import context, make, update


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_quantization_rounds_to_levels_between_the_extremes(bits):
    delta = update(w=(64, 64))
    quantized = make("quantization", bits=bits).protect_update(delta, context())[0]["w"]
    step = (delta["w"].max() - delta["w"].min()) / (2**bits - 1)
    assert len(quantized.unique()) <= 2**bits
    assert (quantized - delta["w"]).abs().max() <= step / 2 * 1.0001
    assert quantized.min() == delta["w"].min() and torch.isclose(quantized.max(), delta["w"].max())


def test_stochastic_quantization_is_right_in_expectation():
    delta = {"w": torch.tensor([[0.0, 1.0, 0.3]]).repeat(20_000, 1)}
    quantized = make("quantization", bits=1, stochastic=True).protect_update(delta, context())[0]["w"]
    assert set(quantized.unique().tolist()) == {0.0, 1.0}
    assert quantized.mean(0).tolist() == pytest.approx([0.0, 1.0, 0.3], abs=0.012)  # 3.7 deviations of √(.21/20000)
