import torch

from clients.defenses.compression import signs
from tests.clients.defenses.parts import context, make


def test_signs_times_the_mean_magnitude_of_each_tensor():
    delta = {"w": torch.tensor([[1.0, -3.0], [0.0, 2.0]]), "b": torch.tensor([-0.5])}
    sent = signs(delta)
    assert sent["w"].tolist() == [[1.5, -1.5], [1.5, 1.5]]  # one bit has no zero
    assert sent["b"].tolist() == [-0.5]
    assert signs({"w": torch.ones(2, dtype=torch.float64)})["w"].dtype == torch.float64


def test_error_feedback_sends_later_what_the_signs_lack():
    memory, defense = {}, make("sign_sgd", error_feedback=True)
    zero = {"w": torch.zeros(4)}
    first, _ = defense.protect_update({"w": torch.tensor([1.0, -3.0, 0.0, 2.0])}, context(memory=memory))
    second, _ = defense.protect_update(zero, context(memory=memory, round=2))
    assert first["w"].tolist() == [1.5, -1.5, 1.5, 1.5]
    assert second["w"].tolist() == [-1.0, -1.0, -1.0, 1.0]  # of −0.5, −1.5, −1.5, 0.5, by hand
