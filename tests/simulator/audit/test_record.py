"""Record around a stranger's strategy: what it writes down, and that nothing of it can hurt the federation."""

import errno
import json
import logging
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAdam, FedAvg
from safetensors import SafetensorError
from safetensors.torch import load_file

from attacks import InputError, Knowledge
from fedspill import Record
from simulator.audit import messages, writer
from simulator.audit.messages import ClientFailed, Problems
from simulator.audit.recording import Recording
from simulator.audit.writer import RecordingWriter
from simulator.results import disk
from simulator.results.keys import ALL, ObservationKey
from simulator.results.storage import CellStore
from tests.simulator.audit.conftest import Grid, by_hand, checkpoint, rounds_of, trained


def fedavg(**options):
    return FedAvg(fraction_evaluate=0.0, **options)


def files(path, pattern="*.safetensors"):
    return sorted(file.name for file in (path / "checkpoints").glob(pattern))


def test_the_files_are_those_of_a_scenario(tmp_path):
    """Nodes 10, 20 and 30 are clients 0, 1 and 2; each adds its number / 100, so their mean adds 0.2."""
    by_hand(Record(fedavg(), tmp_path / "mine"), rounds=2)
    assert files(tmp_path / "mine") == [
        *(f"client_{client:02d}_round_{round:04d}.safetensors" for client in (0, 1, 2) for round in (1, 2)),
        *(f"global_{round:04d}.safetensors" for round in (0, 1, 2)),
    ]
    recording = Recording(tmp_path / "mine")
    assert {number: client.node for number, client in recording.clients.items()} == {0: 10, 1: 20, 2: 30}
    keys = {(key.round, key.client, key.threat_model) for key in recording.observations()}
    server, history = {(r, c, "server") for r in (1, 2) for c in range(3)}, {(2, c, "history") for c in (ALL, 0, 1, 2)}
    assert keys == server | {(1, ALL, "observer"), (2, ALL, "observer")} | history
    ((sent, returned),) = recording.pairs(ObservationKey(2, 2, "server"))
    assert sent["layer.weight"].unique().tolist() == pytest.approx([0.2])
    assert returned["layer.bias"].unique().tolist() == pytest.approx([0.5])
    first, second = recording.pairs(ObservationKey(2, ALL, "history"))
    assert [float(first[0]["layer.bias"][0]), float(second[1]["layer.bias"][0])] == pytest.approx([0.0, 0.4])
    assert recording.granted(ObservationKey(1, 0, "server")) == Knowledge(num_private=8)
    assert recording.granted(ObservationKey(1, ALL, "observer")) == Knowledge()
    assert recording.recorded(ObservationKey(1, ALL, "observer")).clients == (0, 1, 2)
    content = json.loads((tmp_path / "mine" / "recording.json").read_text())
    assert content["format"] == 1 and content["strategy"] == "FedAvg" and content["problems"] == []
    assert content["rounds"][0] == {"round": 1, "clients": [0, 1, 2], "images": {"0": 8, "1": 8, "2": 8}}
    assert "FedAvg, 2 rounds, 3 clients" in repr(recording)


def test_the_federation_is_the_one_without_it(tmp_path):
    """Bit for bit, through `start`. The strategy writes into the replies: what came is recorded all the same."""

    def clipped():
        return DifferentialPrivacyServerSideFixedClipping(fedavg(), 0.5, 0.01, num_sampled_clients=3)

    ends = []
    for strategy in (clipped(), Record(clipped(), tmp_path / "mine")):
        np.random.seed(0)
        random.seed(0)  # Flower's order of the nodes
        ends.append(strategy.start(Grid(trained), checkpoint(), num_rounds=2).arrays.to_torch_state_dict())
    assert all(torch.equal(ends[0][name], value) for name, value in ends[1].items())
    raw = load_file(tmp_path / "mine" / "checkpoints" / "client_02_round_0001.safetensors")
    assert raw["layer.bias"].tolist() == pytest.approx([0.3, 0.3])


def test_a_strategy_stays_usable_as_it_is(tmp_path):
    class Mine(FedAdam):
        """As Flower's advanced examples do: a `start` of its own, which calls its parent's."""

        def start(self, *args, **options):
            self.started = True
            return super().start(*args, **options)

        def best(self):
            return self.eta

    record = Record(Mine(fraction_evaluate=0.0, eta=0.25), tmp_path / "mine")
    record.start(Grid(trained), checkpoint(), num_rounds=1)
    assert record.started and record.best() == 0.25
    record.eta = 0.5
    assert record.strategy.eta == 0.5 and vars(record).keys() >= {"strategy"} and "eta" not in vars(record)
    assert "configure_train" not in vars(record.strategy)  # what `start` had put there is gone
    assert len(files(tmp_path / "mine", "client_*")) == 3
    with pytest.raises(AttributeError, match="nothing"):
        _ = record.nothing


def test_the_last_rounds_alone_are_kept(tmp_path):
    by_hand(Record(fedavg(), tmp_path / "mine", keep_rounds=2), rounds=5)
    assert files(tmp_path / "mine", "client_00*") == [f"client_00_round_{r:04d}.safetensors" for r in (4, 5)]
    assert files(tmp_path / "mine", "global*") == [f"global_{r:04d}.safetensors" for r in (3, 4, 5)]
    recording = Recording(tmp_path / "mine")
    assert [round.round for round in recording.rounds] == [4, 5]
    assert {key.round for key in recording.observations()} == {4, 5}
    for key in recording.observations():  # each of them still has its files
        assert len(recording.pairs(key)) == (2 if key.threat_model == "history" else 1)


def test_a_client_that_left_is_forgotten_with_its_last_round(tmp_path):
    record = Record(fedavg(), tmp_path / "mine", keep_rounds=1)
    by_hand(record, rounds=2)
    record.strategy.min_available_nodes = record.strategy.min_train_nodes = 2
    by_hand(record, rounds=1, grid=Grid(trained, nodes=(10, 20)), arrays=checkpoint(0.4))
    assert files(tmp_path / "mine", "client*") == [f"client_{c:02d}_round_0003.safetensors" for c in (0, 1)]
    assert not [key for key in Recording(tmp_path / "mine").observations() if key.threat_model == "history"]


def test_chosen_clients_alone_are_kept(tmp_path):
    by_hand(Record(fedavg(), tmp_path / "mine", clients={1}), rounds=1)
    assert files(tmp_path / "mine", "client*") == ["client_01_round_0001.safetensors"]
    recording = Recording(tmp_path / "mine")
    assert recording.rounds[0].clients == (1,)
    assert recording.recorded(ObservationKey(1, ALL, "observer")).clients == (0, 1, 2)  # whose images are in it


def test_lists_of_arrays_get_the_model_s_names(tmp_path):
    """Flower's lists have keys "0" to "11", which a file sorts as text."""
    model = torch.nn.Sequential(*(torch.nn.Linear(i + 1, i + 2) for i in range(6)))
    arrays = ArrayRecord([value.numpy() for value in model.state_dict().values()])
    by_hand(Record(fedavg(), tmp_path / "mine"), rounds=1, arrays=arrays)
    ((sent, returned),) = Recording(tmp_path / "mine").pairs(ObservationKey(1, 0, "server"), model.state_dict())
    assert list(sent) == list(model.state_dict())
    assert all(torch.equal(sent[name], value) for name, value in model.state_dict().items())
    assert torch.allclose(returned["5.bias"], sent["5.bias"] + 0.1)


def test_records_and_metrics_of_other_names(tmp_path):
    """Under the strategy's own keys; inside another strategy too. Names that clients give themselves are noted."""

    def answer(message):
        node = message.metadata.dst_node_id
        said = ConfigRecord({"text": "x"} if node == 30 else {"partition-id": node + 5})
        metrics = MetricRecord({"samples": 0.5 if node == 30 else 3.0})
        return {"weights": trained(message, key="weights")["weights"], "metrics": metrics, "more": said}

    strategy = fedavg(arrayrecord_key="weights", weighted_by_key="samples")
    dp = DifferentialPrivacyServerSideFixedClipping(strategy, 0.5, 1.0, num_sampled_clients=3)
    by_hand(Record(dp, tmp_path / "mine"), rounds=1, answer=answer)
    recording = Recording(tmp_path / "mine")
    assert recording.rounds[0].images == {0: 3, 1: 3} and recording.rounds[0].clients == (0, 1, 2)
    assert [client.name for client in recording.clients.values()] == [15, 25, None]
    assert recording.granted(ObservationKey(1, 2, "server")) == Knowledge()


def test_a_client_that_fails_or_returns_no_checkpoint_is_left_out(tmp_path):
    class Tolerant(FedAvg):
        def aggregate_train(self, server_round, replies):
            return super().aggregate_train(
                server_round, [r for r in replies if not r.has_error() and r.content.array_records]
            )

    def answer(message):
        node = message.metadata.dst_node_id
        return {10: None, 20: {"metrics": MetricRecord({"num-examples": 1})}}.get(node, trained(message))

    end = by_hand(Record(Tolerant(fraction_evaluate=0.0), tmp_path / "mine"), rounds=2, answer=answer)
    assert end.to_torch_state_dict()["layer.bias"].tolist() == pytest.approx([0.6, 0.6])
    recording = Recording(tmp_path / "mine")
    assert [round.clients for round in recording.rounds] == [(2,), (2,)]
    failed, problem = sorted(recording.contents.problems)
    assert failed.startswith("round 1, of node 10: a client returned nothing (ClientFailed: ") and "1 more" in failed
    assert "round 1, of node 20" in problem and "0 records of arrays" in problem and "1 more" in problem


def test_a_client_that_does_not_answer_is_noted(tmp_path, caplog):
    class Lossy(Grid):
        def send_and_receive(self, messages, timeout=None):
            return [reply for reply in super().send_and_receive(messages) if reply.metadata.src_node_id != 30]

    by_hand(Record(fedavg(), tmp_path / "mine"), rounds=1, grid=Lossy(trained))
    recording = Recording(tmp_path / "mine")
    assert recording.rounds[0].clients == (0, 1)
    noted = "round 1, of node 30: a client returned nothing (ClientFailed: no reply came)"
    assert recording.contents.problems == (noted,) and noted in caplog.text


def test_the_command_that_is_logged_can_be_pasted_whatever_the_path(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    by_hand(Record(fedavg(), tmp_path / "läufe mit raum"), rounds=1)
    assert "fedspill: 1 round of 3 clients: " in caplog.text
    assert f"fedspill: next, fedspill audit '{tmp_path / 'läufe mit raum'}' --model " in caplog.text


def test_a_weight_that_is_no_number_of_images_is_not_taken_for_one(tmp_path):
    """Clients weighted by their loss, 2.36, which report 8 images beside it; and by that loss alone."""
    weighted = fedavg(weighted_by_key="loss")
    by_hand(Record(weighted, tmp_path / "both"), rounds=1, answer=lambda message: trained(message, loss=2.36))
    assert Recording(tmp_path / "both").rounds[0].images == {0: 8, 1: 8, 2: 8}

    def alone(message):
        return {"arrays": message.content["arrays"], "metrics": MetricRecord({"loss": 2.36})}

    by_hand(Record(weighted, tmp_path / "alone"), rounds=1, answer=alone)
    assert Recording(tmp_path / "alone").rounds[0].images == {}


def test_a_client_without_images_is_one_that_said_so(tmp_path):
    def answer(message):
        return trained(message, images=0 if message.metadata.dst_node_id == 10 else 8)

    by_hand(Record(fedavg(), tmp_path / "rec"), 1, answer=answer)
    recording = Recording(tmp_path / "rec")
    nodes = {client: seen.node for client, seen in recording.clients.items()}
    assert recording.rounds[0].images == {client: 0 if node == 10 else 8 for client, node in nodes.items()}
    told = {key.client: recording.granted(key).num_private for key in recording.observations() if key.client in nodes}
    assert told == {client: None if node == 10 else 8 for client, node in nodes.items()}  # nobody looks for none


def test_what_is_sent_to_one_client_alone_is_its_initial_checkpoint(tmp_path):
    class Personal(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for message in super().configure_train(server_round, arrays, config, grid):
                if message.metadata.dst_node_id == 20:
                    message.content = RecordDict({"arrays": checkpoint(7.0), "config": config})
                yield message

    def answer(message):
        return {"arrays": checkpoint(9.0), "metrics": MetricRecord({"num-examples": 1})}

    by_hand(Record(Personal(fraction_evaluate=0.0), tmp_path / "mine"), rounds=1, answer=answer)
    recording = Recording(tmp_path / "mine")
    sent = [recording.pairs(ObservationKey(1, client, "server"))[0][0]["layer.bias"][0] for client in (0, 1, 2)]
    assert [float(value) for value in sent] == [0.0, 7.0, 0.0]
    ((before, after),) = recording.pairs(ObservationKey(1, ALL, "observer"))
    assert (float(before["layer.bias"][0]), float(after["layer.bias"][0])) == (0.0, 9.0)


def full_disk(*args, **options):
    raise OSError(errno.ENOSPC, "No space left on device")


def half(tensors, path):
    """A disk that takes a checkpoint's first bytes and then no more."""
    path.write_bytes(b"\0" * 20)
    raise SafetensorError(f"Error while serializing: I/O error: No space left on device (os error {errno.ENOSPC})")


def test_a_disk_that_is_full_costs_the_recording_and_not_the_federation(tmp_path, monkeypatch, caplog):
    expected = by_hand(fedavg(), rounds=3)
    record = Record(fedavg(), tmp_path / "mine")
    arrays = by_hand(record, rounds=1)
    with monkeypatch.context() as broken:
        broken.setattr(disk, "save_file", half)
        arrays = by_hand(record, rounds=1, arrays=arrays)
    arrays = by_hand(record, rounds=1, arrays=arrays)  # and there is room again
    assert all(np.array_equal(arrays[name].numpy(), expected[name].numpy()) for name in expected)
    recording = Recording(tmp_path / "mine")
    assert not list((tmp_path / "mine").rglob("*.partial"))
    for key in recording.observations():
        recording.pairs(key)  # every file that an observation names is whole
    assert {round.round for round in recording.rounds if round.clients} == {1, 3}
    assert any("No space left" in line for line in recording.contents.problems)
    assert len([r for r in caplog.records if "No space left" in r.message]) <= 2  # of each kind, one line


@pytest.mark.parametrize(
    "broken",
    [
        "Path.mkdir",
        "CellStore.save_observation",
        "writer.write_model",
        "MessageReader._checkpoint",
        "MessageReader.sent",
    ],
)
def test_whatever_breaks_the_federation_goes_on(tmp_path, monkeypatch, broken, caplog):
    owner, name = broken.split(".")
    owners = {"Path": Path, "CellStore": CellStore}
    owners |= {"writer": writer, "MessageReader": messages.MessageReader}
    record = Record(fedavg(), tmp_path / "mine")
    monkeypatch.setattr(owners[owner], name, full_disk)
    caplog.set_level(logging.WARNING, "flwr")  # runs of other tests have silenced it
    end = record.start(Grid(trained), checkpoint(), num_rounds=2).arrays.to_torch_state_dict()
    assert end["layer.bias"].tolist() == pytest.approx([0.4, 0.4])
    assert "the federation goes on" in caplog.text


def test_some_of_the_disk_stays_free(tmp_path, monkeypatch):
    left = iter([10**9 + 200] + [10**9 - 1] * 100)  # room for one checkpoint
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=next(left)))
    by_hand(Record(fedavg(), tmp_path / "mine", keep_free=1), rounds=1, arrays=ArrayRecord({"w": torch.zeros(2)}))
    assert files(tmp_path / "mine") == ["global_0000.safetensors"]
    content = json.loads((tmp_path / "mine" / "recording.json").read_text())
    assert any("less than 1 GB (keep_free) would stay free" in line for line in content["problems"])


@pytest.mark.parametrize(("made", "stays"), [((2, 1), 2), ((1, 2, 1), 2), ((3, 1, 1), 3), ((2, 2, 1), 2)])
def test_of_the_earlier_recordings_the_longest_is_kept_beside(tmp_path, made, stays):
    """Bounded, and a server that is started over and over does not take away the days before."""
    for rounds in made:
        by_hand(Record(fedavg(), tmp_path / "mine"), rounds)
    assert len(Recording(tmp_path / "mine").rounds) == made[-1]
    assert len(Recording(tmp_path / "mine.previous").rounds) == stays
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine.previous"]


def test_a_recording_behind_a_link_makes_way_like_any_other(tmp_path):
    """The link would move, and the next recording mix with the one before."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "mine").symlink_to(tmp_path / "disk" / "recording")
    for rounds in (2, 1, 3):
        by_hand(Record(fedavg(), tmp_path / "mine"), rounds)
    assert (tmp_path / "mine").is_symlink() and len(Recording(tmp_path / "mine").rounds) == 3
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["recording", "recording.previous"]
    assert len(Recording(tmp_path / "disk" / "recording.previous").rounds) == 2


def test_no_file_of_the_users_goes_with_an_earlier_recording(tmp_path):
    notes = "mine/notes.md", "mine/checkpoints/best.safetensors", "mine.previous/seen.txt"
    for rounds, name in zip((2, 1, 1, 1, 1), (*notes, None, None), strict=True):
        by_hand(Record(fedavg(), tmp_path / "mine"), rounds)
        if name is not None:
            (tmp_path / name).write_text("precious")
    found = [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"precious"]
    assert sorted(path.name for path in found) == ["best.safetensors", "notes.md", "seen.txt"]
    assert len(Recording(tmp_path / "mine").rounds) == 1


def test_an_earlier_recording_that_cannot_make_way(tmp_path, monkeypatch):
    by_hand(Record(fedavg(), tmp_path / "mine"), rounds=1)
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "mine")  # a volume of a container
    with pytest.raises(InputError, match=r"mine' holds an earlier recording and cannot be renamed"):
        Record(fedavg(), tmp_path / "mine")
    by_hand(Record(fedavg(), tmp_path / "mine" / "second"), rounds=1)


def test_two_recordings_under_way_in_one_folder_do_not_mix(tmp_path, caplog):
    first, second = Record(fedavg(), tmp_path / "mine"), Record(fedavg(), tmp_path / "mine")
    rounds_of(first, 1)
    first.recorder.background.finish()
    with pytest.raises(InputError, match=r"records into .*mine.*: name another folder"):
        Record(fedavg(), tmp_path / "mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    caplog.set_level(logging.WARNING, "flwr")
    by_hand(second, rounds=2)
    assert "the federation goes on" in caplog.text and "records into" in caplog.text
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    first.finish()
    by_hand(Record(fedavg(), tmp_path / "mine"), rounds=2)
    assert [len(Recording(tmp_path / name).rounds) for name in ("mine", "mine.previous")] == [2, 1]


INTERRUPTED = """
import sys, threading, time
from fedspill import Record
from tests.simulator.audit.test_record import Grid, checkpoint, fedavg, trained
from flwr.supercore.task_identity import TaskIdentity
for name in ("_task_id", "_run_id", "_node_id"):
    setattr(TaskIdentity, name, 1)
def answers(message):  # as Flower waits after Ctrl-C
    asked.append(message)
    if len(asked) > 6:
        third.set()
        time.sleep(600)
    return trained(message)
asked, third, strategy = [], threading.Event(), Record(fedavg(), sys.argv[1])
run = threading.Thread(target=strategy.start, args=(Grid(answers), checkpoint(), 3), daemon=True)
run.start()
assert third.wait(60)
"""


def test_a_process_that_ends_says_what_is_recorded(tmp_path):
    """A newcomer's case: Ctrl-C in a simulation, whose rounds run in another thread."""
    mine, command = tmp_path / "mine", [sys.executable, "-c", INTERRUPTED]
    ended = subprocess.run([*command, mine], capture_output=True, text=True, timeout=600)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0 and f"fedspill: 2 rounds of 3 clients: {mine}\n" in said
    assert said.count(f"next, fedspill audit {mine} --model ") == 1 and len(Recording(mine).rounds) == 2


def test_what_makes_no_sense_is_refused_before_any_training(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    from flwr.server.strategy import FedAvg as Legacy

    for make, says in (
        (lambda: Record(fedavg(), tmp_path / "other"), "holds something else"),
        (lambda: Record(fedavg(), tmp_path / "new", keep_rounds=0), "keep_rounds is 0"),
        (lambda: Record(fedavg(), tmp_path / "new", clients=["a"]), "numbers from 0"),
        (lambda: Record(Legacy(), tmp_path / "new"), r"flwr.serverapp.strategy, .*docs/howto/other_fr"),
    ):
        with pytest.raises(InputError, match=says):
            make()
    assert not (tmp_path / "new").exists() and (tmp_path / "other" / "thesis.tex").exists()


def test_a_disk_that_hangs_costs_rounds_of_the_recording_alone(tmp_path, monkeypatch):
    """Round 1 never gets written while rounds 2 and 3 come by: they are dropped at once, and the federation ends."""
    release = threading.Event()
    write = RecordingWriter.write

    def slow(writer, seen):
        if seen.server_round == 1:
            release.wait(20)
        write(writer, seen)

    monkeypatch.setattr(RecordingWriter, "write", slow)
    monkeypatch.setattr(messages, "PATIENCE", 0.05)
    record, grid = Record(fedavg(), tmp_path / "mine"), Grid(trained)
    arrays = checkpoint()
    for number in (1, 2, 3):
        replies = grid.send_and_receive(record.configure_train(number, arrays, ConfigRecord({}), grid))
        arrays, _ = record.aggregate_train(number, replies)
    release.set()
    record.finish()
    recording = Recording(tmp_path / "mine")
    assert [round.round for round in recording.rounds] == [1]
    (problem,) = recording.contents.problems
    assert "round 2" in problem and "slower than the federation" in problem and "1 more" in problem


def test_a_round_of_ten_clients_and_10_mb_does_not_wait_for_the_disk(tmp_path):
    """In seconds of the federation's thread: what Record adds to a round, beside what FedAvg needs to average it."""
    spent = {}

    def timed(owner, name):
        method = getattr(owner, name)

        def call(*given):
            start = time.thread_time()
            result = method(*given)
            spent[name] = time.thread_time() - start
            return result

        setattr(owner, name, call)

    strategy = fedavg()
    timed(strategy, "aggregate_train")
    record = Record(strategy, tmp_path / "mine")
    for moment in ("sent", "returned", "ended"):
        timed(record.recorder, moment)
    arrays = ArrayRecord({f"{i}": torch.randn(250_000) for i in range(10)})
    by_hand(record, rounds=1, arrays=arrays, grid=Grid(trained, nodes=range(1, 11)))
    own = spent.pop("aggregate_train")
    assert len(files(tmp_path / "mine")) == 12 and sum(spent.values()) < 0.05 * own


def test_a_long_error_keeps_its_end_where_a_traceback_says_what_happened(tmp_path):
    """A reader's case: Ray's wrapping had filled the line, and the client's own error was cut off."""
    problems = Problems()
    with problems.caught("a client returned nothing", "round 1, of node 3"):
        ray = "\x1b[36mray::ClientAppActor.run()\x1b[39m " + "at 0x7f " * 100
        raise ClientFailed(f"{ray}\nRuntimeError: use .reshape")
    (line,) = problems.lines()
    assert line.startswith("round 1, of node 3: a client returned nothing (ClientFailed: ray::ClientAppActor.run() at")
    assert line.endswith("RuntimeError: use .reshape)") and len(line) < 330 and "\x1b" not in line
