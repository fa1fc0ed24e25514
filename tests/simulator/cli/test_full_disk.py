"""What is shown, and said, where the disk takes nothing."""

import errno
import os

import pytest

from simulator.results.ledger import Ledger
from simulator.run_errors import DiskError


def test_a_run_that_a_full_disk_stopped_shows_what_it_found(fedspill, scenario, tmp_path, monkeypatch):
    row = {"round": 1, "threat_model": "server", "attack": "span", "defense": "none", "seed": 0, "target": "private"}
    found = {"status": "ok", "adaptive": False, "leakage": 0.9, "recovered": 9, "num_private": 10, "client": 0}

    def stop(plan, *others):
        ledger = Ledger(tmp_path / "journal")
        ledger.add("", leakage=[{**row, **found}])
        raise DiskError("'x' cannot be written (No space left on device): make room", ledger.tables())

    (tmp_path / "journal").mkdir()
    monkeypatch.setattr("simulator.run.engine.simulate", stop)
    result = fedspill("run", scenario("name: full\nmodel: {width: 8}\n"), "--out", tmp_path / "full")
    assert result.returncode == 1
    assert result.stderr == "fedspill: 'x' cannot be written (No space left on device): make room\n"
    assert "span" in result.stdout and "leakage.csv" not in result.stdout


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_the_system_says_against_a_file_is_one_line(fedspill, tmp_path, monkeypatch, number):
    def refuse(path, *others, **options):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("pathlib.Path.write_text", refuse)
    result = fedspill("init", tmp_path / "new.yaml")
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"fedspill: '{tmp_path}/new.yaml': {os.strerror(number)}")


def test_a_full_disk_is_one_line_and_no_fault_of_ours(fedspill, scenario, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device", "runs/x")

    monkeypatch.setattr("simulator.cli.runs.load_scenario", full)
    result = fedspill("run", scenario("name: s\n"))
    assert result.returncode == 1
    assert result.stderr == (
        "fedspill: 'runs/x': No space left on device; "
        "what is written is kept, and the same command goes on from there\n"
    )
