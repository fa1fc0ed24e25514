import pytest
import torch

from clients.defenses.filters import laplace
from tests.clients.defenses.parts import context, make


def test_without_noise_the_entries_above_the_threshold_are_sent_clipped():
    delta = {"w": torch.tensor([[5.0, -0.6, 0.1], [0.2, -3.0, 0.0]])}
    precise = {"epsilon": 1e9, "noise_var": 1e9, "gamma": 1.0, "tau": 0.5}
    sent, _ = make("svt", fraction=1 / 6, **precise).protect_update(delta, context())
    chosen = sent["w"].nonzero().tolist()
    assert len(chosen) == 1 and chosen[0] in [[0, 0], [0, 1], [1, 1]]  # one entry is asked for, three qualify
    many = [make("svt", fraction=0.5, **precise).protect_update(delta, context(round=i))[0]["w"] for i in range(1, 40)]
    largest = torch.stack(many).abs().amax(0)
    torch.testing.assert_close(largest, torch.tensor([[1, 0.6, 0], [0, 1, 0]]), atol=1e-6, rtol=0)


def test_its_thresholds_are_those_of_a_mean_step():
    delta = {"w": torch.tensor([8.0, 1.0])}
    options = {"fraction": 0.5, "epsilon": 1e9, "noise_var": 1e9, "gamma": 1.5, "tau": 1.0}
    sent = make("svt", **options).protect_update(delta, context(memory={"steps": 4}))[0]["w"]
    assert sent.tolist() == pytest.approx([6.0, 0.0], abs=1e-4)  # min(8 / 4, 1.5) · 4; 1 / 4 is below τ


def test_noise_has_the_scale_of_the_mechanism():
    noise = laplace(100_000, 3.0, torch.Generator().manual_seed(0))
    assert float(noise.abs().mean()) == pytest.approx(3.0, rel=0.02)  # E|X| = b, E X² = 2 b²
    assert float(noise.square().mean()) == pytest.approx(18.0, rel=0.03)
    delta = {"w": torch.full((20_000,), 1.0)}
    sent = make("svt", fraction=0.5, gamma=0.01, noise_var=0.5).protect_update(delta, context())[0]["w"]
    sent = sent[sent != 0]  # of 10,000 draws with replacement from about as many
    assert 5000 < len(sent) < 8000
    assert float((sent - 0.01).abs().mean()) == pytest.approx(2 * 0.01 / 0.5, rel=0.05)
