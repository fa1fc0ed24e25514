import sys
import types

import flwr.serverapp.strategy as flower
import pytest

from clients.chain import build_defense
from clients.config import DefenseConfig
from clients.defenses import DEFENSES, ServerHalf
from simulator.run.strategies import defended_strategy, wrapped
from simulator.scenario.scenario import Scenario


def strategy(*defenses, clients=4, **federation):
    content = {"name": "s", "defenses": list(defenses), "federation": {"clients": clients, **federation}}
    return defended_strategy(Scenario.model_validate(content))


def test_central_dp_is_flower_s_with_the_clients_of_a_round():
    at_server = strategy({"name": "central_dp", "noise_multiplier": 0.3, "clipping_norm": 2.0}, fraction=0.5)
    wrapper = at_server.flower  # its noise is fitted to the replies (test_central_dp.py), the rest is as Flower has it
    assert type(wrapper) is flower.DifferentialPrivacyServerSideFixedClipping
    assert (wrapper.noise_multiplier, wrapper.clipping_norm, wrapper.num_sampled_clients) == (0.3, 2.0, 2)
    assert type(wrapper.strategy) is flower.FedAvg and at_server.expected_clients is None
    at_clients = strategy({"name": "central_dp", "clipping": "client"})
    assert type(at_clients.flower) is flower.DifferentialPrivacyClientSideFixedClipping
    by_coins = strategy({"name": "central_dp", "sampling": "secret_poisson"}, clients=10, fraction=0.25)
    assert by_coins.expected_clients == 2.5


@pytest.mark.parametrize("name", sorted(DEFENSES))
def test_the_server_half_of_every_defense_can_be_carried_out(name):
    half = build_defense(DefenseConfig.model_validate(name)).server_half()
    inner = flower.FedAvg()
    assert not half.strategy or wrapped(inner, half, sampled=3).flower.strategy is inner
    assert not (half.hides_clients and half.needs_single_updates)


def test_a_server_half_may_name_a_strategy_of_its_own(monkeypatch):
    class Logged:
        def __init__(self, strategy, tag):
            self.strategy, self.tag = strategy, tag

    module = types.ModuleType("own_strategies")
    module.Logged = Logged
    monkeypatch.setitem(sys.modules, "own_strategies", module)
    found = wrapped("inner", ServerHalf("own_strategies:Logged", {"tag": "a"}), sampled=3)
    assert (type(found), found.strategy, found.tag) == (Logged, "inner", "a")
