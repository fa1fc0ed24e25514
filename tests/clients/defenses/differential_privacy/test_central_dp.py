import math

import pytest

from clients.config import TrainingConfig
from clients.defenses import DefenseContext
from clients.defenses.base import DefenseEnvironment, ObservedUpdate
from tests.clients.defenses.differential_privacy.gaussian import delta_of
from tests.clients.defenses.parts import config, context, make


@pytest.mark.parametrize("multiplier", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("rounds", [1, 5])
def test_the_promise_holds_without_help_from_a_public_schedule(multiplier, rounds):
    """The noise on one release is the multiplier times what a client can change; only its own rounds count."""
    defense, memory = make("central_dp", noise_multiplier=multiplier), {}
    few = context(memory=memory, round=9)  # of nine rounds it was asked in some, everybody knows in which
    spent = [defense.privacy_spent(few, 1, 1) for _ in range(rounds)][-1]
    distance = math.sqrt(rounds) / multiplier
    assert delta_of(distance, spent.epsilon) <= spent.delta < delta_of(distance, spent.epsilon * (1 - 1e-4))
    assert (spent.unit, spent.against, spent.adjacency) == ("client", "observer", "add_remove")


def test_secret_coins_amplify_and_count_all_rounds():
    from opacus.accountants import RDPAccountant

    settings = config().model_copy(update={"fraction": 0.1})
    where = DefenseContext(settings, 4, 0, context().model, {})
    told = make("central_dp", sampling="secret_poisson").privacy_spent(where, 1, 1).epsilon
    accountant = RDPAccountant()
    accountant.history = [(1.0, 0.1, 4)]
    assert told == pytest.approx(accountant.get_epsilon(1e-5))
    assert told < make("central_dp").privacy_spent(where, 1, 1).epsilon


def test_only_the_observer_is_told_the_noise():
    defense, settings = make("central_dp", noise_multiplier=2.0, clipping_norm=0.5), config()
    assert defense.noise_told(ObservedUpdate(settings, "server", (3,), (1.0,))) is None
    assert defense.noise_told(ObservedUpdate(settings, "observer", (3, 1), (0.75, 0.25))) == 0.75


@pytest.mark.parametrize("behind", ["top_k", "noise", "local_dp"])
def test_what_clients_clip_may_not_be_changed_again(behind):
    defense = make("central_dp", clipping="client")
    training = TrainingConfig()
    after, before = (defense, make(behind)), (make(behind), defense, make("secure_aggregation"))
    assert f"has to come after {behind}" in defense.conflict(DefenseEnvironment(after, training))
    assert defense.conflict(DefenseEnvironment(before, training)) == ""
    at_server = make("central_dp")
    assert at_server.conflict(DefenseEnvironment((at_server, make(behind)), training)) == ""
