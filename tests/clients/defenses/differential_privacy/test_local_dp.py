import math

import numpy as np
import pytest
from flwr.clientapp.mod import LocalDpMod

from clients.defenses.base import ObservedUpdate
from tests.clients.defenses.differential_privacy.gaussian import delta_of
from tests.clients.defenses.parts import context, make


def test_the_noise_is_what_flower_adds(monkeypatch):
    defense = make("local_dp", clipping_norm=0.5, epsilon=2.0, delta=1e-5)
    assert defense.noise_std == pytest.approx(2 * 0.5 * math.sqrt(2 * math.log(1.25e5)) / 2.0)
    options = defense.flower_mod().options
    mod = LocalDpMod(**options)
    assert mod.sensitivity * np.sqrt(2 * np.log(1.25 / mod.delta)) / mod.epsilon == pytest.approx(defense.noise_std)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0, 10.0, 40.0, 1000.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_the_promise_holds_for_the_noise_that_was_added_and_nothing_less_does(epsilon, delta, rounds):
    defense, memory = make("local_dp", clipping_norm=0.7, epsilon=epsilon, delta=delta), {}
    spent = [defense.privacy_spent(context(memory=memory), 1, 1) for _ in range(rounds)][-1]
    distance = math.sqrt(rounds) * 2 * 0.7 / defense.noise_std
    assert delta_of(distance, spent.epsilon) <= spent.delta == delta
    assert delta_of(distance, spent.epsilon * (1 - 1e-4)) > delta
    assert spent.nominal_epsilon == epsilon * rounds


def test_five_rounds_at_eight_are_those_of_the_literature_s_exact_composition():
    """Gaussian differential privacy at δ = 1e-5: 7.9 for one round of Flower's ε = 8, 21.9 for five (not 40)."""
    defense, memory = make("local_dp"), {}
    spent = [defense.privacy_spent(context(memory=memory), 1, 1).epsilon for _ in range(5)]
    assert spent[0] == pytest.approx(7.91, abs=0.01) and spent[-1] == pytest.approx(21.9, abs=0.1)


def test_a_sensitivity_that_is_declared_smaller_protects_less_and_is_accounted_for():
    """Settings that a hospital platform publishes: clip 1, sensitivity 1e-4, ε 10 a round."""
    defense = make("local_dp", clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0)
    spent = defense.privacy_spent(context(), 1, 1)
    distance = 2 / defense.noise_std
    assert spent.nominal_epsilon == 10.0 and spent.epsilon > distance**2 / 2 > 8e8
    assert delta_of(distance, spent.epsilon) <= 1e-5 < delta_of(distance, spent.epsilon * (1 - 1e-6))


def test_the_observer_of_a_mean_is_told_the_noise_of_the_mean():
    defense, config = make("local_dp"), context().config
    assert defense.noise_told(ObservedUpdate(config, "server", (8,), (1.0,))) == pytest.approx(defense.noise_std)
    seen = ObservedUpdate(config, "observer", (8, 24), (0.25, 0.75))
    assert defense.noise_told(seen) == pytest.approx(defense.noise_std * math.sqrt(0.0625 + 0.5625))
