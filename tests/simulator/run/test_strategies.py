import re
import sys
import types
from pathlib import Path

import flwr.serverapp.strategy as flower
import pytest
import torch
from flwr.app import Array, ArrayRecord

from attacks import Knowledge, Observation, get_attack
from clients.chain import build_defense
from clients.config import DefenseConfig
from clients.defenses import DEFENSES, ServerHalf
from simulator.run.strategies import defended_strategy, wrapped
from simulator.scenario.scenario import Scenario
from tests.attacks.conftest import client, digits, generator, mlp, nearest


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


@pytest.mark.parametrize("server", [flower.FedAdam, flower.FedYogi])
def test_the_first_round_of_a_server_s_adam_is_undone_by_the_page_s_snippet(server, monkeypatch):
    """As seen the global checkpoints give no image away, and undone all."""
    page = Path(__file__).parents[3] / "docs" / "howto" / "audit_in_full.md"
    code = re.search(r"```python\n(def mean_of_first_round.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[1]
    exec(code, names := {})
    images = digits(12)
    sent, mean = client(mlp(128), images, 8, lr=0.5).pairs[0]  # the mean of one client, which Flower's own is given
    record = ArrayRecord({name: Array(value.numpy()) for name, value in mean.items()})
    monkeypatch.setattr(flower.FedAvg, "aggregate_train", lambda *_: (record, None))
    strategy = server()
    strategy.current_arrays = {name: value.numpy() for name, value in sent.items()}
    seen = {name: value.float() for name, value in strategy.aggregate_train(1, [])[0].to_torch_state_dict().items()}
    undone = names["mean_of_first_round"](sent, seen, yogi=server is flower.FedYogi, eta=strategy.eta)
    assert all(torch.allclose(undone[name].float(), mean[name], rtol=1e-3, atol=1e-5) for name in mean)
    as_seen, found = (
        get_attack("span").run(Observation(mlp(128), ((sent, one),), (1, 8, 8)), Knowledge(), generator())
        for one in (seen, undone)
    )
    assert not len(as_seen.images) and "docs/howto/audit_in_full.md" in as_seen.warnings[-1]
    assert len(found.images) == 12 and (nearest(images, found) < 1e-2).all()
