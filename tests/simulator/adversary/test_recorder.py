"""What the adversary writes down of a round, without Ray: replies are handed to it as Flower would."""

from types import SimpleNamespace

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from simulator.adversary.recorder import Adversary, CellRun
from simulator.results.ledger import Ledger
from simulator.results.storage import CellStore, Sight
from simulator.run.plan import cell_data
from simulator.run.strategies import defended_strategy
from simulator.scenario.scenario import validate
from simulator.scenario.yaml_source import Source

WEIGHT = "1.weight"  # of a network without hidden layers
NODES = {0: 70, 1: 71}  # partition: node
CLIENT_DP = {"name": "central_dp", "clipping": "client"}
IMAGES, STEPS = (3, 1), (0.1, 0.5)  # of the two clients; what they add to every entry: 0.2 in the mean over images


def reply_to(message, sent, images, step):
    numbers = {"num-examples": images, "last-loss": 1.0, "first-loss": 1.0, "steps": 1, "seconds": 0.0}
    where = {"worker": "w", "pid": 1, "gpu-ids": "", "device": "cpu"}
    content = {
        "arrays": ArrayRecord({WEIGHT: sent + step}),
        "metrics": MetricRecord(numbers),
        "where": ConfigRecord(where),
        "defenses": ConfigRecord({}),
    }
    return Message(content=RecordDict(content), reply_to=message)


@pytest.fixture
def observed(tmp_path, monkeypatch):
    """Two rounds of two clients; a function that gives the updates that a threat model sees of both in round 2."""

    for name in ("_task_id", "_run_id", "_node_id"):  # of this process: a message names its sender
        monkeypatch.setattr(TaskIdentity, name, 1)

    def run(views, defenses=(), strategy="FedAvg"):
        content = {
            "name": "s",
            "data": {"public": 30, "test": 30},
            "partition": {"images": list(IMAGES)},
            "model": {"depth": 0, "bias": False},
            "federation": {"clients": 2, "strategy": {"name": strategy}},
            "defenses": ["secure_aggregation", *defenses],
            "adversary": {"threat_models": views},
        }
        cell = validate(Source(content)).cells()[0]
        store = CellStore(tmp_path)
        store.create(cell.scenario.model, (1, 8, 8), 10, 0)
        ledger = Ledger(tmp_path)
        seen_by = CellRun(cell, store, ledger, cell_data(cell.scenario), lambda job: None, tmp_path)
        adversary = Adversary(defended_strategy(cell.scenario), seen_by, NODES)
        grid = SimpleNamespace(get_node_ids=lambda: list(NODES.values()))
        arrays = ArrayRecord({WEIGHT: torch.zeros(10, 64)})
        for round in (1, 2):
            messages = adversary.configure_train(round, arrays, ConfigRecord({}), grid)
            sent = arrays.to_torch_state_dict()[WEIGHT]
            work = zip(messages, IMAGES, STEPS, strict=True)
            arrays, _ = adversary.aggregate_train(round, [reply_to(message, sent, *rest) for message, *rest in work])

        def updates(view):
            observation, _ = store.load(Sight(2, -1, view))
            return [observation.delta(pair)[WEIGHT] for pair in range(len(observation.pairs))]

        return updates

    return run


def mean(update):
    return torch.allclose(update, torch.full_like(update, 0.2), atol=1e-6)


@pytest.mark.parametrize(("defenses", "strategy"), [([CLIENT_DP], "FedAvg"), ([], "FedAdam"), ([], "FedYogi")])
def test_the_server_holds_the_sum_before_its_own_noise_and_steps(observed, defenses, strategy):
    updates = observed(["server", "observer", "history"], defenses, strategy)
    assert [mean(update) for update in updates("server")] == [True]
    assert [mean(update) for update in updates("history")] == [True, True]  # the server's
    assert not mean(updates("observer")[0])


def test_under_plain_averaging_server_and_observer_see_the_same_bits(observed):
    updates = observed(["server", "observer"])
    assert torch.equal(updates("server")[0], updates("observer")[0]) and mean(updates("server")[0])


def test_the_history_of_an_observer_is_that_of_the_global_checkpoints(observed):
    updates = observed(["observer", "history"], [CLIENT_DP])("history")
    assert len(updates) == 2 and not any(map(mean, updates))
