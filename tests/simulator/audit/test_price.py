"""What an audit says that it costs, and what it leaves for want of time."""

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections import deque
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from attacks import InputError, Knowledge, Observation
from clients import time_limit
from simulator.audit import price
from simulator.audit.plan import AuditPlan, doubt_trained
from simulator.audit.price import LEFT, TimeLeft, describe_rest
from simulator.audit.recording import Recording
from simulator.audit.run_audit import _of_workers, audit
from simulator.evaluation import attack_run
from simulator.evaluation.job import Job, JobResult, JobSettings
from simulator.results.keys import ALL, ObservationKey
from simulator.results.ledger import JOURNAL, read_journal
from simulator.run.display import Display
from simulator.scenario.sections import AttackConfig
from tests.attacks.conftest import client
from tests.simulator.audit.recorded import SHAPE, digits, record
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
    return [Job(JobSettings(None), tmp_path, key, attack) for key in keys for attack in made]


def test_an_attack_begins_where_the_longest_of_its_kind_would_end_in_time(clock, tmp_path, monkeypatch):
    slow, quick = jobs(tmp_path, "span", "ntk", clients=1)
    left = TimeLeft(5.0, looked=0.0)
    left.took(slow, 112.0)
    clock.seconds = 187 - price.BESIDE
    assert left.fits(slow) and left.fits(quick) and not left.over
    clock.seconds = 189 - price.BESIDE
    assert not left.fits(slow) and left.fits(quick)
    clock.seconds = 295.0  # the page is made within the five minutes
    assert left.over and not left.fits(quick)
    assert TimeLeft(0.0, looked=-1e9).fits(slow) and not TimeLeft(0.0, looked=-1e9).over


@pytest.mark.parametrize("minutes", [0.05, -1.0, float("nan")])
def test_minutes_in_which_nothing_would_begin_are_refused(minutes, clock, tmp_path):
    with pytest.raises(InputError, match=rf"--minutes {minutes:g}: give at least 0\.15, or 0 for no limit"):
        TimeLeft(minutes)
    assert TimeLeft(0.15, looked=0.0).fits(*jobs(tmp_path, "span", clients=1))


def test_time_counts_by_the_load_that_it_had(clock, tmp_path, monkeypatch):
    """600 seconds of which a tenth was ours are one minute of an idle machine, also when the others are gone."""
    (job,) = jobs(tmp_path, "span", clients=1)
    left = TimeLeft(5.0, looked=0.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (20.0, 0.0, 0.0))  # ten times as much to do as there are cores
    left.took(job, 2000.0)
    assert left.fits(job) and left.seconds == pytest.approx(10 * (300 - price.BESIDE))
    clock.seconds = 600.0
    assert not left.over
    monkeypatch.setattr(os, "getloadavg", lambda: (2.0, 0.0, 0.0))
    assert left.seconds == pytest.approx(300 - price.BESIDE - 60, abs=1) and not left.over


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
    left = TimeLeft(minutes, looked=0.0)
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
    assert run.leakage.detail[2].startswith(LEFT) and len(read_journal(run.path / JOURNAL).done) == 2
    assert describe_rest(run.leakage, 1).startswith("2 of 4 attacks are left (span): ")
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
    tested = "; the test of the candidates, for each row, comes on top"
    assert describe_rest(table.assign(membership_candidates=9), 1).endswith(f"{beside}{tested}")
    unknown = "how long they take is not known, as none of ntk (observer) has ended"  # it had said "about 0 s"
    assert describe_rest(table[4:], 1) == f"1 of 2 attacks are left (ntk): {unknown}"


def test_a_single_one_that_is_left_takes_as_long_as_the_first(clock, tmp_path):
    first, *rest = jobs(tmp_path, "span", clients=4)
    for left, said in ((1, "49 s"), (2, "49 s"), (3, "98 s")):
        line = TimeLeft(0.0).of_the_rest(first, 49.0, rest[:left], at_a_time=2)
        assert line == f"span took 49 s by the clock: {left} more take about {said}"


class Shown(Display):
    """Keeps what is said of the price."""

    def __init__(self):
        self.said = []

    def price(self, lines):
        self.said.extend(lines())


def test_an_audit_says_first_what_it_will_do_and_costs(tmp_path):
    display = Shown()
    recorded = record(tmp_path / "rec", clients=(2, 0))
    audited(recorded, "said", attacks=["mean_image", "span"], display=display)
    said = display.said
    assert said[0] == (
        "3 updates of 1 round (2 server, 1 observer): 3 × mean_image, 3 × span; timing a few first, each for 10 s of "
        "processor time at most"
    )
    assert re.search(r"\(mean_image 0 s, span \d+ s( to \d+ s)? each\)", said[1])
    whole = re.match(r"cost: about (\d+) s of processor time, \1 s on 1 idle core \(", said[1])  # one attack at a time
    assert int(whole[1]) >= price.BESIDE  # its start and its page


def test_clients_with_few_and_with_many_images_are_priced_by_both(tmp_path, monkeypatch):
    """Of two, one with a single image and one with 40; a second an image."""
    recorded, display, images = record(tmp_path / "rec", clients=(2, 0)), Shown(), {0: 1, 1: 40, ALL: 41}
    monkeypatch.setattr(AuditPlan, "knowledge", lambda plan, key: Knowledge(num_private=images[key.client]))
    monkeypatch.setattr(attack_run, "attack_seconds", lambda run, observation, told: float(told.num_private))
    audited(recorded, "said", attacks=["mean_image"], display=display)
    assert "(mean_image 21 s to 41 s each)" in display.said[1]
    assert int(re.match(r"cost: about (\d+) s", display.said[1])[1]) >= 1 + 40 + 41


def test_a_row_is_priced_with_the_candidates_that_it_tells(tmp_path, monkeypatch):
    """A newcomer's case: rows of `mean_image`, said to take 0 s, took 20 to 30. Here 7 s a round; one has 3."""
    recorded, display, now = record(tmp_path / "rec", clients=(2, 0)), Shown(), SimpleNamespace(seconds=0.0)
    for name, whose in (("candidates", 2), ("public", 1)):
        np.savez(recorded / f"{name}.npz", images=digits(whose)[0].numpy())
    monkeypatch.setattr(price, "work_seconds", lambda: now.seconds)
    monkeypatch.setattr(price, "tell_candidates", lambda *given: setattr(now, "seconds", now.seconds + 7))
    monkeypatch.setattr(attack_run, "attack_seconds", lambda *given: 0.0)
    seen_before = Recording.recorded

    def three_of_all(recording, key):
        found = seen_before(recording, key)
        return found.model_copy(update={"pairs": found.pairs * 3}) if key.client == ALL else found

    monkeypatch.setattr(Recording, "recorded", three_of_all)
    files = {name: recorded / f"{name}.npz" for name in ("candidates", "public")}
    audited(recorded, "said", attacks=["mean_image"], display=display, **files)
    assert display.said[1].startswith("timing the test of the candidates on one update")
    assert "(mean_image 7 s to 21 s each)" in display.said[2]
    assert int(re.match(r"cost: about (\d+) s", display.said[2])[1]) == round(price.BESIDE + 7 + 7 + 7 + 21)


BROKEN = """from dataclasses import dataclass
from typing import ClassVar
from attacks.base import Attack
@dataclass(frozen=True)
class Broken(Attack):
    name: ClassVar[str] = "broken"
    def reconstruct(self, observation, knowledge, generator, progress):
        raise ValueError("no such thing")
"""
SLOW = """import time
from dataclasses import dataclass
from typing import ClassVar
from attacks.base import Attack
@dataclass(frozen=True)
class Slow(Attack):
    name: ClassVar[str] = "slow"
    def reconstruct(self, observation, knowledge, generator, progress):
        while True:
            progress(0, 1, 0.0)
"""


def test_the_price_of_an_attack_that_breaks_is_not_0(tmp_path):
    recorded, display = record(tmp_path / "rec", clients=(2,)), Shown()
    (tmp_path / "own.py").write_text(BROKEN)
    audited(recorded, "said", attacks=["mean_image", f"{tmp_path}/own.py:Broken"], display=display)
    failed = f"price not measured: it failed: ValueError: no such thing, in or below {tmp_path}/own.py:8"
    whose = [f"broken ({one}): {failed}" for one in ("server, client 0", "observer, all clients")]
    assert display.said[1:-2] == whose and display.said[-2].endswith("(mean_image 0 s each), or more")
    assert display.said[-1].startswith("ends after 5 min")


def test_one_attack_at_a_time_is_cut_too_when_the_time_is_over(tmp_path, monkeypatch):
    recorded = record(tmp_path / "rec", clients=(2, 0))
    (tmp_path / "own.py").write_text(SLOW)
    monkeypatch.setattr("simulator.evaluation.attack_run.LONGEST_PROBE", 0.5)  # of its price
    begun = time.process_time()
    run = audited(recorded, "cut", attacks=[f"{tmp_path}/own.py:Slow"], clients=[0], minutes=(price.BESIDE + 2) / 60)
    assert time.process_time() - begun < price.BESIDE + 2
    assert run.leakage.detail.tolist() == [price.REST] and not read_journal(run.path / JOURNAL).done


@pytest.mark.slow
def test_an_audit_takes_what_it_said(tmp_path):
    """The whole command, of a process of its own, measured by the system."""
    recorded = record(tmp_path / "rec", clients=(2, 0))
    words = [
        "audit",
        recorded,
        "--model",
        f"{recorded}/net.py:net",
        "--shape",
        "1,8,8",
        "--mean",
        "0.3",
        "--std",
        "0.4",
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, "-m", "fedspill", *words, "--workers", "1"],
        capture_output=True, text=True, timeout=600, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.returncode == 0, ended.stderr
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = re.search(r"cost: about (\d+) s of processor time", ended.stderr)
    assert 1 / 1.5 < int(said[1]) / took < 1.5, (said[1], took)


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


def test_biases_that_batch_norm_takes_away_are_not_called_frozen():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)).train()
    seen = client(model, torch.rand(6, 1, 8, 8), 1)
    initial, final = seen.pairs[0]
    still = {**final, "0.bias": initial["0.bias"]}  # rounding moves some of them or none
    assert doubt_trained(Observation(model, ((initial, still),), (1, 8, 8))) == ""
    frozen = {**still, "4.bias": initial["4.bias"]}
    said = doubt_trained(Observation(model, ((initial, frozen),), (1, 8, 8)))
    assert "1 of 6 parameters that --model trains did not move (4.bias)" in said
    evaluated = {name: initial[name] if "running" in name else value for name, value in still.items()}
    said = doubt_trained(Observation(model, ((initial, evaluated),), (1, 8, 8)))  # statistics stand: it has a gradient
    assert "(0.bias)" in said


class Attentive(nn.Module):
    """Attention over the rows of an image, whose keys have a layer of their own."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.head = (nn.Linear(8, size) for size in (8, 8, 8, 10))

    def forward(self, x):
        rows = x[:, 0]
        weights = (self.query(rows) @ self.key(rows).mT).softmax(2)
        return self.head((weights @ self.value(rows)).mean(1))


def test_biases_of_keys_are_not_called_frozen():
    torch.manual_seed(0)
    seen = client(Attentive(), torch.rand(6, 1, 8, 8), 1)
    initial, final = seen.pairs[0]
    still = {**final, "key.bias": initial["key.bias"]}
    assert doubt_trained(Observation(seen.model, ((initial, still),), (1, 8, 8))) == ""
    frozen = {**still, "query.bias": initial["query.bias"]}
    said = doubt_trained(Observation(seen.model, ((initial, frozen),), (1, 8, 8)))
    assert "1 of 8 parameters that --model trains did not move (query.bias)" in said


def test_checkpoints_that_seem_to_be_swapped_are_asked_about(tmp_path, capsys):
    """What was sent is the trained one, and what came back the one that PyTorch draws."""
    recorded = record(tmp_path / "rec", clients=(2,))
    sent, returned = (
        recorded / "checkpoints" / f"{name}.safetensors" for name in ("global_0000", "client_00_round_0001")
    )
    audited(recorded, "right", attacks=["mean_image"], clients=[0])
    assert "swapped" not in capsys.readouterr().err
    content = sent.read_bytes()
    sent.write_bytes(returned.read_bytes())
    returned.write_bytes(content)
    audited(recorded, "swapped", attacks=["mean_image"], clients=[0])
    assert (
        "warning: round 1, client 0: what was returned looks less trained than what was sent" in capsys.readouterr().err
    )


FROZEN = """
def frozen():
    model = net()
    model[1].requires_grad_(False)
    return model
"""
