"""Running statistics of BatchNorm from clients to the adversary and into the next round, without Ray."""

from types import SimpleNamespace

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from attacks import InputError
from clients.client_app import trained
from clients.local_update import load_data, make_model
from simulator.adversary.curious_server import CuriousServer
from simulator.adversary.recorder import CellRecorder
from simulator.adversary.reply import Participation
from simulator.adversary.statistics import StatisticsApart, buffers_of
from simulator.results.keys import ALL, ObservationKey
from simulator.results.storage import CellStore
from simulator.run.plan import check_cell
from simulator.run.strategies import defended_strategy
from simulator.scenario.scenario import validate
from simulator.scenario.yaml_source import YamlSource

NODES = {0: 70, 1: 71}  # partition: node
GRID = SimpleNamespace(get_node_ids=lambda: list(NODES.values()))
IMAGES = (6, 2)
MEAN, COUNT = "layer1.0.bn1.running_mean", "layer1.0.bn1.num_batches_tracked"


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):  # of this process: a message names its sender
        monkeypatch.setattr(TaskIdentity, name, 1)


def cell_of(strategy="FedAvg", defenses=(), **training):
    content = {
        "name": "s",
        "data": {"public": 30, "test": 30},
        "partition": {"images": list(IMAGES)},
        "model": {"name": "resnet18", "channels": 2, "stem": "cifar"},
        "training": {"epochs": 2, "batch_size": 2, **training},
        "federation": {"clients": 2, "strategy": strategy},
        "defenses": list(defenses),
        "adversary": {"threat_models": ["server", "observer", "server_history"]},
    }
    return validate(YamlSource(content)).cells()[0]


@pytest.fixture
def federate(tmp_path):
    """Two rounds of two clients that train; returns what was recorded."""

    def run(**scenario):
        cell = cell_of(**scenario)
        data, config = load_data(cell.client_config(use_gpu=False)), cell.client_config(use_gpu=False)
        model, store = make_model(config, data), CellStore(tmp_path)
        store.create(cell.scenario.model, data.shape, 10, 0)
        recorder = CellRecorder(cell, store, data, lambda job: None, lambda job, result: None)
        aggregation = StatisticsApart(defended_strategy(cell.scenario), buffers_of(model))
        server = CuriousServer(aggregation, Participation(cell.scenario, NODES), recorder, lambda round, reply: None)
        arrays, client_json = ArrayRecord(model.state_dict()), ConfigRecord({"client-json": config.model_dump_json()})
        for round in (1, 2):
            messages = list(server.configure_train(round, arrays, client_json, GRID))
            replies = [reply_of(message, client) for client, message in enumerate(messages)]
            arrays, _ = server.aggregate_train(round, replies)
        return store

    return run


def reply_of(message, client):
    run = Context(run_id=1, node_id=1, node_config={"partition-id": client}, state=RecordDict(), run_config={})
    return Message(content=trained(message, run), reply_to=message)


def states(store, threat_model, client=ALL, round=2):
    return store.load(ObservationKey(round, client, threat_model))[0].pairs


def test_every_threat_model_sees_the_statistics_of_both_checkpoints(federate):
    store = federate()
    (first, second), (own,) = states(store, "server_history", 0), states(store, "server", 0)
    assert all(torch.equal(one[MEAN], other[MEAN]) for one, other in zip(second, own, strict=True))
    assert int(first[0][COUNT]) == 0 and int(first[1][COUNT]) == 6  # two epochs of six images, two at a time
    for initial, final in (first, second, *states(store, "observer")):
        assert not torch.equal(initial[MEAN], final[MEAN]) and final[COUNT].dtype == torch.int64


def test_the_global_statistics_are_the_mean_over_images_and_counters_stay_whole(federate):
    store = federate()
    ((sent, after),), returned = (
        states(store, "observer", round=1),
        [states(store, "server", client, round=1)[0][1] for client in (0, 1)],
    )
    torch.testing.assert_close(after[MEAN], (6 * returned[0][MEAN] + 2 * returned[1][MEAN]) / 8)
    assert [int(state[COUNT]) for state in (*returned, after)] == [6, 2, 5]
    assert all(value.dtype == sent[name].dtype for name, value in after.items())
    (second, _), *_ = states(store, "observer", round=2)
    assert all(torch.equal(value, after[name]) for name, value in second.items())  # it is what clients receive next


def test_in_evaluation_mode_they_stay_bit_for_bit(federate):
    ((initial, final),) = states(federate(batch_norm="eval"), "observer")
    assert all(torch.equal(initial[name], final[name]) for name in initial if "running" in name or "tracked" in name)
    assert not torch.equal(initial["conv1.weight"], final["conv1.weight"])


@pytest.mark.parametrize(
    ("scenario", "moves"),
    [
        ({"strategy": {"name": "FedAdam", "options": {"eta": 1.0}}}, True),
        ({"strategy": "FedMedian"}, True),
        ({"defenses": [{"name": "central_dp", "noise_multiplier": 0.1}], "batch_norm": "eval"}, False),
        ({"defenses": ["secure_aggregation"]}, True),
    ],
    ids=["server optimizer", "median", "central dp", "secure aggregation"],
)
def test_a_strategy_changes_parameters_alone(federate, scenario, moves):
    """A step of 1 in a variance, or noise on it, would make it negative."""
    store = federate(**scenario)
    for initial, final in states(store, "observer"):
        variances = [value for name, value in final.items() if name.endswith("running_var")]
        assert min(float(value.min()) for value in variances) > 0.3
        assert torch.equal(initial[MEAN], final[MEAN]) != moves and final[COUNT].dtype == torch.int64
    if "secure_aggregation" in scenario.get("defenses", ()):
        assert states(store, "server")[0][1][COUNT].dtype == torch.int64


def test_what_cannot_be_is_said_before_a_run():
    with pytest.raises(InputError, match=r"set training\.batch_norm to eval"):
        check_cell(cell_of(dynamics="linearized"))
    with pytest.raises(InputError, match="mixes those of a batch"):
        check_cell(cell_of(defenses=["dp_sgd"]))
    with pytest.raises(InputError, match="would go with them as they are"):
        check_cell(cell_of(defenses=["local_dp"]))


def test_nobody_s_reply_leaves_them_as_they_were():
    class Silent:
        def configure_train(self, round, arrays, config, grid):
            self.seen = set(arrays)
            return []

        def aggregate_train(self, round, replies):
            return ArrayRecord({"w": torch.ones(2)}), MetricRecord()

    inner = Silent()
    strategy = StatisticsApart(inner, ["mean"])
    sent = ArrayRecord({"mean": torch.full((2,), 0.3), "w": torch.zeros(2)})
    strategy.configure_train(1, sent, ConfigRecord({}), GRID)
    after, _ = strategy.aggregate_train(1, [])
    assert inner.seen == {"w"} and list(after) == ["mean", "w"]
    assert after.to_torch_state_dict()["mean"].tolist() == pytest.approx([0.3, 0.3])
