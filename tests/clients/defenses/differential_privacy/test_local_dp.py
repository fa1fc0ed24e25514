import math

import pytest

from tests.clients.defenses.parts import context, make


def test_local_dp_has_the_noise_of_the_gaussian_mechanism():
    defense = make("local_dp", clipping_norm=0.5, epsilon=2.0, delta=1e-5)
    assert defense.noise_std == pytest.approx(2 * 0.5 * math.sqrt(2 * math.log(1.25e5)) / 2.0)
    memory = {}
    assert [defense.privacy_spent(context(memory=memory), 1, 1)["epsilon"] for _ in range(3)] == [2.0, 4.0, 6.0]
