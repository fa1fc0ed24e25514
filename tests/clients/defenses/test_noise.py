import pytest
import torch

from tests.clients.defenses.parts import context, flat, make, update


def test_noise_has_the_norm_that_was_asked_for_and_is_the_round_s_own():
    delta = update()
    noised, said = make("noise", scale=0.1).protect_update(delta, context())
    added = flat(noised) - flat(delta)
    assert float(added.norm() / flat(delta).norm()) == pytest.approx(0.1, rel=0.02)
    assert float(added.std()) == pytest.approx(said["noise_std"], rel=0.02)
    again, _ = make("noise", scale=0.1).protect_update(delta, context())
    later, _ = make("noise", scale=0.1).protect_update(delta, context(round=2))
    assert torch.equal(noised["w"], again["w"]) and not torch.equal(noised["w"], later["w"])
