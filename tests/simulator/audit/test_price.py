"""What an audit says that it costs, and what it leaves for want of time."""

import json
import os
import re
from collections import deque
from types import SimpleNamespace

import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from clients import time_limit
from simulator.audit import price
from simulator.audit.price import LEFT, TimeLeft, describe_rest
from simulator.audit.run_audit import _of_workers, audit
from simulator.evaluation.job import Job, JobResult, Setting
from simulator.results.keys import ObservationKey
from simulator.results.ledger import finished_cells
from simulator.run.display import Display
from simulator.scenario.sections import AttackConfig
from tests.simulator.audit.recorded import SHAPE, record
from tests.simulator.audit.test_audit import SPAN, audited


@pytest.fixture
def clock(monkeypatch):
    """Of an idle machine with two cores."""
    now = SimpleNamespace(seconds=0.0, monotonic=lambda: now.seconds)
    monkeypatch.setattr(price, "time", now)
    monkeypatch.setattr("simulator.audit.run_audit.time", now)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(time_limit, "CORES", 2)
    return now


def jobs(tmp_path, *attacks, clients=3):
    keys = [ObservationKey(1, client, "server") for client in range(clients)]
    made = [AttackConfig.model_validate({"name": attack}) for attack in attacks]
    return [Job(Setting(None), tmp_path, key, attack) for key in keys for attack in made]


def test_an_attack_begins_where_the_longest_of_its_kind_would_end_in_time(clock, tmp_path, monkeypatch):
    slow, quick = jobs(tmp_path, "span", "ntk", clients=1)
    left = TimeLeft(5.0, began=0.0)
    left.took(slow, 112.0)
    clock.seconds = 187.0
    assert left.fits(slow) and left.fits(quick) and not left.over
    clock.seconds = 189.0
    assert not left.fits(slow) and left.fits(quick)
    clock.seconds = 300.0
    assert left.over and not left.fits(quick)
    monkeypatch.setattr(os, "getloadavg", lambda: (20.0, 0.0, 0.0))  # ten times as much to do as there are cores
    assert left.fits(slow) and left.seconds == pytest.approx(3000 - 300)
    assert TimeLeft(0.0, began=-1e9).fits(slow) and not TimeLeft(0.0, began=-1e9).over


class Workers:
    """Two, on which `span` takes 100 seconds and all else ten."""

    at_a_time = 2

    def __init__(self, clock):
        self.clock, self.ends = clock, {}

    @property
    def pending(self):
        return [job for job, _ in self.ends.values()]

    def submit(self, job):
        self.ends[job.name] = job, self.clock.seconds + (100.0 if job.attack.name == "span" else 10.0)

    def collect(self, timeout):
        self.clock.seconds += timeout
        done = [job for job, end in self.ends.values() if end <= self.clock.seconds]
        return [(self.ends.pop(job.name)[0], JobResult([{"detail": ""}], [])) for job in done]

    def shares(self):
        return {}


@pytest.mark.parametrize(("minutes", "spans", "others"), [(5.0, 4, 10), (2.5, 2, 8), (0.0, 10, 10)])
def test_ten_clients_end_in_time_and_what_is_left_has_a_row(clock, tmp_path, capsys, minutes, spans, others):
    todo = deque(jobs(tmp_path, "span", "ntk", clients=10))
    left = TimeLeft(minutes, began=0.0)
    found = list(_of_workers(Workers(clock), todo, Display(), left))
    assert len(found) == 20 and (minutes == 0 or clock.seconds <= 60 * minutes + 0.5)
    done = [job.attack.name for job, result in found if not price.is_left(result)]
    assert done.count("span") == spans and done.count("ntk") == others
    rest = [result.leakage[0] for _, result in found if price.is_left(result)]
    assert all(row["status"] == "skipped" and "--minutes 0 goes on with it" in row["detail"] for row in rest)
    assert capsys.readouterr().err == "fedspill: span took 2 min by the clock: 8 more take about 7 min\n"


def test_the_next_call_goes_on_with_what_was_left(tmp_path, monkeypatch):
    recorded, begun = record(tmp_path / "rec", clients=(2, 0, 1)), []
    monkeypatch.setattr(
        TimeLeft, "fits", lambda left, job: left.minutes == 0 or (not begun.append(job) and len(begun) < 3)
    )
    run = audited(recorded, "some")
    assert run.leakage.status.tolist() == ["ok", "ok", "skipped", "skipped"]
    assert run.leakage.detail[2].startswith(LEFT) and len(finished_cells(run.path)) == 2
    assert describe_rest(run.leakage, 1).startswith("2 of 4 attacks are left (span): about ")
    run = audited(recorded, "some", minutes=0)
    assert run.leakage.status.tolist() == ["ok"] * 4 and describe_rest(run.leakage, 1) == ""


def test_the_rest_is_priced_by_what_the_same_attacks_took():
    rows = [
        ("span", "server", "ok", 100.0, ""), ("span", "server", "ok", 120.0, ""),
        ("span", "server", "skipped", None, price.REST), ("span", "server", "skipped", None, price.REST),
        ("ntk", "observer", "skipped", None, price.REST), ("ntk", "server", "skipped", None, "needs num_private"),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["attack", "threat_model", "status", "seconds", "detail"])
    beside = ", without ntk (observer), of which none has ended"
    for workers, said in ((1, "4 min by the clock, one by one"), (2, "2 min by the clock, 2 at a time")):
        assert describe_rest(table, workers) == f"3 of 6 attacks are left (span, ntk): about {said}{beside}"


def test_a_single_one_that_is_left_takes_as_long_as_the_first(clock, tmp_path):
    first, *rest = jobs(tmp_path, "span", clients=4)
    for left, said in ((1, "49 s"), (2, "49 s"), (3, "98 s")):
        line = TimeLeft(0.0).of_the_rest(first, 49.0, rest[:left], at_a_time=2)
        assert line == f"span took 49 s by the clock: {left} more take about {said}"


def test_an_audit_says_first_what_it_will_do_and_costs(tmp_path):
    said = []

    class Shown(Display):
        def price(self, lines):
            said.extend(lines())

    recorded = record(tmp_path / "rec", clients=(2, 0))
    files = {name: recorded / f"{name}.npz" for name in ("candidates", "public") if (recorded / f"{name}.npz").exists()}
    audited(recorded, "said", attacks=["mean_image", "span"], display=Shown(), **files)
    assert said[0] == "3 updates of 1 round (2 server, 1 observer): 3 × mean_image, 3 × span"
    assert re.search(r"\(mean_image 0 s, span \d+ s( to \d+ s)? each\)", said[1])
    whole = re.match(r"cost: about (\d+) s of processor time, \1 s on 1 idle core \(", said[1])  # one attack at a time
    assert int(whole[1]) >= price.BESIDE  # its start and its page


def test_a_recording_s_problems_are_said_before_its_audit(tmp_path, capsys):
    recorded = record(tmp_path / "rec", clients=(2, 0))
    contents = json.loads((recorded / "recording.json").read_text())
    lost = "round 1, of node 30: a client returned nothing (ClientFailed: no reply came)"
    (recorded / "recording.json").write_text(json.dumps({**contents, "problems": [lost]}))
    audited(recorded, "said", attacks=["mean_image"])
    assert f"fedspill: warning: recording: {lost}\n" in capsys.readouterr().err


def test_a_model_that_trains_what_clients_freeze_is_doubted(tmp_path, capsys):
    """The first layer's checkpoints after the round are those before it."""
    recorded = record(tmp_path / "rec", clients=(2, 0))
    sent = load_file(recorded / "checkpoints" / "global_0000.safetensors")
    for path in (recorded / "checkpoints").glob("client_*.safetensors"):
        save_file({**load_file(path), "1.weight": sent["1.weight"], "1.bias": sent["1.bias"]}, path)
    audited(recorded, "said", attacks=["mean_image"])
    doubt = "warning: round 1, client 0: 2 of 6 parameters that --model trains did not move (1.weight, 1.bias): where "
    assert doubt in capsys.readouterr().err
    (recorded / "net.py").write_text((recorded / "net.py").read_text() + FROZEN)
    run = audit(recorded, f"{recorded}/net.py:frozen", SHAPE, out=recorded / "mended", page=False, **SPAN)
    assert "did not move" not in capsys.readouterr().err and len(run.leakage) == 3


FROZEN = """
def frozen():
    model = net()
    model[1].requires_grad_(False)
    return model
"""
