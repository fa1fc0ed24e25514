"""Whole runs on Ray. Each simulation takes some twenty seconds to come up, so few of them serve many assertions."""

import json
import os

import numpy as np
import pandas as pd
import pytest
import ray
import torch
import yaml
from sklearn.datasets import load_digits

from attacks import InputError
from simulator.results.keys import ObservationKey
from simulator.results.ledger import JOURNAL, read_journal
from simulator.results.schema import LEAKAGE
from simulator.run.cluster import stop_ray
from simulator.run.plan import make_plan
from simulator.run.run_folder import needs_run
from simulator.run_errors import RunError
from simulator.scenario.scenario import load_scenario

pytestmark = pytest.mark.slow

ATTACKED = {
    "threat_models": ["server", "observer", "history"],
    "attacks": [{"name": "ntk", "iterations": 60, "kernel": "hybrid"}],
    "knowledge": ["pixel_mean"],
}


def scenario(root, **sections):
    base = {
        "name": "small",
        "data": {"name": "npz", "root": str(root), "public": 100, "test": 100},
        "partition": {"images": [4, 5]},
        "model": {"width": 64},
        "federation": {"rounds": 2, "clients": 2},
        "adversary": ATTACKED,
    }
    return base | sections


def write_digits(folder):
    images, labels = load_digits().images, load_digits().target
    path = folder / "digits.npz"
    np.savez(path, x_train=(images / 16).astype(np.float32), y_train=labels)
    return path


@pytest.fixture(scope="module")
def swept(tmp_path_factory, run_scenario):
    """Two seeds in one simulation, on a Ray that believes it has a GPU. The data are gone afterwards."""
    folder = tmp_path_factory.mktemp("run")
    data = write_digits(folder)
    stop_ray()
    ray.init("local", num_cpus=2, num_gpus=1, resources={"attack": 2}, include_dashboard=False, log_to_driver=False)
    content = scenario(data, engine={"gpus": 0.4}, sweep={"seed": [0, 1]})
    record = run_scenario(content, folder / "out")
    stop_ray()
    data.unlink()
    return record


def test_every_round_client_and_threat_model_has_a_row(swept):
    table = swept.leakage
    assert list(table.columns)[: len(LEAKAGE.columns)] == list(LEAKAGE.columns)
    assert (table.status == "ok").all(), table.detail.tolist()
    keys = list(zip(table.seed, table["round"], table.client, table.threat_model, strict=True))
    views = [(0, "history"), (0, "server"), (1, "history"), (1, "server"), (-1, "history"), (-1, "observer")]
    assert keys == [(seed, round, *view) for seed in (0, 1) for round in (1, 2) for view in views]


def test_private_sets_are_counted_and_inferred(swept):
    sizes = swept.leakage.groupby("client").num_private.unique().map(list).to_dict()
    assert sizes == {-1: [9], 0: [4], 1: [5]}
    assert (swept.leakage.num_inferred == swept.leakage.num_private).all()
    assert (swept.leakage.num_reconstructed == 2 * swept.leakage.num_private).all()
    assert len(swept.samples) == swept.leakage.num_private.sum()


def test_scores_stand_beside_their_floors(swept):
    table = swept.leakage
    for column in ("floor_l2_median", "floor_psnr_mean", "floor_recovered_fraction", "kernel_distance", "delta_l2"):
        assert table[column].notna().all()
    assert table.leakage.between(0, 1).all() and (table.leakage > 0.1).any()
    assert (table.recovered <= table.num_private).all()


def test_every_row_says_whether_the_update_is_in_the_kernel_regime(swept):
    table = swept.leakage
    for column in ("linearization_error", "hessian_norm", "attacker_kernel_distance", "attacker_linearization_error"):
        assert (table[column] > 0).all()
    assert table.verdict.notna().all() and (table.attacker_images == "reconstructed").all()
    own = table[table.threat_model == "server"]
    assert (own.unexplained < 0.5).all() and (table.delta_linf < table.delta_l2).all()


def test_ranks_and_members_of_an_observation(swept):
    for client, threat, count in ((1, "server", 5), (-1, "observer", 9)):
        key = ObservationKey(2, client, threat)
        assert swept.store("seed=0").recorded(key).clients == ((1,) if client == 1 else (0, 1))
        observation, _ = swept.observation(2, client, threat, cell="seed=0")
        row = swept.leakage.query("seed == 0 and round == 2 and client == @client and threat_model == @threat").iloc[0]
        assert row.num_private == count and json.loads(row.layer_ranks)["1"][0] == count
        assert row.delta_l2 == pytest.approx(float(sum(v.square().sum() for v in observation.delta().values())) ** 0.5)


def test_the_table_says_what_the_adversary_was_told(swept):
    assert swept.leakage.knowledge.str.fullmatch(r'\{"pixel_mean": \[0\.\d+\], "pixel_range": \[0\.0, 1\.0\]\}').all()


def test_clients_ran_in_ray_workers_with_their_gpu_share_and_fell_back_to_the_cpu(swept):
    clients = swept.clients
    assert len(clients) == 8 and (clients.worker == "ray-worker").all()
    assert os.getpid() not in set(clients.pid)
    assert (clients.gpu_ids == "0").all()  # what ray.get_gpu_ids() said inside the client
    assert (clients.device == "cpu").all()


def test_utility_of_every_round(swept):
    utility = swept.utility
    assert list(zip(utility.seed, utility["round"], strict=True)) == [(s, r) for s in (0, 1) for r in (0, 1, 2)]
    assert utility.test_accuracy.between(0, 1).all()


def test_a_recorded_observation_gives_the_same_bits_without_the_data(swept):
    for round, client, threat in ((1, 0, "server"), (1, -1, "observer"), (2, 1, "history"), (2, -1, "history")):
        store = swept.store("seed=1")
        live = store.reconstruction_path(ObservationKey(round, client, threat), "ntk")
        again = swept.attack(round, client, "ntk", threat, cell="seed=1")
        assert np.array_equal(np.load(live)["images"], again.pixels().numpy())


def test_a_history_holds_the_pairs_of_all_rounds_and_no_checkpoint_twice(swept):
    for client, single in ((0, "server"), (-1, "observer")):
        first, second, both = (
            swept.observation(round, client, threat, cell="seed=0")[0].pairs
            for round, threat in ((1, single), (2, single), (2, "history"))
        )
        assert len(both) == 2
        for pair, other in zip(both, (*first, *second), strict=True):
            assert all(torch.equal(a[name], b[name]) for a, b in zip(pair, other, strict=True) for name in a)
    kept = sorted(path.name for path in swept.store("seed=0").checkpoints.glob("*.safetensors"))
    assert len(kept) == 7, kept  # three global ones, and what two clients returned twice


def test_a_history_of_one_round_is_what_the_single_view_sees(swept):
    table = swept.leakage.query("round == 1").set_index(["seed", "client", "threat_model"])
    for client, single in ((0, "server"), (-1, "observer")):
        for column in ("num_private", "num_inferred", "delta_l2", "kernel_distance", "knowledge"):
            assert table.loc[(0, client, "history"), column] == table.loc[(0, client, single), column]


def test_the_attack_gets_its_number_of_images_from_the_update_alone(swept):
    observation, knowledge = swept.observation(1, 1, cell="seed=0")
    assert knowledge.given().keys() == {"pixel_mean", "pixel_range"}
    seen = {"model", "pairs", "input_shape", "round", "client", "threat_model"}
    assert set(vars(observation)) <= seen | {"trainable", "kept"}  # names of tensors, the latter of those not sent


def test_cells_of_a_sweep_are_paired_by_seed_and_differ(swept):
    table = swept.leakage.set_index(["seed", "round", "client", "threat_model"])
    assert (table.loc[0].l2_mean != table.loc[1].l2_mean).all()


def test_a_finished_run_is_recognized(swept):
    assert read_journal(swept.path / JOURNAL).done == set(swept.cells) == {"seed=0", "seed=1"}


def test_the_same_scenario_gives_the_same_table(swept, tmp_path, run_scenario):
    content = scenario(write_digits(tmp_path))
    table = run_scenario(content, tmp_path / "again").leakage
    before = swept.leakage[swept.leakage.seed == 0].reset_index(drop=True).drop(columns="cell")
    pd.testing.assert_frame_equal(table.drop(columns="seconds"), before.drop(columns="seconds"), check_exact=True)


RAISES_ON_SEVEN_IMAGES = """
from torch import nn
class Faulty(nn.Sequential):
    def forward(self, images):
        if self.training and len(images) == 7:
            raise RuntimeError("out of cheese")
        return super().forward(images)
def make():
    return Faulty(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
"""


def test_too_many_failures_stop_the_run_and_say_why(tmp_path, run_scenario):
    model = tmp_path / "faulty_model.py"
    model.write_text(RAISES_ON_SEVEN_IMAGES)
    content = {
        "name": "faulty",
        "data": {"public": 50, "test": 50},
        "partition": {"images": [8, 7]},
        "model": {"name": f"{model}:make"},
        "training": {"steps": 1},
        "federation": {"rounds": 1, "clients": 2, "max_failures": 0.4},
        "adversary": {"attacks": [{"name": "ntk", "iterations": 20}, "mean_image"]},
    }
    with pytest.raises(RunError, match=r"1 of 2 clients failed.*max_failures = 0.4.*out of cheese"):
        run_scenario(content, tmp_path / "stopped")
    table = pd.read_csv(tmp_path / "stopped" / "leakage.csv")
    assert table.status.tolist() == ["failed", "failed"]  # what was known is kept, for both attacks
    plan = make_plan(load_scenario(tmp_path / "stopped.yaml"), tmp_path / "stopped")
    assert needs_run(plan)  # it did not finish: the same command tries again


def test_a_share_that_ray_does_not_have_is_refused(tmp_path, run_scenario):
    with pytest.raises(InputError, match=r"engine.gpus is 0.5 GPU per client, Ray has 0"):
        run_scenario({"name": "greedy", "engine": {"gpus": 0.5}}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_attacks_that_ran_out_of_time_are_tried_again_by_the_same_command(tmp_path, run_scenario):
    """Of two cells the attacks of one are given too little; nothing is trained again, and all other rows are kept."""
    content = {
        "name": "late",
        "data": {"public": 30, "test": 30},
        "partition": {"images": 3},
        "model": {"width": 16, "depth": 1},
        "training": {"steps": 1},
        "federation": {"rounds": 1, "clients": 2},
        "adversary": {
            # several times as much as the first takes in a process that has just started, and a fraction of the second
            "attacks": ["mean_image", {"name": "ntk", "iterations": 8000, "patience": 0}],
            "timeout": 1.5,
        },
        "output": {"figures": False, "diagnostics": False},
    }
    first = run_scenario(content, tmp_path / "out")
    assert first.leakage.status.tolist() == ["ok", "timeout"] * 2
    assert first.leakage.detail[1] == "no result within adversary.timeout = 1.5 processor seconds"
    before, clients = first.leakage[first.leakage.status == "ok"], first.clients
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(content))
    plan = make_plan(load_scenario(path, ["adversary.timeout=600"]), tmp_path / "out")
    assert needs_run(plan)
    content["adversary"]["timeout"] = 600
    second = run_scenario(content, tmp_path / "out")
    assert second.leakage.attack.tolist() == ["mean_image", "ntk"] * 2 and (second.leakage.status == "ok").all()
    pd.testing.assert_frame_equal(second.leakage[second.leakage.attack == "mean_image"], before)  # seconds and all
    pd.testing.assert_frame_equal(second.clients, clients)  # nobody trained again
    assert second.samples.groupby("attack").size().to_dict() == {"mean_image": 6, "ntk": 6}
    assert not needs_run(plan)
