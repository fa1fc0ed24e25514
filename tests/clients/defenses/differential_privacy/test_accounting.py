import pytest
from opacus.accountants import RDPAccountant

from clients.defenses.guarantee import (
    Guarantee,
    epsilon_of,
    from_json,
    gaussian_epsilon,
    to_json,
    worst,
)
from tests.clients.defenses.differential_privacy.gaussian import delta_of


@pytest.mark.parametrize("distance", [1e-6, 1e-3, 0.1, 1.0, 4.0, 30.0, 1e3, 4e4, 1e6])
@pytest.mark.parametrize("delta", [0.5, 1e-3, 1e-5, 1e-9, 1e-12])
def test_epsilon_satisfies_the_condition_of_the_analytic_gaussian_mechanism(distance, delta):
    epsilon = gaussian_epsilon(distance, delta)
    assert epsilon >= 0 and delta_of(distance, epsilon) <= delta
    if epsilon:  # and it is the least
        assert delta_of(distance, epsilon * (1 - 1e-4)) > delta


def test_epsilons_that_others_have_computed():
    """Balle and Wang (2018): one release with σ = Δ at δ = 1e-5 is ε = 4.377; no noise to speak of: ε near Δ²/2σ²."""
    assert gaussian_epsilon(1.0, 1e-5) == pytest.approx(4.377, abs=1e-3)
    assert gaussian_epsilon(1e6, 1e-5) == pytest.approx(5e11, rel=1e-5)


@pytest.mark.filterwarnings("ignore:Optimal order")
@pytest.mark.parametrize(
    "history", [((1.0, 0.1, 10),), ((1.0, 0.1, 10), (0.5, 0.03, 7)), ((0.3, 1.0, 3), (1.0, 0.1, 1)), ((30.0, 0.01, 9),)]
)
def test_an_epsilon_over_rounds_is_that_of_opacus_to_the_last_bit(history):
    accountant = RDPAccountant()
    accountant.history = list(history)
    assert epsilon_of(history, 1e-5) == accountant.get_epsilon(1e-5)


def of(epsilon, mechanism="a", unit="client", delta=1e-5):
    return Guarantee(mechanism, epsilon, delta, unit, "both", "replace_one")


def test_only_like_is_combined_with_like():
    record = of(2.0, unit="record")
    assert worst([(record, of(5.0)), (of(7.0),), (of(1.0), of(3.0, delta=1e-6))]) == (
        record,
        of(7.0),
        of(3.0, delta=1e-6),
    )
    assert worst([]) == worst([()]) == ()


def test_guarantees_travel_as_text():
    assert from_json(to_json((of(5.0), of(1.0, "b")))) == (of(5.0), of(1.0, "b"))


def test_a_guarantee_says_whom_it_holds_against():
    central = Guarantee("central_dp", 3.0, 1e-5, "client", "observer", "add_remove")
    assert [central.holds_against(who) for who in ("server", "observer")] == [False, True]
    assert all(of(1.0).holds_against(who) for who in ("server", "observer"))
