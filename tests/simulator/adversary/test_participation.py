import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from simulator.adversary.reply import Participation
from simulator.scenario.scenario import validate
from simulator.scenario.yaml_source import YamlSource

CLIENTS, FRACTION = 40, 0.25


@pytest.fixture
def chosen(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):  # of this process: a message names its sender
        monkeypatch.setattr(TaskIdentity, name, 1)

    def by(sampling, seed=0, rounds=60):
        content = {
            "name": "s",
            "seed": seed,
            "federation": {"clients": CLIENTS, "fraction": FRACTION},
            "defenses": [{"name": "central_dp", "sampling": sampling}],
        }
        participation = Participation(validate(YamlSource(content)), {i: 100 + i for i in range(CLIENTS)})
        content = RecordDict({"config": ConfigRecord({})})
        messages = [Message(content=content, message_type="train", dst_node_id=100 + i) for i in range(10)]
        sent = [participation.readdress(round, messages) for round in range(1, rounds + 1)]
        return [{message.metadata.dst_node_id - 100 for message in round} for round in sent]

    return by


def test_by_secret_coins_clients_take_part_one_by_one(chosen):
    """Mean 10 of 40, variance of a binomial 7.5, and two clients together as often as independent ones."""
    rounds = chosen("secret_poisson", rounds=400)
    sizes = [len(round) for round in rounds]
    mean = sum(sizes) / len(sizes)
    assert mean == pytest.approx(10, abs=0.5)
    assert sum((size - mean) ** 2 for size in sizes) / len(sizes) == pytest.approx(7.5, rel=0.25)
    together = sum({0, 1} <= round for round in rounds) / len(rounds)
    assert together == pytest.approx(FRACTION**2, abs=0.04)
    assert rounds[:5] != chosen("secret_poisson", seed=1)[:5]


def test_by_a_public_schedule_as_many_clients_as_were_asked_take_part(chosen):
    assert {len(round) for round in chosen("public")} == {10}
    assert chosen("public") == chosen("public")
