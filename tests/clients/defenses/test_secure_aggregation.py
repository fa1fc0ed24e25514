import math

import numpy as np
import pytest
import torch
from flwr.common.secure_aggregation.quantization import dequantize, quantize

from clients.defenses import DefenseContext
from clients.defenses.base import ObservedUpdate
from tests.clients.defenses.parts import config, make


def where(received, round=1):
    return DefenseContext(config(), round, 0, torch.nn.Linear(4, 2), {}, received)


def test_rounding_is_that_of_flower_s_secagg_plus():
    """A client of 8 images, max_weight 16: Flower multiplies by 1/2, clips to ±1, and rounds to 8 steps of 1/4."""
    values = torch.tensor([0.3, -0.9, 3.0, -7.0, 0.5]).repeat(4000, 1)
    received = {"w": torch.full_like(values, 0.25)}
    options = {"rounding": True, "clipping_range": 1.0, "quantization_range": 8, "max_weight": 16.0}
    made = make("secure_aggregation", **options)
    sent = made.protect_update({"w": values - 0.25}, where(received))[0]["w"] + 0.25
    np.random.seed(0)
    flower = 2 * torch.tensor(dequantize(quantize([values.numpy() * 0.5], 1.0, 8), 1.0, 8)[0])
    for ours, theirs in zip(sent.T, flower.float().T, strict=True):
        assert ours.unique().tolist() == theirs.unique().tolist()
        assert float(ours.mean()) == pytest.approx(float(theirs.mean()), abs=4 * 0.5 / math.sqrt(4000))


def test_its_error_is_a_step_of_the_defaults_grown_by_the_weight():
    delta = {"w": 0.01 * torch.randn(100, 100, generator=torch.Generator().manual_seed(0))}
    sent = make("secure_aggregation", rounding=True).protect_update(delta, where({"w": torch.full((100, 100), 0.3)}))[0]
    step = 16 / 2**22 * 1000 / 8
    error = (sent["w"] - delta["w"]).double()
    assert float(error.abs().max()) <= step + 1e-7
    assert float(error.square().mean()) == pytest.approx(step**2 / 6, rel=0.05)  # ∫ f (1 − f) df = 1/6
    plain = make("secure_aggregation").protect_update(delta, where({}))[0]
    assert plain is delta
    seen = ObservedUpdate(config(), "server", (8, 8), (0.25, 0.75))
    told = make("secure_aggregation", rounding=True).noise_told(seen)
    assert told == pytest.approx(step / math.sqrt(6) * math.sqrt(0.0625 + 0.5625), rel=1e-3)
    assert make("secure_aggregation").noise_told(seen) is None and not make("secure_aggregation").tells_noise_to(
        "server"
    )
