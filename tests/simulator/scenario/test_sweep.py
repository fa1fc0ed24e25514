"""A sweep over strategies in one simulation, with sampling, pretraining and chosen rounds; and its resumption."""

import json

import pandas as pd
import pytest

from simulator.reports.drawing import panel_titles
from simulator.reports.figures import draw_figures
from simulator.run.plan import expected_attacks

PROXIMAL = {"name": "FedProx", "options": {"proximal_mu": 50.0}}
PRIVATE = {
    "name": "DifferentialPrivacyServerSideFixedClipping",
    "options": {"strategy": "FedAvg", "noise_multiplier": 0.1, "clipping_norm": 1.0, "num_sampled_clients": 2},
}
CLIENTS_LEARN_SLOWLY = {"name": "QFedAvg", "options": {"client_learning_rate": 0.1}}
STRATEGIES = ["FedAvg", "FedAdam", PROXIMAL, PRIVATE, CLIENTS_LEARN_SLOWLY, "FedMedian"]
LABELS = [json.dumps(strategy, sort_keys=True) for strategy in STRATEGIES]
FEDAVG, FEDPROX, FEDMEDIAN = LABELS[0], LABELS[2], LABELS[-1]
CONTENT = {
    "name": "strategies",
    "data": {"public": 100, "test": 100},
    "partition": {"images": 3},
    "model": {"width": 32, "depth": 1, "pretrain": {"steps": 20, "learning_rate": 0.2}},
    "federation": {"rounds": 2, "clients": 4, "fraction": 0.5},
    "adversary": {"threat_models": ["server", "observer"], "attacks": [{"name": "ntk", "iterations": 10}], "when": [2]},
    "sweep": {"federation.strategy": STRATEGIES},
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory, run_scenario):
    folder = tmp_path_factory.mktemp("sweep")
    return run_scenario(CONTENT, folder / "out"), folder


def test_every_strategy_runs_and_is_attacked_in_the_chosen_round(swept):
    table = swept[0].leakage
    assert (table.status == "ok").all(), table.detail.tolist()
    assert (table["round"] == 2).all()
    counts = table.groupby("federation.strategy").size().to_dict()
    assert counts == dict.fromkeys(LABELS, 3)  # two of four clients, and their union
    assert all(expected_attacks(cell) == 3 for cell in swept[0].cells.values())


def test_the_schedule_of_clients_comes_from_the_seed_alone(swept):
    clients = swept[0].clients
    schedules = clients.groupby("federation.strategy").apply(lambda g: list(zip(g["round"], g.client, strict=True)))
    assert len(schedules) == len(STRATEGIES) and all(schedule == schedules.iloc[0] for schedule in schedules)


def test_pretraining_starts_the_federation_above_chance(swept):
    start = swept[0].utility.query("round == 0").test_accuracy
    assert (start > 0.3).all() and start.nunique() == 1  # ten classes, the same start for every strategy


def test_a_proximal_client_stays_nearer(swept):
    # FedProx's clients know μ; all else is equal to FedAvg's
    delta = swept[0].leakage.query("threat_model == 'server'").groupby("federation.strategy").delta_l2.mean()
    assert delta[FEDPROX] < 0.9 * delta[FEDAVG]


def test_figures_of_a_sweep(swept):
    paths = draw_figures(swept[0])
    assert {one.path.name for one in paths} >= {"curves.png", "leakage_by_round.png", "reconstructions_server_ntk.png"}
    assert panel_titles(swept[0].leakage).nunique() == len(STRATEGIES)  # settings are not averaged over


def test_an_interrupted_run_keeps_its_finished_cells_and_does_the_others(swept, run_scenario, capsys):
    """One cell was not done yet, a checkpoint of another has been damaged since."""
    record, folder = swept
    journal = record.path / "ledger.jsonl"
    lines = journal.read_text().splitlines()
    last = json.dumps({"done": "strategy=FedMedian"})[:-1]
    journal.write_text("\n".join(line for line in lines if not line.startswith(last)) + "\n")
    for name in ("leakage.csv", "leakage.parquet"):
        (record.path / name).unlink()
    before = record.leakage
    checkpoint = record.store("strategy=FedAvg").checkpoints / "global_0002.safetensors"
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    checkpoint.write_bytes(content)
    again = run_scenario(CONTENT, folder / "out").leakage
    pd.testing.assert_frame_equal(again.drop(columns="seconds"), before.drop(columns="seconds"), check_exact=True)
    said = capsys.readouterr().err
    assert "'strategy=FedAvg' is done again" in said and "global_0002.safetensors' is cut off or changed" in said
    content[len(content) // 2] ^= 1
    assert checkpoint.read_bytes() == content
    untouched = ~before["federation.strategy"].isin([FEDMEDIAN, FEDAVG])
    assert untouched.sum() == 12
    assert (again.seconds[untouched] == before.seconds[untouched]).all()  # not attacked a second time
