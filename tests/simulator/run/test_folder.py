"""The run directory: who may write there, and when."""

import pandas as pd
import pytest
from filelock import FileLock

from simulator.errors import RunError
from simulator.results.ledger import JOURNAL, Ledger
from simulator.run.folder import LOCK, claimed, needs_run
from simulator.run.plan import make_plan
from simulator.scenario.scenario import load_scenario


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("name: s\n")
    return make_plan(load_scenario(path), tmp_path / "out")


def test_overwrite_leaves_the_journal_of_a_running_process_alone(plan):
    plan.run_dir.mkdir()
    journal = plan.run_dir / JOURNAL
    journal.write_text("theirs\n")
    with (
        FileLock(plan.run_dir / LOCK),
        pytest.raises(RunError, match="another process is running"),
        claimed(plan, overwrite=True),
    ):
        pass
    assert journal.read_text() == "theirs\n"
    with claimed(plan, overwrite=True):
        assert not journal.exists()


def test_a_directory_that_a_run_was_about_to_claim_is_free(plan):
    plan.run_dir.mkdir()
    (plan.run_dir / LOCK).touch()
    assert needs_run(plan)


def test_tables_that_a_killed_run_did_not_come_to_are_written_from_its_journal(plan):
    with claimed(plan):
        ledger = Ledger(plan.run_dir)
        ledger.add("", utility=[{"round": 1, "defense": "none", "seed": 0, "test_accuracy": 0.5}])
        assert needs_run(plan)
        ledger.mark_done("")
    whole = ledger.write_tables()["utility"]
    (plan.run_dir / "utility.parquet").unlink()
    assert not needs_run(plan)
    pd.testing.assert_frame_equal(pd.read_parquet(plan.run_dir / "utility.parquet"), whole)
    (plan.run_dir / "leakage.csv").unlink()
    with FileLock(plan.run_dir / LOCK), pytest.raises(RunError, match="another process is running"):
        needs_run(plan)
