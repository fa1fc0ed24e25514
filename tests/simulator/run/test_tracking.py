"""Rows in a tracker: stand-ins for MLflow and Weights & Biases note what they are called with."""

import sys
from types import SimpleNamespace

import pytest

from attacks import InputError
from simulator.run.display import Display
from simulator.run.plan import make_plan
from simulator.run.tracking import tracked
from simulator.scenario.scenario import load_scenario

ROW = {"round": 2, "client": 3, "threat_model": "server", "attack": "span", "status": "ok", "detail": "",
       "leakage": 0.5, "recovered_fraction": 1, "psnr_mean": float("nan"), "l2_median": None}  # fmt: skip


class Calls:
    """A module whose every function notes its name and arguments; `init` returns it, as a run of its own."""

    def __init__(self):
        self.made = []

    def __getattr__(self, name):
        def call(*given, **named):
            self.made.append((name, *given, named))
            return self

        return call

    def called(self, name):
        return [call for call in self.made if call[0] == name]


class Shown(Display):
    def __init__(self):
        self.rows = []

    def attack_done(self, row, subject):
        self.rows.append(row)


def plan_of(tmp_path, track, *more):
    file = tmp_path / "s.yaml"
    file.write_text(f"name: s\noutput: {{track: {track}, diagnostics: false}}\n")
    return make_plan(load_scenario(file, list(more)), tmp_path / "out")


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_numbers_of_rounds_and_rows_are_sent(tmp_path, monkeypatch, name):
    calls, shown = Calls(), Shown()
    monkeypatch.setitem(sys.modules, name, calls)
    display = tracked(shown, plan_of(tmp_path, [name], "training.learning_rate=0.25"))
    display.start(1, 1)
    display.round_done(SimpleNamespace(name="seed=0", words="seed=0"), 2, 0.75)
    display.attack_done(ROW, "round 2")
    display.attacks_running({})
    display.stop()
    assert shown.rows == [ROW]
    values = {"server/span/client_03/leakage": 0.5, "server/span/client_03/recovered_fraction": 1.0}
    if name == "mlflow":
        assert calls.called("log_params")[0][1]["training.learning_rate"] == 0.25
        assert calls.called("log_metrics") == [
            ("log_metrics", {"seed=0/test_accuracy": 0.75}, {"step": 2}),
            ("log_metrics", values, {"step": 2}),
        ]
        assert calls.made[0][0] == "start_run" and calls.made[-1][0] == "end_run"
    else:
        assert calls.called("init")[0][1]["config"]["training.learning_rate"] == 0.25
        sent = [call[1] for call in calls.called("log")]
        assert sent == [{"seed=0/test_accuracy": 0.75, "round": 2}, {**values, "round": 2}]
        assert calls.made[-1][0] == "finish"


def test_a_tracker_that_fails_costs_a_line(tmp_path, monkeypatch, caplog):
    def fail(*given, **named):
        raise ConnectionError("no network")

    module = SimpleNamespace(start_run=Calls().start, log_params=Calls().log, log_metrics=fail, end_run=fail)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    shown = Shown()
    display = tracked(shown, plan_of(tmp_path, ["mlflow"]))
    display.attack_done(ROW, "round 2")
    display.stop()
    assert shown.rows == [ROW] and caplog.text.count("no network; the run goes on") == 2


def test_what_is_not_installed_is_said_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"pip install 'fedspill\[wandb\]'"):
        tracked(Display(), plan_of(tmp_path, ["wandb"]))


def test_a_tracker_that_cannot_be_started_is_said_before_anything_runs(tmp_path, monkeypatch):
    def fail(**named):
        raise ConnectionError("no server at\nhttp://here")

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(start_run=fail))
    with pytest.raises(InputError, match=r"'mlflow' cannot be started \(no server at http://here\)"):
        tracked(Display(), plan_of(tmp_path, ["mlflow"]))


def test_it_changes_no_table_and_so_no_digest(tmp_path):
    assert plan_of(tmp_path, ["mlflow"]).scenario.digest == plan_of(tmp_path, []).scenario.digest
    display = Display()
    assert tracked(display, plan_of(tmp_path, [])) is display
