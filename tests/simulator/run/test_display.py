"""What a run says where nobody watches: lines that a log keeps."""

import io
import signal
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from simulator.evaluation.job import Job, JobSettings
from simulator.results.keys import ObservationKey
from simulator.run import display
from simulator.run.display import Bars, Display, Lines, interruptible, run_display, step_bar
from simulator.scenario.scenario import Scenario
from simulator.scenario.sections import AttackConfig


@pytest.fixture
def said():
    """(the display, a function that reads what it has written so far)."""
    file = io.StringIO()
    return Lines(Console(file=file, width=40)), lambda: file.getvalue().splitlines()


SUBJECT = "round 1, client 0, server, ntk"
ONE = SimpleNamespace(name="", words="")  # a cell without a sweep


def row(**columns):
    return {"round": 1, "client": 0, "threat_model": "server", "attack": "ntk", "status": "ok", "detail": ""} | columns


def test_start_rounds_attacks_and_end_have_a_line_each_that_is_not_broken(said):
    lines, text = said
    lines.start(rounds=2, attacks=2)
    for number in (1, 2):
        lines.round_done(ONE, number, accuracy=0.5)
        lines.attack_done(row(round=number), f"round {number}, client 0, server, ntk")
    lines.stop()
    assert text()[:2] == [
        "fedspill: 2 rounds and 2 attacks to do, starting Flower and Ray",
        "fedspill: 1 of 2 rounds: round 1, test accuracy 0.500",
    ]
    assert len(text()) == 6 and "2 of 2 attacks: round 2, client 0, server, ntk, done" in text()[4]
    assert "2 rounds and 2 attacks done in 0 s" in text()[5]


def test_many_attacks_have_about_twenty_lines_and_those_that_fail_their_own(said):
    lines, text = said
    lines.start(rounds=1, attacks=1000)
    for number in range(1000):
        lines.attack_done(row(status="timeout", detail="too slow") if number == 555 else row(), SUBJECT)
    assert len(text()) == 1 + 20 + 1 and any("timeout: too slow" in line for line in text())


def test_a_reason_that_attacks_share_is_said_once(said):
    lines, text = said
    lines.start(rounds=0, attacks=3)
    why = "RuntimeError: view size is not compatible with input tensor's size and stride, shape (4, {})"
    for client in range(3):
        lines.attack_done(
            row(client=client, status="failed", detail=why.format(client)), f"client {client}, server, ntk"
        )
    assert ["view size" in line for line in text()[1:]] == [True, False, False]
    assert text()[3].endswith("client 2, server, ntk, failed: as before")


def test_the_union_of_all_clients_is_called_so_and_a_setting_of_a_sweep_is_said_as_the_verdict_says_it(said, tmp_path):
    lines, text = said
    sweep = {"seed": [0, 1], "training.learning_rate": [0.1], "defenses": [[], [{"name": "noise", "scale": 0.1}]]}
    cell = Scenario(name="s", sweep=sweep).cells()[2]
    job = Job(JobSettings.of(cell), tmp_path, ObservationKey(1, -1, "observer"), AttackConfig(name="ntk"))
    lines.start(rounds=1, attacks=1)
    lines.round_done(cell, 1, accuracy=0.5)
    lines.attack_done(row(), job.subject)
    where = "noise, training.learning_rate=0.1, seed=0, round 1"
    assert text()[1] == f"fedspill: 1 of 1 rounds: {where}, test accuracy 0.500"
    assert text()[2] == f"fedspill: 1 of 1 attacks: {where}, all clients, observer, ntk, done"


def test_long_attacks_are_told_of_every_half_minute(said, monkeypatch):
    lines, text = said
    lines.start(rounds=1, attacks=4)
    now = lines.last
    for seconds in range(0, 100, 10):
        monkeypatch.setattr(display.time, "monotonic", lambda passed=seconds: now + 1.001 * passed)
        lines.attacks_running({"round 1, client 0, server, ntk": 0.25, "round 1, client 1, server, ntk": 0.5})
    running = "2 run: round 1, client 0, server, ntk 25%; round 1, client 1, server, ntk 50%"
    assert len(text()) == 1 + 3 and f"0 of 4 attacks are over, {running}" in text()[1]


def test_a_log_has_lines_and_a_terminal_bars(monkeypatch, capsys):
    assert isinstance(run_display(), Lines)
    with step_bar() as report:
        for done in range(50):
            report(f"ntk, loss {done}", done, 50)
    assert capsys.readouterr().err.splitlines() == ["fedspill: ntk, loss 0, 0 of 50"]
    monkeypatch.setattr(Console, "is_terminal", True)
    assert isinstance(run_display(), Bars)


def test_results_are_told_as_they_come():
    row = {"recovered": None, "num_private": None, "num_vouched": None, "membership_told": None}
    assert display.found_by(row) == "" == display.found_by(row | {"recovered": 0, "num_private": 8})
    assert display.found_by(row | {"num_features": 8, "num_vouched": 0}) == "features of 8 images"
    assert display.found_by(row | {"recovered": 3, "num_private": 8}) == "3 of 8 images recovered"
    told = {"num_vouched": 5, "membership_told": 22, "membership_candidates": 100, "membership_p": 1e-9}
    assert display.found_by(row | told) == "5 images, 22 of 100 candidates stand out"
    assert display.found_by(row | told | {"membership_told": 1, "membership_p": 0.6}) == "5 images"


def test_many_updates_need_more_than_one_that_seems_to_tell_as_for_the_verdict(said):
    """A probability of 0.02 is no news among three updates: 3 · 0.02 is above 0.05."""
    lines, text = said
    told = row(membership_told=2, membership_candidates=30, membership_p=0.02)
    lines.start(rounds=0, attacks=2)
    lines.attack_done(told, SUBJECT)
    lines.updates = 3
    lines.attack_done(told, SUBJECT)
    assert ["stand out" in line for line in text()[1:]] == [True, False]


def test_one_round_is_one(said):
    lines, text = said
    lines.start(rounds=1, attacks=1)
    lines.round_done(ONE, 1, accuracy=0.5)
    lines.attack_done(row(round=1), SUBJECT)
    lines.stop()
    assert text()[0] == "fedspill: 1 round and 1 attack to do, starting Flower and Ray"
    assert "1 round and 1 attack done in 0 s" in text()[-1]


@pytest.mark.parametrize("again", ["", "; the setting under way is trained anew"])
def test_an_interrupted_command_says_what_it_does_anew_and_of_an_audit_that_is_nothing(monkeypatch, capsys, again):
    monkeypatch.setattr(display.os, "_exit", sys.exit)
    with pytest.raises(SystemExit), interruptible(Display(), again):
        signal.raise_signal(signal.SIGINT)
    assert f"fedspill: this goes on{again}:\n" in capsys.readouterr().err
