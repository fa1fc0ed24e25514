"""An attack on a recorded observation is written down as a run: tables, scores and a page."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge
from clients.data.partition import split_data
from clients.models import build_model
from simulator.audit.run_audit import audit
from simulator.results.keys import ObservationKey, RecordedObservation
from simulator.results.storage import CellStore
from simulator.run.plan import make_plan
from simulator.run.run_folder import claimed
from simulator.rundir.run import Run
from simulator.scenario.scenario import load_scenario
from tests.simulator.audit.recorded import SHAPE, digits, record

SCENARIO = """
name: small
data: {public: 60, test: 60}
partition: {kind: exact, images: 6}
model: {name: mlp, width: 128}
federation: {rounds: 1, clients: 2}
"""


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """An audit of three clients with the truth."""
    folder = record(tmp_path_factory.mktemp("replayed") / "rec")
    (folder / "truth").mkdir()
    for client in range(3):
        np.savez(folder / "truth" / f"client_{client:02d}.npz", images=digits(client)[0].numpy())
    return audit(folder, f"{folder}/net.py:net", SHAPE, mean=0.3, std=0.4, attacks=["span"], workers=1,
                 truth=folder / "truth", out=folder / "audited", page=False)  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """A run of a scenario, one update of which was recorded: that of client 0, four steps of SGD."""
    (tmp_path / "small.yaml").write_text(SCENARIO)
    plan = make_plan(load_scenario(tmp_path / "small.yaml"), tmp_path / "run")
    scenario, store = plan.scenario, CellStore(plan.run_dir)
    data = split_data(scenario.data, scenario.partition, 2, scenario.seed)
    images, labels = data.client(0)
    model = build_model(scenario.model, data.shape, 10, 0)
    with claimed(plan):
        store.create(scenario.model, data.shape, 10, 0)
        initial = store.save_global(0, model.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data.normalization.inputs(images)), labels).backward()
            optimizer.step()
        final = store.save_client(1, 0, model.state_dict())
        told = Knowledge(num_private=6, pixel_mean=data.normalization.mean, pixel_range=(0.0, 1.0))
        key = ObservationKey(1, 0, "server")
        store.save_observation(RecordedObservation.of(key, ((initial, final),), (0,), (0, 1)), told)
    return plan.run_dir


def test_an_attack_on_a_scenario_s_observation_has_scores_and_a_page(fedspill, run, tmp_path):
    arguments = ["--run", run, "--client", 0, "--attack", "span", "--out", tmp_path / "out"]
    result = fedspill("attack", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    said, row = json.loads(result.stdout), pd.read_csv(tmp_path / "out" / "leakage.csv").iloc[0]
    assert said["verdict"]["level"] == "exposed" and row.recovered == row.num_private == 6
    assert row.membership_auc > 0.9 and row.floor_leakage < row.leakage
    page = Run(tmp_path / "out").page.read_text()
    assert "6 of its 6" in page and said["files"]["page"].endswith("report.html")
    assert Run(tmp_path / "out").private(1, 0, "server").shape == (6, 1, 8, 8)
    facts, constants = (json.loads((tmp_path / "out" / name).read_text()) for name in ("facts.json", "constants.json"))
    assert not [name for name in facts if name.startswith("threshold")] and facts["accepted_up_to"] > 0
    assert constants and all(name.startswith("threshold_") for name in constants)
    assert fedspill("attack", *arguments[:-3], "mean_image", *arguments[-2:]).returncode == 0  # another in its place


def test_an_attack_on_an_audit_s_observation_is_scored_as_the_audit_was(fedspill, audited, tmp_path):
    arguments = ["--run", audited.path, "--client", 1, "--attack", "span", "--out", tmp_path / "out"]
    result = fedspill("attack", *arguments)
    assert result.returncode == 0 and "EXPOSED" in result.stdout, result.stderr
    own = Run(tmp_path / "out").leakage.iloc[0]
    (first,) = (row for _, row in audited.leakage.iterrows() if row.client == 1)
    for name in ("recovered", "leakage", "membership_auc", "num_private", "floor_leakage"):
        assert own[name] == first[name], name
    assert Run(tmp_path / "out").page.exists()


def test_where_the_truth_has_moved_there_is_a_page_without_scores(fedspill, audited, tmp_path):
    shutil.copytree(audited.path, tmp_path / "copy")
    text = (tmp_path / "copy" / "audit.yaml").read_text()
    (tmp_path / "copy" / "audit.yaml").write_text(text.replace("/truth", "/moved"))
    arguments = ["--run", tmp_path / "copy", "--client", 1, "--attack", "span", "--out", tmp_path / "out"]
    result = fedspill("attack", *arguments)
    assert result.returncode == 0 and "10 found" in result.stdout, result.stderr
    assert Run(tmp_path / "out").page.exists()


def test_where_a_scenario_s_images_cannot_be_read_the_row_has_no_scores_and_says_why(
    fedspill, run, tmp_path, monkeypatch
):
    def gone(*asked):
        raise InputError("the data set has moved")

    monkeypatch.setattr("simulator.evaluation.truth.split_data", gone)
    result = fedspill("attack", "--run", run, "--client", 0, "--attack", "span", "--out", tmp_path / "out")
    row = Run(tmp_path / "out").leakage.iloc[0]
    assert result.returncode == 0 and row.status == "ok" and row.num_reconstructed == 6, result.stderr
    assert "the private images cannot be read (the data set has moved)" in row.detail and np.isnan(row.leakage)


def test_a_run_is_not_written_over(fedspill, audited):
    before = (audited.path / "leakage.csv").read_bytes()
    result = fedspill("attack", "--run", audited.path, "--client", 1, "--attack", "span", "--out", audited.path)
    assert result.returncode == 2 and "holds a run, which an attack on one update would replace" in result.stderr
    assert (audited.path / "leakage.csv").read_bytes() == before
