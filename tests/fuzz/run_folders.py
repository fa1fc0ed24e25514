"""A run directory and a recording of a few kilobytes, and everything that reads one that came by mail."""

import atexit
import json
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

import torch
import yaml

from attacks import Knowledge
from clients.local_update import load_data
from simulator.evaluation.job import Job, JobSettings, run_job
from simulator.reports.page.pages import render, run_page
from simulator.results.keys import ALL, ObservationKey, RecordedObservation
from simulator.results.ledger import Ledger
from simulator.results.storage import CellStore
from simulator.rundir.run import Run
from simulator.scenario.scenario import validate
from simulator.scenario.yaml_source import YamlSource

CONTENT = {
    "name": "s1",
    "data": {"public": 5, "test": 5},
    "partition": {"images": 3},
    "federation": {"clients": 2, "rounds": 1},
    "model": {"width": 8, "depth": 1},
    "adversary": {"attacks": ["best_public"]},
    "output": {"diagnostics": False},
}


def write_run(root: Path) -> None:
    """Two clients, whose update is no training's. The same bytes each time: made once for every process."""
    shutil.copytree(_made(), root)


@lru_cache
def _made() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _make_run(folder / "run")
    return folder / "run"


def _make_run(root: Path) -> None:
    root.mkdir()
    scenario = validate(YamlSource(dict(CONTENT)))
    description = {"scenario": scenario.model_dump(mode="json"), "digest": scenario.digest, "versions": {"torch": "2"}}
    (root / "scenario.yaml").write_text(yaml.safe_dump(description))
    store, ledger, (cell,) = CellStore(root), Ledger(root), scenario.cells()
    store.create(scenario.model, (1, 8, 8), 10, 0)
    initial = store.architecture().build().state_dict()
    sent = store.save_global(0, initial)
    public = load_data(cell.client_config(use_gpu=False)).public()[0]
    store.save_public_images(public - 0.3)
    for client in (0, 1):
        final = {name: value + 0.01 * (client + 1) for name, value in initial.items()}
        key = ObservationKey(1, client, "server")
        seen = RecordedObservation.of(key, ((sent, store.save_client(1, client, final)),), (client,), (0, 1))
        store.save_observation(seen, Knowledge(num_private=3, pixel_mean=(0.3,), public_images=public - 0.3))
        result = run_job(Job(JobSettings.of(cell), root, key, scenario.adversary.attacks[0]))
        ledger.add("", **result._asdict())
    ledger.add("", utility=[{"round": 1, "defense": "none", "seed": 0, "test_accuracy": 0.5}])
    ledger.mark_done("", store.files)
    ledger.write_tables()


def write_recording(root: Path) -> None:
    """What `fedspill.Record` writes, of one client and one round."""
    store = CellStore(root)
    store.checkpoints.mkdir(parents=True)
    state = {"0.weight": torch.zeros(3, 4), "0.bias": torch.zeros(3)}
    key = ObservationKey(1, 0, "server")
    pair = (store.save_global(0, state), store.save_client(1, 0, state))
    store.save_observation(RecordedObservation.of(key, (pair,), (0,), (0,)), Knowledge(num_private=3))
    observer = RecordedObservation.of(ObservationKey(1, ALL, "observer"), (pair,), (0,), (0,), adversary="observer")
    store.save_observation(observer, Knowledge())
    clients, rounds = {"0": {"node": 7, "name": None}}, [{"round": 1, "clients": [0], "images": {"0": 3}}]
    content = {"format": 1, "fedspill": "0", "strategy": "FedAvg", "clients": clients, "rounds": rounds, "problems": []}
    (root / "recording.json").write_text(json.dumps(content))


def read_run(root: Path | str) -> object:
    """What `report`, `attack --run`, `member --run` and a resumed run read of it."""
    Ledger(Path(root)).write_tables()
    run = Run(root)
    render(run_page(run, [], lambda line: None))
    for table in (run.leakage, run.samples, run.utility, run.clients):
        table.to_csv()
    observation, _ = run.observation(1, 0)
    repr(run)
    return run.attack(1, 0, "mean_image"), observation
