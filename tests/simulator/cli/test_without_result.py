"""A run in which every attack ran out of time, or some: what is said, and the exit code."""

import json

import pytest

from simulator.cli.finish import AGAIN
from simulator.results.ledger import JOURNAL, Ledger
from simulator.run.run_folder import claimed
from simulator.run_errors import CellsFailed


@pytest.fixture
def late(tmp_path):
    """A finished run in which every attack ran out of time."""
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "scenario.yaml").write_text("scenario: {name: late}\n")
    ledger = Ledger(tmp_path / "late")
    key = {"round": 1, "threat_model": "server", "attack": "ntk", "defense": "none", "seed": 0, "target": "private"}
    why = {"status": "timeout", "detail": "no result within adversary.timeout = 1 s", "adaptive": False}
    ledger.add("", leakage=[{**key, **why, "client": client} for client in (0, 1)])
    ledger.mark_done("")
    ledger.write_tables()
    return tmp_path / "late"


def test_a_run_without_any_result_says_so_and_exits_with_3(fedspill, scenario, late, monkeypatch):
    monkeypatch.setattr("simulator.cli.runs.needs_run", lambda plan, overwrite: False)
    result = fedspill("run", scenario("name: late\nmodel: {width: 8}\n"), "--out", late)
    assert result.returncode == 3
    assert result.stderr == f"fedspill: no attack gave a result (2 timeout): nothing is known of what leaks{AGAIN}\n"
    assert result.stdout.splitlines()[1].startswith("NO RESULT: No attack gave a result")
    assert "'ntk' out of time in 2 cases: no result within adversary.timeout = 1 s" in " ".join(result.stdout.split())


def test_a_report_on_a_run_without_any_result_is_written(fedspill, late):
    result = fedspill("report", late)
    assert result.returncode == 0, result.stderr
    page = (late / "report.html").read_text()
    assert "out of time in 2 cases: no result within adversary.timeout = 1 s." in page and "No result" in page


def test_a_run_with_some_rows_without_a_result_says_how_many_and_exits_with_5(fedspill, scenario, late, monkeypatch):
    monkeypatch.setattr("simulator.cli.runs.needs_run", lambda plan, overwrite: False)
    (late / JOURNAL).unlink()
    ledger = Ledger(late)
    rows = [{"status": "ok"}, {"status": "failed", "detail": "boom"}, {"status": "timeout"}, {"status": "skipped"}]
    key = {"round": 1, "threat_model": "server", "attack": "ntk", "defense": "none", "seed": 0, "target": "private"}
    ledger.add("", leakage=[{**key, "adaptive": False, "client": i, **row} for i, row in enumerate(rows)])
    ledger.mark_done("")
    ledger.write_tables()
    result = fedspill("run", scenario("name: late\nmodel: {width: 8}\n"), "--out", late)
    assert result.returncode == 5
    assert result.stderr == f"fedspill: 2 of 4 rows have no result (1 failed, 1 timeout): `detail` says why{AGAIN}\n"
    answer = json.loads(fedspill("run", scenario("name: late\n"), "--out", late, "--json").stdout)
    assert answer["error"].startswith("2 of 4 rows have no result")
    assert fedspill("report", late).returncode == 0


def test_a_report_on_a_run_that_was_stopped_shows_what_there_is(fedspill, late):
    for table in (*late.glob("*.parquet"), late / "leakage.csv"):
        table.unlink()
    ledger = Ledger(late)
    key = {"round": 1, "threat_model": "server", "attack": "ntk", "defense": "none", "seed": 0, "target": "private"}
    ok = {"status": "ok", "adaptive": False, "client": 2, "recovered": 3, "num_private": 4}
    not_tried = {"status": "skipped", "adaptive": False, "client": 1}  # no attack that was to do
    ledger.add("more", leakage=[{**key, **ok}, {**key, **not_tried}])
    result = fedspill("report", late)
    assert result.returncode == 0, result.stderr
    said = " ".join(result.stdout.split())
    assert "EXPOSED: Client 2" in said and "recovers 3 of its 4 private images" in said
    assert "This run is incomplete: 3 attacks are over" in said and "goes on from there, with --out /" in said
    assert "Not finished" in (late / "report.html").read_text()


def test_a_stopped_run_without_any_row_says_so(fedspill, late):
    for path in (*late.glob("*.parquet"), late / "ledger.jsonl"):
        path.unlink()
    result = fedspill("report", late)
    assert (
        result.returncode == 2
        and "has no leakage table: nothing is over yet; the command that began it goes on" in result.stderr
    )


def test_a_sweep_with_a_setting_that_failed_shows_the_others(fedspill, scenario, tmp_path, monkeypatch):
    """A user's sweep over learning rates, one of which diverges: neither `run` nor `report` had shown the other."""

    def run_all_but_one(plan, display, overwrite, verbose):
        with claimed(plan):
            cell = plan.cells[0]
            ledger = Ledger(plan.run_dir, swept=cell.swept)
        key = {"round": 1, "threat_model": "server", "attack": "ntk", "defense": "none", "seed": 0, "target": "private"}
        ok = {"status": "ok", "adaptive": False, "client": 2, "recovered": 3, "num_private": 4}
        ledger.add(cell.name, leakage=[{**key, **ok, **cell.swept}])
        ledger.write_tables()
        raise CellsFailed("1 of 2 settings failed: learning_rate=1e+30")

    monkeypatch.setattr("simulator.run.engine.simulate", run_all_but_one)
    path = scenario("name: s\noutput: {figures: false}\nsweep: {training.learning_rate: [0.05, 1.0e+30]}\n")
    stopped = fedspill("run", path, "--out", tmp_path / "out")
    assert (stopped.returncode, stopped.stderr) == (1, "fedspill: 1 of 2 settings failed: learning_rate=1e+30\n")
    again = fedspill("report", tmp_path / "out")
    assert again.returncode == 0, again.stderr
    for said in (stopped.stdout, again.stdout):
        assert "recovers 3 of its 4 private images" in " ".join(said.split()) and "Not finished" in said
