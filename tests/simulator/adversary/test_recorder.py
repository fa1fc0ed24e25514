"""What the adversary writes down of a round, without Ray: replies are handed to it as Flower would."""

from types import SimpleNamespace

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from attacks import InputError
from clients.defenses.guarantee import Guarantee, to_json
from clients.local_update import load_data
from simulator.adversary.curious_server import CuriousServer
from simulator.adversary.recorder import CellRecorder
from simulator.adversary.reply import Participation
from simulator.results.keys import ALL, ObservationKey
from simulator.results.storage import CellStore
from simulator.run.strategies import defended_strategy
from simulator.scenario.scenario import validate
from simulator.scenario.yaml_source import YamlSource

WEIGHT = "1.weight"  # of a network without hidden layers
NODES = {0: 70, 1: 71}  # partition: node
CLIENT_DP = {"name": "central_dp", "clipping": "client"}
IMAGES, STEPS = (3, 1), (0.1, 0.5)  # of the two clients; what they add to every entry: 0.2 in the mean over images


def spent(images):
    """What a client with so many images says that it has spent."""
    return Guarantee("local_dp", float(images), 1e-5, "client", "both", "replace_one")


def reply_to(message, sent, images, step):
    numbers = {"num-examples": images, "last-loss": 1.0, "first-loss": 1.0, "steps": 1, "seconds": 0.0}
    where = {"worker": "w", "pid": 1, "gpu-ids": "", "device": "cpu"}
    content = {
        "arrays": ArrayRecord({WEIGHT: sent + step}),
        "metrics": MetricRecord(numbers),
        "where": ConfigRecord(where),
        "defenses": ConfigRecord({}),
        "privacy": ConfigRecord({"guarantees": to_json([spent(images)])}),
    }
    return Message(content=RecordDict(content), reply_to=message)


class NoAttacks:
    """Takes jobs and runs none. noted: (client, threat model, status) of those that could not be started."""

    def __init__(self):
        self.submitted, self.noted = [], []

    def submit(self, job):
        self.submitted.append(job)

    def note(self, job, result):
        self.noted.append((job.key.client, job.key.threat_model, result.leakage[0]["status"]))


@pytest.fixture
def federate(tmp_path, monkeypatch):
    """Two rounds of two clients, or more; returns the store of what was recorded, and the attacks.

    late: the client that does not reply in round 2. after_round: called with the recorder and the round.
    """

    for name in ("_task_id", "_run_id", "_node_id"):  # of this process: a message names its sender
        monkeypatch.setattr(TaskIdentity, name, 1)

    def run(
        threat_models,
        defenses=(),
        strategy="FedAvg",
        *,
        rounds=2,
        late=None,
        after_round=None,
        keep="attacked",
        **adversary,
    ):
        content = {
            "name": "s",
            "data": {"public": 30, "test": 30},
            "partition": {"images": list(IMAGES)},
            "model": {"depth": 0, "bias": False},
            "federation": {"rounds": rounds, "clients": 2, "strategy": {"name": strategy}},
            "defenses": list(defenses),
            "adversary": {"threat_models": threat_models, "attacks": ["ntk"]} | adversary,
            "output": {"keep": keep},
        }
        cell = validate(YamlSource(content)).cells()[0]
        store, queue = CellStore(tmp_path), NoAttacks()
        store.create(cell.scenario.model, (1, 8, 8), 10, 0)
        recorder = CellRecorder(cell, store, load_data(cell.client_config(use_gpu=False)), queue.submit, queue.note)
        participation = Participation(cell.scenario, NODES)
        server = CuriousServer(defended_strategy(cell.scenario), participation, recorder, lambda round, reply: None)
        grid = SimpleNamespace(get_node_ids=lambda: list(NODES.values()))
        arrays = ArrayRecord({WEIGHT: torch.zeros(10, 64)})
        for round in range(1, rounds + 1):
            messages = server.configure_train(round, arrays, ConfigRecord({}), grid)
            sent = arrays.to_torch_state_dict()[WEIGHT]
            work = enumerate(zip(messages, IMAGES, STEPS, strict=True))
            replies = [reply_to(message, sent, *rest) for i, (message, *rest) in work if (round, i) != (2, late)]
            arrays, _ = server.aggregate_train(round, replies)
            if after_round is not None:
                after_round(recorder, round)
        return store, queue

    return run


@pytest.fixture
def observed(federate):
    """Under secure aggregation: a function that gives the updates that a threat model sees of both in round 2."""

    def run(threat_models, defenses=(), strategy="FedAvg"):
        store, _ = federate(threat_models, ["secure_aggregation", *defenses], strategy)

        def updates(threat_model):
            observation, _ = store.load(ObservationKey(2, ALL, threat_model))
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


def test_an_observation_says_whose_images_it_holds(federate):
    """Client 1 is silent in round 2: its images are in the history of all, and in no other observation of the round."""
    store, _ = federate(["server", "observer", "history"], late=1)
    held = {}
    for key in store.observation_keys():
        if key.round == 2:
            recorded = store.recorded(key)
            held[key.client, key.threat_model] = (recorded.clients, recorded.round_clients)
    assert held == {
        (0, "server"): ((0,), (0,)),
        (0, "history"): ((0,), (0,)),
        (ALL, "observer"): ((0,), (0,)),
        (ALL, "history"): ((0, 1), (0, 1)),
    }


def test_a_client_that_failed_has_a_row_for_every_threat_model_that_looks_at_it(federate):
    _, attacks = federate(["server", "observer", "history"], late=1)
    assert attacks.noted == [(1, "server", "timeout"), (1, "history", "timeout")]
    assert len(attacks.submitted) == 6 + 4


def test_secure_aggregation_leaves_single_clients_unattacked_and_says_so(federate):
    _, attacks = federate(["server", "history"], ["secure_aggregation"])
    of_a_round = [(client, threat, "skipped") for client in (0, 1) for threat in ("server", "history")]
    assert attacks.noted == 2 * of_a_round
    assert [(job.key.client, job.key.threat_model) for job in attacks.submitted] == 2 * [
        (ALL, "server"), (ALL, "history")
    ]  # fmt: skip


def test_an_observation_says_what_guarantee_its_clients_have_and_whose_eyes_it_is(federate):
    store, _ = federate(["server", "observer", "history"], late=1)
    found = {(key.round, key.client, key.threat_model): store.recorded(key) for key in store.observation_keys()}
    assert found[1, 1, "server"].guarantees == (spent(1),) and found[1, 1, "server"].adversary == "server"
    assert found[1, ALL, "observer"].guarantees == (spent(3),)  # the worst of both
    assert found[1, ALL, "observer"].adversary == found[2, ALL, "history"].adversary == "observer"
    assert found[2, ALL, "history"].guarantees == (spent(3),)


ADAPTIVE = [{"name": "span", "adaptive": True}, "span"]


def told(store, round, client, threat_model):
    return store.recorded(ObservationKey(round, client, threat_model)).defense_facts


def test_the_observer_is_told_the_noise_of_the_mean_and_the_server_that_adds_it_nothing(federate):
    store, queue = federate(["server", "observer"], [{"name": "central_dp", "noise_multiplier": 2.0}], attacks=ADAPTIVE)
    assert told(store, 1, 0, "server") == {}
    assert told(store, 1, ALL, "observer") == {"noise_std": pytest.approx(2.0 * 0.75)}  # three images of four
    adaptive = {(job.key.threat_model, job.attack.adaptive) for job in queue.submitted}
    assert adaptive == {("server", False), ("observer", False), ("observer", True)}


def test_noise_of_clients_and_of_the_server_adds_up_for_the_observer_of_their_mean(federate):
    local = {"name": "local_dp", "clipping_norm": 0.1}
    store, _ = federate(["server", "observer"], ["central_dp", local], attacks=ADAPTIVE)
    alone = told(store, 1, 0, "server")["noise_std"]
    in_mean = (0.75**2 + 0.25**2) ** 0.5 * alone
    assert told(store, 1, ALL, "observer")["noise_std"] == pytest.approx((in_mean**2 + 0.75**2) ** 0.5)


def test_what_a_server_optimizer_makes_of_noise_is_not_told(federate):
    store, _ = federate(["observer"], [{"name": "local_dp", "clipping_norm": 0.1}], "FedAdam", attacks=ADAPTIVE)
    assert told(store, 1, ALL, "observer") == {"clip_norm": 0.1}


EVERY = ["global_0000", "global_0001", "global_0002"] + [f"client_0{i}_round_000{r}" for i in (0, 1) for r in (1, 2)]


@pytest.mark.parametrize(
    ("when", "threat_models", "keep", "files"),
    [
        ("every", ["server"], "attacked", EVERY),
        ([], ["server", "observer"], "attacked", []),
        ([], ["server"], "all", EVERY),
        ([1], ["server"], "attacked", ["global_0000", "global_0001", *EVERY[3::2]]),
        ([2], ["server"], "attacked", ["global_0001", "global_0002", *EVERY[4::2]]),
        ([2], ["history"], "attacked", EVERY),  # it reads the rounds before, too
        ([1], ["history"], "attacked", ["global_0000", "global_0001", *EVERY[3::2]]),
    ],
)
def test_what_no_attack_reads_is_not_written(federate, when, threat_models, keep, files):
    store, queue = federate(threat_models, when=when, keep=keep)
    assert sorted(path.stem for path in store.checkpoints.glob("*.safetensors")) == sorted(files)
    for job in queue.submitted:
        assert store.load(job.key)[0].pairs  # whatever is attacked can be read


FILES_OF_THE_LAST_TWO_ROUNDS = 3 + 2 * 2  # what they started from and ended with, and of each two clients


def there(store):
    """(rounds after which the global checkpoint is there, rounds of whose clients the checkpoints are)."""
    names = [path.stem for path in store.checkpoints.glob("*.safetensors")]
    rounds = [sorted({int(name[-4:]) for name in names if name.startswith(kind)}) for kind in ("global", "client")]
    return tuple(rounds)


@pytest.mark.parametrize(
    ("threat_models", "when", "waiting", "done"),
    [
        (["server"], [], ([3, 4, 5], [4, 5]), ([3, 4, 5], [4, 5])),  # what nobody attacks goes at once
        (["server"], [2], ([1, 3, 4, 5], [2, 4, 5]), ([3, 4, 5], [4, 5])),
        (["server"], "every", ([0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5]), ([3, 4, 5], [4, 5])),
        (["history"], [3], ([0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5]), ([3, 4, 5], [4, 5])),
    ],
)
def test_of_the_last_rounds_alone_checkpoints_stay_and_of_others_while_attacks_need_them(
    federate, threat_models, when, waiting, done
):
    recorders = []

    def after_round(recorder, round):
        recorders.append(recorder)

    store, queue = federate(threat_models, when=when, keep={"last": 2}, rounds=5, after_round=after_round)
    assert there(store) == waiting
    files, retention = len(list(store.checkpoints.glob("*.safetensors"))), recorders[0].retention
    assert retention.waiting == files - FILES_OF_THE_LAST_TWO_ROUNDS
    for job in queue.submitted:
        assert store.load(job.key)[0].pairs
        retention.end(job.name)
    assert there(store) == done
    assert retention.waiting == 0


def test_older_rounds_go_while_the_run_goes_on(federate):
    seen, ended = {}, []

    def after_round(recorder, round):
        jobs = recorder.submit.__self__.submitted
        for job in jobs[len(ended) :]:
            ended.append(job)
            recorder.retention.end(job.name)
        seen[round] = there(recorder.store)

    store, queue = federate(["server"], keep={"last": 1}, rounds=4, after_round=after_round)
    assert seen == {round: ([round - 1, round], [round]) for round in (1, 2, 3, 4)}
    with pytest.raises(InputError, match=r"does not exist: output.keep"):
        store.load(queue.submitted[0].key)
