import torch

from tests.clients.defenses.parts import context, make


def test_entries_below_the_percentile_vanish_and_the_others_are_truncated():
    delta = {"w": torch.tensor([[1.0, -2.0, 3.0], [4.0, -5.0, 6.0]]), "b": torch.tensor([7.0, 8.0, 9.0, -10.0])}
    memory = {"steps": 2}  # the thresholds are those of a mean step: 0.5, −1, …, −5
    sent, said = make("percentile", percentile=50.0, gamma=4.0).protect_update(delta, context(memory=memory))
    assert sent["w"].tolist() == [[0, 0, 0], [0, 0, 6]]  # the median of 0.5, …, 5 is 2.75
    assert sent["b"].tolist() == [7, 8, 8, -8]
    assert said == {"left_out": 0.5, "truncated": 0.2}


def test_zeros_of_dead_units_are_the_percentile():
    delta = {"w": torch.tensor([0.0, 0.0, 1e-9, 1.0])}
    assert torch.equal(make("percentile", gamma=1.0).protect_update(delta, context())[0]["w"], delta["w"])
