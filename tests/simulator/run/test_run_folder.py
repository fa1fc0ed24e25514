"""The run directory: who may write there, and when."""

import errno
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from filelock import FileLock
from sklearn.datasets import load_digits

from attacks import InputError
from attacks.interface.plugins import allow_code
from clients.data import _load
from simulator.results import ledger as ledger_file
from simulator.results.disk import LOCK
from simulator.results.ledger import JOURNAL, Ledger
from simulator.run import engine
from simulator.run import run_folder as folder_file
from simulator.run.display import Display
from simulator.run.plan import make_plan
from simulator.run.run_folder import claimed, inputs_of, needs_run
from simulator.run_errors import DiskError, RunError
from simulator.scenario.scenario import load_scenario


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("name: s\n")
    return make_plan(load_scenario(path), tmp_path / "out")


def test_nothing_is_written_through_a_link_or_into_a_pipe(plan, tmp_path):
    """A run directory may come by mail, and is then gone on with."""
    (tmp_path / "mine").mkdir()
    for name, make in {
        "ray.log": os.mkfifo,
        "reconstructions": lambda path: path.symlink_to(tmp_path / "mine"),
        "checkpoints/deep": lambda path: path.symlink_to(tmp_path / "gone"),
    }.items():
        path = plan.run_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)
        said = rf"{name}' is (a link|no file), and nothing is written through it: remove it, or choose another --out"
        with pytest.raises(InputError, match=said), claimed(plan):
            pass
        path.unlink()
    with claimed(plan):
        pass
    assert not any((tmp_path / "mine").iterdir())


def test_overwrite_leaves_the_journal_of_a_running_process_alone(plan):
    plan.run_dir.mkdir()
    theirs = plan.run_dir / JOURNAL
    theirs.write_text("theirs\n")
    with (
        FileLock(plan.run_dir / LOCK),
        pytest.raises(RunError, match="another process is running"),
        claimed(plan, overwrite=True),
    ):
        pass
    assert theirs.read_text() == "theirs\n"
    with claimed(plan, overwrite=True):
        assert not theirs.exists()


def test_a_run_finds_another_in_its_folder_before_ray_starts(plan, monkeypatch):
    monkeypatch.setattr(engine, "start_ray", lambda settings: pytest.fail("Ray takes seconds"))
    plan.run_dir.mkdir()
    with FileLock(plan.run_dir / LOCK), pytest.raises(RunError, match="another process is running"):
        engine.simulate(plan, Display())


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


def test_checkpoints_are_read_once(plan, monkeypatch):
    """Those of a run that goes on by who has locked its folder, those of one that is over to say that it is."""
    read = []
    monkeypatch.setattr(ledger_file, "is_changed", lambda path, crc: bool(read.append(path.name)))
    with claimed(plan):
        ledger = Ledger(plan.run_dir)
        ledger.mark_done("another cell", {"checkpoint": "00000000"})
        ledger.write_tables()
        assert needs_run(plan) and read == []
        again = Ledger(plan.run_dir)
        assert again.done == {"another cell"} and read == ["checkpoint"]
        again.mark_done("")
        assert not needs_run(plan) and read == ["checkpoint"] * 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["federation.clients=2"], "(federation.clients is 3 there, 2 here)"),  # of 3 SuperNodes only 2 are up
        (["defenses=[{name: prune_easiest}]"], "(defenses.0.name is not there, 'prune_easiest' here)"),
        (["adversary.attacks=[span]"], "(adversary.attacks.0.name is 'ntk' there, 'span' here)"),
        (["engine.threads=2", "engine.gpus=0.1"], "(engine.threads is 1 there, 2 here)"),
    ],
)
def test_a_folder_of_another_run_says_in_what_it_is_another(tmp_path, changed, said):
    (tmp_path / "s.yaml").write_text("name: s\nadversary: {attacks: [ntk]}\n")
    with claimed(make_plan(load_scenario(tmp_path / "s.yaml", ["federation.clients=3"]), tmp_path / "out")):
        pass
    scenario = load_scenario(tmp_path / "s.yaml", ["federation.clients=3", *changed])
    with pytest.raises(InputError, match=re.escape(f"already holds another scenario's run {said}: choose another")):
        needs_run(make_plan(scenario, tmp_path / "out"))


def own_data(folder, brighter=0.0):
    """A scenario of the user's own npz file, and of a network of his own."""
    images = np.clip(load_digits().images / 16 + brighter, 0, 1).astype(np.float32)
    np.savez(folder / "own.npz", x_train=images, y_train=load_digits().target)
    (folder / "own.yaml").write_text("name: own\ndata: {name: npz, root: own.npz, public: 50, test: 50}\n")
    _load.cache_clear()  # as in another process
    return make_plan(load_scenario(folder / "own.yaml"), folder / "out")


def test_a_run_whose_data_have_changed_since_is_not_taken_up(tmp_path):
    with claimed(own_data(tmp_path)):
        pass
    assert needs_run(own_data(tmp_path))  # written anew with the same content: nothing has changed
    changed = own_data(tmp_path, brighter=0.01)
    with pytest.raises(InputError, match=r"^data 'npz' of '.*own.npz' is not what it was when .* --overwrite$"):
        needs_run(changed)
    assert needs_run(changed, overwrite=True)
    with claimed(changed, overwrite=True):
        pass
    assert needs_run(changed)


def test_code_that_a_scenario_names_by_its_module_is_among_what_it_reads(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FEDSPILL_ALLOW_CODE", "all")
    code = tmp_path / "own_net.py"
    code.write_text("import torch.nn as nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n")
    (tmp_path / "s.yaml").write_text("name: s\nmodel: {name: 'own_net:net'}\n")
    plan = make_plan(load_scenario(tmp_path / "s.yaml"), tmp_path / "out")
    before = inputs_of(plan)
    assert before.keys() == {"data 'digits'", "code 'own_net'"}
    code.write_text(code.read_text() + "# changed\n")
    after = inputs_of(plan)
    assert {name for name in before if before[name] != after[name]} == {"code 'own_net'"}


def test_other_versions_are_said_and_both_are_written_down(plan, monkeypatch):
    with claimed(plan) as notes:
        assert notes == []
    first = yaml.safe_load((plan.run_dir / "scenario.yaml").read_text())
    with claimed(plan) as notes:
        assert notes == []
    assert yaml.safe_load((plan.run_dir / "scenario.yaml").read_text()) == first  # the time of its start as well
    installed = folder_file.metadata.version
    monkeypatch.setattr(folder_file.metadata, "version", lambda name: "99" if name == "torch" else installed(name))
    for _ in range(2):  # the second time the same versions as the last
        with claimed(plan) as notes:
            assert notes == [f"begun with torch {installed('torch')}, now 99: its tables will hold rows of both"]
        now = yaml.safe_load((plan.run_dir / "scenario.yaml").read_text())
        assert now["versions"] == first["versions"] and [r["versions"]["torch"] for r in now["resumed"]] == ["99"]


def test_a_folder_that_takes_nothing_is_one_line(plan, monkeypatch):
    def refuse(path, content):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(DiskError, match=r"scenario.yaml' cannot be written \(Read-only file system\)"), claimed(plan):
        pass


def test_code_of_one_s_own_that_was_edited_is_other_code(tmp_path):
    """Where a sweep names it, too: the digest of the scenario knows the base's network alone."""
    text = "import torch.nn as nn\ndef net(width=8):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    files = [tmp_path / "one.py", tmp_path / "two.py"]
    for file in files:
        file.write_text(text)
    swept = {"name": "s", "sweep": {"model.name": [f"{file}:net" for file in files]}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(swept))
    allow_code("all")
    made = make_plan(load_scenario(tmp_path / "s.yaml"), tmp_path / "out")
    with claimed(made):
        pass
    assert needs_run(made)
    files[1].write_text(text.replace("10", "12"))
    with pytest.raises(InputError, match=f"code '{files[1]}' is not what it was"):
        needs_run(made)
