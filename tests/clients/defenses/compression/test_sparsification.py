import math

import numpy as np
import pytest
import torch

from tests.clients.defenses.parts import context, flat, make, update


def test_top_k_keeps_the_largest_entries_of_all_tensors_together():
    delta = update()
    kept = flat(make("top_k", fraction=0.1).protect_update(delta, context())[0]).numpy()
    size = np.abs(flat(delta).numpy())
    largest = np.sort(np.argsort(size)[-2020:])
    assert np.array_equal(np.flatnonzero(kept), largest)
    assert np.array_equal(kept[largest], flat(delta).numpy()[largest])


def test_random_k_is_right_in_expectation_and_draws_anew_in_every_round():
    delta = {"w": torch.ones(100, 100)}
    rounds = [flat(make("random_k", fraction=0.25).protect_update(delta, context(round=i))[0]) for i in range(1, 41)]
    assert all(int((kept != 0).sum()) == 2500 for kept in rounds)
    mean = torch.stack(rounds).mean(0)  # of 40 draws of 4 with probability 1/4: deviation √(3/40)
    assert float(mean.mean()) == pytest.approx(1.0) and float(mean.std()) == pytest.approx(math.sqrt(3 / 40), rel=0.05)


def test_error_feedback_sends_the_rest_in_the_next_round():
    memory, defense = {}, make("top_k", fraction=0.25, error_feedback=True)
    first, _ = defense.protect_update({"w": torch.tensor([4.0, -3.0, 2.0, 1.0])}, context(memory=memory))
    second, _ = defense.protect_update({"w": torch.tensor([0.0, 1.0, 2.0, 0.0])}, context(memory=memory, round=2))
    third, _ = defense.protect_update({"w": torch.zeros(4)}, context(memory=memory, round=3))
    sent = [value["w"].tolist() for value in (first, second, third)]
    assert sent == [[4.0, 0.0, 0.0, 0.0], [0.0, 0.0, 4.0, 0.0], [0.0, -2.0, 0.0, 0.0]]


def test_a_round_that_diverged_is_not_made_up_for():
    memory, defense = {}, make("top_k", fraction=0.5, error_feedback=True)
    defense.protect_update({"w": torch.tensor([math.inf, 1.0])}, context(memory=memory))
    assert defense.protect_update({"w": torch.ones(2)}, context(memory=memory, round=2))[0]["w"].isfinite().all()
