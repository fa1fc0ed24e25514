"""A run as small as can be, and tables of one as large as people have."""

import numpy as np
import pandas as pd
import pytest
import torch

from attacks import InputError, Knowledge
from simulator.evaluation.job import Job, JobSettings, run_job
from simulator.results.keys import ObservationKey, RecordedObservation
from simulator.results.schema import LEAKAGE, SAMPLES, UTILITY
from simulator.results.storage import CellStore
from simulator.rundir.run import Run
from simulator.scenario.scenario import validate
from simulator.scenario.yaml_source import YamlSource

DISTILLED = torch.stack([torch.full((1, 8, 8), shade) for shade in (0.1, 0.4)])
CONTENT = {
    "name": "s",
    "data": {"public": 30, "test": 30},
    "partition": {"images": 3},
    "model": {"width": 16, "depth": 1},
    "adversary": {"attacks": ["mean_image"]},
}


class FakeRun:
    """As much of a run as figures and pages read."""

    def __init__(self, path, scenario, leakage, samples, utility):
        self.path, self.scenario, self.cells = path, scenario, {"": scenario.cells()[0]}
        self.leakage, self.samples, self.measured = leakage, samples, utility
        self.without_utility, self.stopped = False, ""
        self.description = {"scenario": scenario.model_dump(mode="json"), "versions": {"fedspill": "1.2.3"}}

    private_images, samples_of, is_audit = Run.private_images, Run.samples_of, False

    @property
    def utility(self):
        if self.without_utility:
            raise InputError("run has no utility.parquet")
        return self.measured

    def store(self, cell):
        return CellStore(self.path)


@pytest.fixture
def record(tmp_path):
    """One client, attacked in one round, with images of its own and distilled ones."""
    scenario = validate(YamlSource(CONTENT))
    store = CellStore(tmp_path)
    store.create(scenario.model, (1, 8, 8), 10, 0)
    initial = store.architecture().build().state_dict()
    final = {name: value + 0.01 for name, value in initial.items()}
    key, pair = ObservationKey(1, 0, "server"), (store.save_global(0, initial), store.save_client(1, 0, final))
    store.save_observation(RecordedObservation.of(key, (pair,), (0,), (0,)), Knowledge(num_private=3))
    store.save_distilled(1, 0, DISTILLED)
    result = run_job(Job(JobSettings.of(scenario.cells()[0]), tmp_path, key, scenario.adversary.attacks[0]))
    utility = UTILITY.frame([utility_row(round) for round in (0, 1)])
    return FakeRun(tmp_path, scenario, LEAKAGE.frame(result.leakage), pd.DataFrame(result.samples), utility)


def utility_row(round, **more):
    return {"round": round, "defense": "none", "seed": 0, "test_accuracy": 0.1 + 0.4 * round} | more


def leakage_row(round, client, recovered=8, **more):
    """A row of 8 private images of which so many came back."""
    row = {
        "round": round, "client": client, "threat_model": "server", "attack": "span", "defense": "none", "seed": 0,
        "target": "private", "status": "ok", "detail": "", "num_private": 8, "num_reconstructed": recovered,
        "recovered": recovered, "recovered_fraction": recovered / 8, "leakage": recovered / 8, "l2_median": 0.1,
        "floor_leakage": 0.1, "floor_l2_median": 2.0, "membership_auc": 1.0, "knowledge": "{}", "adaptive": False,
    }  # fmt: skip
    return row | more


def sample_rows(row, exact=False):
    """The samples of a row: its first images recovered, the others matched as long as there are reconstructions."""
    keys = ("round", "client", "threat_model", "attack", "defense", "seed", "target")
    for image in range(row["num_private"]):
        recovered, matched = image < row["recovered"], image < row["num_reconstructed"]
        yield {name: row[name] for name in keys} | {
            "image": image, "match": image if matched else -1, "l2": 0.0 if exact and recovered else 0.1 + image,
            "floor_l2": 2.0, "mean_image_l2": 2.5, "identified": recovered, "psnr": 30.0 if recovered else 10.0,
        }  # fmt: skip


@pytest.fixture
def large(tmp_path):
    return large_run(tmp_path)


def large_run(path):
    """10 rounds of 10 clients by two attacks, and their union; without any file."""
    generator = np.random.default_rng(0)
    rows = [
        leakage_row(round, client, int(generator.integers(0, 9)), attack=attack, detail="a remark; another one")
        for round in range(1, 11) for client in range(-1, 10) for attack in ("span", "ntk")
    ]  # fmt: skip
    samples = [sample for row in rows for sample in sample_rows(row)]
    utility = [utility_row(round, test_accuracy=round / 20) for round in range(11)]
    tables = (LEAKAGE.frame(rows), SAMPLES.frame(samples), UTILITY.frame(utility))
    return FakeRun(path, validate(YamlSource(CONTENT)), *tables)
