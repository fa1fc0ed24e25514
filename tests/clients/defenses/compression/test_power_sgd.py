import pytest
import torch
from torch import nn

from clients.defenses import Encoding
from clients.defenses.base import from_text
from tests.clients.defenses.parts import context, make, update


def test_a_matrix_of_that_rank_is_sent_as_it_is_and_biases_always():
    torch.manual_seed(0)
    delta = {"w": torch.randn(30, 2) @ torch.randn(2, 20), "k": torch.randn(8, 1) @ torch.randn(1, 27)}
    delta = {"w": delta["w"], "k": delta["k"].view(8, 3, 3, 3), "b": torch.randn(30)}
    sent, _ = make("power_sgd", rank=2).protect_update(delta, context())
    for name, value in delta.items():
        torch.testing.assert_close(sent[name], value, rtol=1e-4, atol=1e-4)


def test_what_is_sent_has_the_rank_and_lies_in_the_row_space():
    torch.manual_seed(0)
    rows = torch.linalg.qr(torch.randn(20, 5)).Q
    matrix = torch.randn(30, 5) @ rows.T
    sent = make("power_sgd", rank=2).protect_update({"w": matrix}, context())[0]["w"]
    values = torch.linalg.svdvals(sent)
    assert values[1] > 1 and values[2] < 1e-4
    torch.testing.assert_close(sent @ rows @ rows.T, sent, rtol=1e-4, atol=1e-4)


def test_warm_factors_reach_the_best_approximation_of_their_rank():
    """Of an update that stays the same: √Σ_{i>2} σ_i² is the least that rank 2 leaves (Eckart and Young 1936)."""
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(n, 6)).Q for n in (40, 30))
    matrix = left @ torch.diag(torch.tensor([9.0, 8.0, 3.0, 2.0, 1.0, 1.0])) @ right.T
    defense, memory = make("power_sgd", error_feedback=False), {}
    for i in range(1, 13):
        sent = defense.protect_update({"w": matrix}, context(memory=memory, round=i))[0]["w"]
    assert float((matrix - sent).norm()) == pytest.approx((9 + 4 + 1 + 1) ** 0.5, rel=1e-4)


def test_error_feedback_owes_what_was_not_sent():
    defense, memory, total, sent = make("power_sgd"), {}, 0, 0
    for i in range(1, 4):
        delta = update(seed=i)
        total = total + delta["w"]
        sent = sent + defense.protect_update(delta, context(memory=memory, round=i))[0]["w"]
    torch.testing.assert_close(sent + from_text(memory["error"])["w"], total)


def test_bytes_are_those_of_the_factors():
    model = nn.Sequential(nn.Linear(64, 100), nn.Linear(100, 3))
    floats = 2 * (64 + 100) + 100 + 2 * (100 + 3) + 3
    assert make("power_sgd").encode(Encoding(), context(model=model)).bytes(64 * 100 + 403) == 4 * floats
