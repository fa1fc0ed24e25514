"""The declared columns: what the page, the tables and the benchmark make of them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from attacks import Knowledge, Observation, Pool, Reconstruction
from attacks.interface.normalization import Normalization
from docs.reference.tables import reference
from simulator.evaluation.evaluator import MEASURES, evaluate
from simulator.evaluation.truth import Truth
from simulator.reports.benchmark_table import benchmark_table
from simulator.results.columns import NUMBER, Column, SchemaError
from simulator.results.ledger import TABLES, Ledger, row_order
from simulator.results.schema import CANDIDATES, CLIENTS, LAYERS, LEAKAGE, SAMPLES, SCORES, benchmark
from simulator.results.threat_models import all_views

PROJECT = Path(__file__).parents[3]
KEY = {"round": 1, "client": 0, "threat_model": "server", "attack": "span", "defense": "none", "seed": 0}
EVERY_TABLE = (*TABLES.values(), benchmark(), CANDIDATES, LAYERS)


def evaluated(seed=0):
    """The evaluation of an attack that returned two of three private images, exactly."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 2))
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    final = {name: value + 0.01 for name, value in initial.items()}
    observation = Observation(model, ((initial, final),), (1, 6, 6), round=1, client=0)
    private, public = torch.rand(3, 1, 6, 6), torch.rand(20, 1, 6, 6)
    truth = Truth(private, Pool(public, private), Normalization((0.0,)), seed=seed)
    found = Reconstruction(images=private[:2].clone(), residual=torch.zeros(2), pixel_mean=(0.0,))
    return evaluate(truth, observation, Knowledge(), found, KEY | {"target": "private", "seed": seed})


def test_the_page_of_columns_is_up_to_date():
    page = PROJECT / "docs" / "reference" / "tables.md"
    assert page.read_text() == reference(), "run: python -m docs.reference.tables > docs/reference/tables.md"


@pytest.mark.parametrize("table", EVERY_TABLE, ids=lambda table: table.name)
def test_every_column_says_what_it_means_and_where_it_comes_from(table):
    for name, column in table.columns.items():
        assert name == column.name and column.meaning
        assert (PROJECT / column.group.source).exists(), column.group.source


def test_the_names_and_the_order_of_the_leakage_table_are_an_interface():
    expected = """round client threat_model attack defense seed target status detail num_private num_inferred
        num_reconstructed l2_min l2_median l2_mean psnr_best psnr_mean ssim_mean recovered recovered_fraction
        floor_l2_median floor_psnr_mean floor_recovered_fraction leakage relative_residual kernel_distance delta_l2
        delta_linf knowledge seconds floor_leakage hungarian_psnr_mean floor_hungarian_psnr_mean membership_auc
        membership_tpr adaptive distilled_l2_median"""
    assert list(LEAKAGE.columns)[:37] == expected.split()


def test_what_the_evaluator_writes_is_declared_and_complete():
    found = evaluated()
    columns, samples = found.columns, found.samples
    LEAKAGE.check(columns)
    assert list(SAMPLES.frame(samples).columns) == list(SAMPLES.columns)
    assert all(set(sample) == set(SAMPLES.columns) for sample in samples)
    of_the_job = (
        "round client threat_model attack defense seed target status detail knowledge seconds adaptive num_vouched"
    )
    of_privacy = "epsilon delta privacy_unit privacy_against adjacency nominal_epsilon guarantees"  # the job's, too
    of_others = "distilled_l2_median distilled_copies_fraction membership_auc membership_tpr"  # nothing of the kind
    of_candidates = "membership_candidates membership_told membership_fpr membership_threshold membership_p"  # no truth
    of_the_told = "class_counts class_error floor_class_error"  # the training was not granted
    missing = set(LEAKAGE.columns) - set(columns) - {*of_the_job.split(), *of_privacy.split()}
    assert missing <= {*of_others.split(), *of_candidates.split(), *of_the_told.split()}


def test_a_frame_has_the_declared_order_and_integers_that_may_be_missing():
    frame = LEAKAGE.frame([{"num_private": 8, "model.width": 64, "round": 1}, {"round": 2}], ["model.width"])
    assert list(frame.columns) == [*LEAKAGE.columns, "model.width"]
    assert frame.num_private.dtype == "Int64" and frame.num_private[0] == 8 and pd.isna(frame.num_private[1])
    with pytest.raises(SchemaError, match=r"'model\.width'"):
        LEAKAGE.frame([{"model.width": 64}])


def test_the_union_of_clients_stands_behind_the_clients():
    keys = [KEY | {"target": "private", "client": client} for client in (-1, 3, 0)]
    assert [key["client"] for key in sorted(keys, key=lambda key: row_order("", key))] == [0, 3, -1]


@pytest.fixture
def brightness(monkeypatch):
    """A metric as one would add it: a measure, and its column."""
    column = Column(
        "brightness", NUMBER, "mean pixel of what came back", SCORES, "0 to 1", title="bright", averaged=True
    )
    monkeypatch.setitem(MEASURES, "brightness", lambda attack: {"brightness": float(attack.found.images.mean())})
    monkeypatch.setitem(LEAKAGE.columns, "brightness", column)


def test_a_metric_that_is_measured_and_declared_is_in_every_table(tmp_path, brightness):
    ledger, evaluations = Ledger(tmp_path), {seed: evaluated(seed) for seed in (0, 1)}
    for seed, found in evaluations.items():
        key = KEY | {"seed": seed, "target": "private"}
        ledger.add("", leakage=[{**key, "status": "ok", "adaptive": False, **found.columns}])
    ledger.write_tables()
    table = pd.read_csv(tmp_path / "leakage.csv")
    assert list(table.columns)[-1] == "brightness"
    assert table.brightness.tolist() == pytest.approx([found.columns["brightness"] for found in evaluations.values()])
    assert "| `brightness` | number, 0 to 1 | mean pixel of what came back |" in reference()
    cells = {
        "": SimpleNamespace(scenario=SimpleNamespace(defense="none", chain=(), views=all_views(["server"], False)))
    }
    record = SimpleNamespace(
        scenario=SimpleNamespace(adversary=SimpleNamespace(attacks=[])),
        cells=cells,
        leakage=table,
        utility=pd.DataFrame([{"round": 1, "defense": "none", "seed": 0, "test_accuracy": 0.5, "epsilon": np.nan}]),
        clients=CLIENTS.frame([{"defense": "none", "status": "ok", "bytes": 1, "seconds": 1.0}]),
    )
    means = benchmark_table(record)
    assert list(means.columns)[-1] == "brightness"
    assert means.brightness.tolist() == pytest.approx([table.brightness.mean()])


def test_a_metric_that_is_measured_but_not_declared_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(MEASURES, "contrast", lambda attack: {"contrast": 1.0})
    columns = evaluated().columns
    with pytest.raises(SchemaError, match="'contrast'"):
        Ledger(tmp_path).add("", leakage=[columns])
