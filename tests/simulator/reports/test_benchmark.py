"""The benchmark of defenses: its table from hand-made rows, its file, and a small one on Ray."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from attacks import InputError
from clients.data.partition import split_data
from simulator.errors import CellsFailed
from simulator.reports.benchmark import load_any, load_benchmark
from simulator.reports.benchmark_figures import draw_benchmark, frontier_of
from simulator.reports.benchmark_table import benchmark_table, strongest, write_benchmark
from simulator.results.ledger import Ledger
from simulator.results.schema import LEAKAGE
from simulator.run.folder import claimed

COLUMNS = (
    "defense attack threat_model adaptive seeds leakage leakage_ci95 recovered_fraction recovered_fraction_ci95 "
    "psnr_best psnr_mean membership_auc test_accuracy test_accuracy_ci95 epsilon bytes client_seconds target failures "
    "floor_recovered_fraction floor_leakage mean_image_leakage distilled_l2_median delta privacy_unit privacy_against "
    "adjacency nominal_epsilon guarantees round leakage_low leakage_high recovered_fraction_low "
    "recovered_fraction_high recovered_difference recovered_difference_low recovered_difference_high recovered_pairs "
    "recovered_p test_accuracy_low test_accuracy_high accuracy_difference accuracy_difference_ci95 "
    "prior_success reconstruction_bound"
)
DEFENSES = Path(__file__).parents[3] / "scenarios" / "defenses.yaml"


def record(leakage, utility, clients):
    """As much of a record as the table reads."""
    attacks = [SimpleNamespace(label="span", name="span"), SimpleNamespace(label="span-adaptive", name="span")]
    scenario = SimpleNamespace(adversary=SimpleNamespace(attacks=attacks))
    scenarios = {name: SimpleNamespace(defense=name, chain=(), hides_clients=False) for name in ("none", "noise")}
    cells = {name: SimpleNamespace(scenario=one) for name, one in scenarios.items()}
    return SimpleNamespace(leakage=leakage, utility=utility, clients=clients, scenario=scenario, cells=cells)


def row(defense, seed, client, recovered, status="ok", attack="span", adaptive=False, round=1):
    scores = dict.fromkeys(["leakage", "recovered_fraction", "psnr_best", "psnr_mean", "membership_auc"], recovered)
    scores |= dict.fromkeys(
        "floor_recovered_fraction floor_leakage mean_image_leakage distilled_l2_median".split(), 0.0
    )
    key = {
        "defense": defense,
        "seed": seed,
        "client": client,
        "round": round,
        "threat_model": "server",
        "attack": attack,
    }
    values = scores if status == "ok" else dict.fromkeys(scores, np.nan)
    return key | values | {"status": status, "adaptive": adaptive, "target": "private"}


def test_seeds_are_what_is_averaged_not_clients():
    leakage = pd.DataFrame(
        [
            row("noise", 0, 0, 0.1, adaptive=True, attack="span-adaptive"),
            row("none", 0, 0, 1.0), row("none", 0, 1, 0.8), row("none", 1, 0, 0.5), row("none", 1, 1, 0.0, "failed"),
            row("noise", 0, 0, 0.0, "skipped"), row("noise", 0, -1, 0.25), row("noise", 1, -1, 0.75),
        ]
    )  # fmt: skip
    utility = pd.DataFrame(
        [
            {"round": r, "defense": d, "seed": s, "test_accuracy": 0.1 * r + 0.2 * s, "epsilon": np.nan}
            for r in (0, 1) for d in ("none", "noise") for s in (0, 1)
        ]
    )  # fmt: skip
    clients = pd.DataFrame(
        [{"defense": d, "status": "ok", "bytes": b, "seconds": 1.0} for d, b in (("none", 100), ("noise", 50))]
    )
    table = benchmark_table(record(leakage, utility, clients))
    others = [name for name, column in LEAKAGE.columns.items() if column.averaged and name not in COLUMNS.split()]
    assert list(table.columns) == [*COLUMNS.split(), *others]
    keys = list(zip(table.defense, table.attack, table.adaptive, strict=True))
    assert keys == [("none", "span", False), ("noise", "span", False), ("noise", "span", True)]
    first, second, _ = (table.iloc[i] for i in range(3))
    assert first.recovered_fraction == pytest.approx((0.9 + 0.5) / 2) and first.failures == 1 and first.seeds == 2
    assert first.recovered_fraction_ci95 == pytest.approx(12.7062 * 0.2, rel=1e-4)  # t(0.975, 1) · 0.2828 / √2
    assert first.test_accuracy == pytest.approx(0.2) and math.isnan(first.epsilon)
    assert second.recovered_fraction == pytest.approx(0.5) and second.bytes == 50
    # clients that a defense hides are in no pair: the seeds' means are, 0.25 − 0.9 and 0.75 − 0.5
    assert second.recovered_difference == pytest.approx((-0.65 + 0.25) / 2) and second.recovered_pairs == 2
    assert first.recovered_difference == 0 and first.recovered_pairs == 3 and math.isnan(first.recovered_p)
    assert second.accuracy_difference == pytest.approx(0) and second.accuracy_difference_ci95 == pytest.approx(0)


def test_leakage_and_utility_of_a_row_are_of_one_round():
    leakage = pd.DataFrame([row("none", 0, 0, value, round=r) for r, value in ((1, 0.2), (3, 0.6))])
    utility = pd.DataFrame(
        [
            {"round": r, "defense": "none", "seed": 0, "test_accuracy": r / 10}
            for r in range(6)
        ]
    )  # fmt: skip
    clients = pd.DataFrame([{"defense": "none", "status": "ok", "bytes": 1, "seconds": 1.0}])
    table = benchmark_table(record(leakage, utility, clients))
    shown = table[["round", "recovered_fraction", "test_accuracy"]].to_numpy().tolist()
    assert shown == [[1, 0.2, 0.1], [3, 0.6, 0.3]]
    assert strongest(table)["round"].tolist() == [3]  # what is printed is of the last attacked round


def test_the_history_of_clients_and_of_their_union_are_not_averaged():
    leakage = pd.DataFrame([row("none", 0, 0, 1.0), row("none", 0, -1, 0.0)]).assign(threat_model="history")
    utility = pd.DataFrame([{"round": 1, "defense": "none", "seed": 0, "test_accuracy": 0.5, "epsilon": np.nan}])
    clients = pd.DataFrame([{"defense": "none", "status": "ok", "bytes": 1, "seconds": 1.0}])
    table = benchmark_table(record(leakage, utility, clients)).set_index("threat_model")
    assert table.recovered_fraction.to_dict() == {"history": 1.0, "history_all": 0.0}


def test_attacks_of_one_name_and_labels_of_their_own_are_not_averaged():
    leakage = pd.DataFrame(
        [row("none", 0, 0, value, attack=label) for label, value in (("ntk-a", 1.0), ("ntk-b", 0.0))]
    )
    utility = pd.DataFrame([{"round": 1, "defense": "none", "seed": 0, "test_accuracy": 0.5, "epsilon": np.nan}])
    clients = pd.DataFrame([{"defense": "none", "status": "ok", "bytes": 1, "seconds": 1.0}])
    ran = record(leakage, utility, clients)
    ran.scenario.adversary.attacks = [SimpleNamespace(label=label, name="ntk") for label in ("ntk-a", "ntk-b")]
    table = benchmark_table(ran)
    assert list(zip(table.attack, table.recovered_fraction, strict=True)) == [("ntk-a", 1.0), ("ntk-b", 0.0)]


def test_a_defense_whose_clients_all_failed_has_a_row_without_costs():
    leakage = pd.DataFrame([row("none", 0, 0, 1.0), row("noise", 0, 0, 0.0, "failed")])
    utility = pd.DataFrame([{"round": 1, "defense": "none", "seed": 0, "test_accuracy": 0.5, "epsilon": np.nan}])
    clients = pd.DataFrame(
        [
            {"defense": "none", "status": "ok", "bytes": 100, "seconds": 1.0},
            {"defense": "noise", "status": "failed", "bytes": np.nan, "seconds": np.nan},
        ]
    )
    table = benchmark_table(record(leakage, utility, clients))
    assert table.defense.tolist() == ["none", "noise"] and table.failures.tolist() == [0, 1]
    assert table.bytes[0] == 100 and math.isnan(table.bytes[1]) and math.isnan(table.leakage[1])


def test_a_benchmark_with_failed_cells_writes_the_table_of_the_others(tmp_path, monkeypatch, fedspill):
    def run_all_but_one(plan, display, overwrite, verbose):
        with claimed(plan):
            ledger = Ledger(plan.run_dir)
        key = {"round": 1, "seed": 0}
        client = {**key, "client": 0, "defense": "none", "status": "ok", "bytes": 8, "seconds": 1.0}
        utility = {**key, "defense": "none", "test_accuracy": 0.5}
        ledger.add("a", leakage=[row("none", 0, 0, 0.5)], clients=[client], utility=[utility])
        ledger.write_tables()
        raise CellsFailed("1 of 2 cells failed: b")

    monkeypatch.setattr("simulator.run.engine.simulate", run_all_but_one)
    path = tmp_path / "b.yaml"
    path.write_text("name: b\nbenchmark: {defenses: [none, noise], seeds: 1}\n")
    stopped = fedspill("benchmark", path, "--out", tmp_path / "out")
    assert (stopped.returncode, stopped.stderr) == (1, "fedspill: 1 of 2 cells failed: b\n")
    assert pd.read_csv(tmp_path / "out" / "benchmark.csv").leakage.tolist() == [0.5]


def test_the_frontier_is_what_nothing_beats_in_both():
    rows = pd.DataFrame(
        {
            "defense": list("abcd"),
            "test_accuracy": [0.9, 0.8, 0.7, 0.7],
            "recovered_fraction": [1.0, 0.2, 0.5, 0.0],
        }
    )
    assert frontier_of(rows).defense.tolist() == ["a", "b", "d"]


def test_the_shipped_benchmark_has_every_defense_in_both_profiles():
    wanted = "none clipping noise top_k random_k quantization secure_aggregation central_dp local_dp dp_sgd".split()
    wanted += (
        "sign_sgd power_sgd percentile svt soteria half_precision secagg_plus personal_layers adam bfloat16".split()
    )
    for profile, seeds in ((None, 5), ("quick", 1)):
        cells = load_benchmark(DEFENSES, profile).cells()
        defenses = {cell.scenario.defense for cell in cells}
        assert {*wanted, "prune_easiest", "augmentation", "mixup"} <= defenses
        assert len(cells) == seeds * len(defenses)
        one = cells[0].scenario
        joined = one.federation.clients * one.federation.fraction
        assert joined * one.partition.images <= 40  # 8x8 digits tell no more apart
        assert one.adversary.when == [one.federation.rounds]  # accuracy and ε of the table are those of the release


def test_every_setting_of_the_sweep_over_strengths_is_a_row_of_its_own():
    scenario = load_benchmark(DEFENSES.with_name("equal_utility.yaml"), "quick")
    names = [cell.scenario.defense for cell in scenario.cells()]
    assert names[:2] == ["none", "none"] and len(names) == 2 * len(set(names))
    assert {"dp_sgd=10000.0", "dp_sgd=1.0", "noise=0.1", "central_dp=1.0"} <= set(names)


ROWS = """
name: x
benchmark:
  defenses:
    - none
    - {name: noise, scale: 0.5, label: loud}
    - {label: adam, set: {training.optimizer: adam, training.learning_rate: 0.001}}
    - {label: quiet, defenses: [{name: noise, scale: 0.01}], set: {model.width: 64}}
  strengths: {noise: {name: noise, scale: [0.1, 1.0]}}
  seeds: 1
  profiles: {quick: {benchmark: {seeds: 2}}}
"""


def written(tmp_path, text):
    path = tmp_path / "b.yaml"
    path.write_text(text)
    return path


def test_a_row_may_set_training_and_model_and_a_strength_is_a_row_for_each_value(tmp_path):
    scenario = load_benchmark(written(tmp_path, ROWS))
    cells = {cell.scenario.defense: cell for cell in scenario.cells()}
    assert list(cells) == ["none", "loud", "adam", "quiet", "noise=0.1", "noise=1.0"]
    assert cells["adam"].scenario.training.optimizer == "adam" and cells["adam"].scenario.training.learning_rate == 1e-3
    assert cells["none"].scenario.training.optimizer == "sgd" and cells["none"].scenario.model.options == {}
    quiet = cells["quiet"].scenario
    assert quiet.model.options == {"width": 64} and quiet.defenses[0].options == {"scale": 0.01}
    assert cells["adam"].name == "defense=adam,seed=0" and cells["adam"].swept == {
        "cell": cells["adam"].name,
        "seed": 0,
    }
    assert cells["noise=1.0"].scenario.defenses[0].options == {"scale": 1.0}


def test_the_command_line_has_the_last_word_on_a_benchmark(tmp_path):
    path = written(tmp_path, ROWS)
    own = ["benchmark.defenses=[none, noise]", "benchmark.strengths={}", "benchmark.seeds=3", "model.width=77"]
    cells = load_benchmark(path, "quick", own).cells()
    assert [cell.scenario.defense for cell in cells] == ["none"] * 3 + ["noise"] * 3
    assert {cell.scenario.model.options["width"] for cell in cells} == {77}
    assert len(load_any(path, "quick").cells()) == 12 and len(load_any(path).cells()) == 6
    with pytest.raises(InputError, match=r"benchmark\.sedes"):
        load_any(path, None, ["benchmark.sedes=3"])
    with pytest.raises(InputError, match="only a benchmark file has profiles"):
        load_any(written(tmp_path, "name: x\n"), "quick")


def test_mnist_takes_the_place_of_digits_where_its_folder_is_given():
    scenario = load_benchmark(DEFENSES, None, ["data.root=/somewhere", "model.width=777"])
    assert scenario.data.name == "mnist" and scenario.partition.images == 20 and scenario.model.options["width"] == 777


@pytest.mark.parametrize(
    ("text", "profile", "says"),
    [
        ("name: x\n", None, "has a section `benchmark`"),
        ("name: x\nbenchmark: {defenses: [none], profiles: {quick: {}}}\n", "quik", "did you mean 'quick'?"),
        ("name: x\nbenchmark: {defenses: []}\n", None, "benchmark.defenses"),
        ("name: x\nbenchmark: {defenses: [none], seed: 3}\n", None, "benchmark.seed"),
        ("name: x\nseed: abc\nbenchmark: {defenses: [none]}\n", None, "line 2: seed is 'abc'"),
        ("name: x\nseed: null\nbenchmark: {defenses: [none]}\n", None, "line 2: seed is None"),
        ("name: x\ndata: [1]\nbenchmark: {defenses: [none]}\n", None, "line 2: data is [1]"),
        ("name: x\ndata: digits\nbenchmark: {defenses: [none], with_root: {data: {}}}\n", None, "data is 'digits'"),
        ("name: x\nsweep: {seed: [1]}\nbenchmark: {defenses: [none]}\n", None, "line 2: a benchmark sweeps over its"),
        ("name: x\nbenchmark: {defenses: [cliping]}\n", None, "did you mean 'clipping'?"),
        (
            "name: x\nbenchmark:\n  defenses: [{label: a, sett: {}}]\n",
            None,
            "line 3: defenses: a row has no key 'sett'; did you mean 'set'?",
        ),
        ("name: x\nbenchmark:\n  defenses: [{set: {}}]\n", None, "needs a `label`"),
        ("name: x\nbenchmark:\n  defenses: [{label: a, set: {seed: 1}}]\n", None, "row 'a' cannot set 'seed'"),
        (
            "name: x\nbenchmark:\n  defenses: [{label: a, set: {training.optimiser: adam}}]\n",
            None,
            "line 3: unknown key 'training.optimiser'; did you mean 'optimizer'? (row 'a')",
        ),
        ("name: x\nbenchmark: {defenses: [none], strengths: {a: {name: noise}}}\n", None, "strengths.a is"),
        (
            "name: x\nbenchmark: {defenses: [[secure_aggregation, central_dp]]}\n",
            None,
            "use {name: central_dp, clipping: client}",
        ),
    ],
)
def test_bad_benchmarks_say_what_is_wrong(tmp_path, text, profile, says):
    path = tmp_path / "b.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_benchmark(path, profile)
    assert says in str(caught.value)


CHAINS = [
    [],
    ["clipping"],
    ["secure_aggregation"],
    ["central_dp"],
    ["local_dp"],
    [{"name": "dp_sgd", "epsilon": 8.0}],
    ["flwr.clientapp.mod:message_size_mod", {"name": "noise", "scale": 10.0}],
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory, run_scenario):
    content = {
        "name": "defended",
        "data": {"public": 100, "test": 100},
        "partition": {"images": 6},
        "model": {"width": 256},
        "training": {"learning_rate": 0.1, "epochs": 4, "batch_size": 3},
        "federation": {"rounds": 2, "clients": 2},
        "adversary": {
            "threat_models": ["server", "observer"],
            "attacks": ["span", {"name": "span", "adaptive": True}],
            "when": [1],
        },
        "sweep": {"defenses": CHAINS, "seed": [0]},
    }
    return run_scenario(content, tmp_path_factory.mktemp("defended") / "out")


@pytest.mark.slow
def test_defenses_in_one_simulation(ran):
    table = write_benchmark(ran).set_index(["defense", "threat_model", "adaptive"])
    recovered = table.recovered_fraction.to_dict()
    assert recovered["none", "server", False] == 1.0
    assert recovered["clipping", "server", False] == 1.0  # a scalar does not change row spaces
    assert recovered["secure_aggregation", "server", False] == 1.0  # of the sum of 12 images at width 256
    assert recovered["central_dp", "server", False] == 1.0  # clipped and noised after the server saw it
    for protected in (("central_dp", "observer"), ("local_dp", "server"), ("dp_sgd", "server")):
        assert recovered[(*protected, False)] <= 0.2
    assert (
        *("message_size_mod+noise", "server"),
        True,
    ) in recovered  # an adaptive row where there is something to know
    assert ("none", "server", True) not in recovered
    assert table.epsilon["none"].isna().all() and table.guarantees["none"].isna().all()


@pytest.mark.slow
def test_epsilon_is_for_the_eyes_of_the_row_and_of_the_round_attacked(ran):
    """Round 1 of 2: local_dp's formula says 8, the analytic Gaussian mechanism 7.91; dp_sgd spends 8 in both rounds."""
    table = write_benchmark(ran).set_index(["defense", "threat_model", "adaptive"])
    assert table.epsilon["local_dp"].tolist() == pytest.approx([7.91] * 4, abs=0.01)
    assert table.nominal_epsilon["local_dp"].eq(8.0).all() and table.privacy_unit["local_dp"].eq("client").all()
    assert table.epsilon["dp_sgd"].between(4, 7.5).all() and table.privacy_unit["dp_sgd"].eq("record").all()
    assert table.epsilon["central_dp", "server"].isna().all()  # it holds against the observer only
    assert table.epsilon["central_dp", "observer"].tolist() == pytest.approx([4.377] * 2, abs=1e-3)
    rows = ran.leakage[(ran.leakage.defense == "central_dp") & (ran.leakage.threat_model == "server")]
    assert rows.detail.str.contains("no guarantee against the server").all()
    assert not rows.adaptive.any()  # the server is told nothing of noise that it adds itself
    last = ran.utility[(ran.utility.defense == "dp_sgd") & (ran.utility["round"] == 2)]
    assert last.epsilon.between(7.5, 8.0).all()


def test_figures_of_a_benchmark_without_a_score(tmp_path):
    """Every attack failed: no figure, and no error."""
    leakage = pd.DataFrame([row("none", 0, 0, 1.0, "failed")])
    utility = pd.DataFrame([{"round": 1, "defense": "none", "seed": 0, "test_accuracy": 0.5, "epsilon": np.nan}])
    clients = pd.DataFrame([{"defense": "none", "status": "ok", "bytes": 1, "seconds": 1.0}])
    ran = record(leakage, utility, clients)
    ran.path = tmp_path
    assert draw_benchmark(ran, benchmark_table(ran)) == []


@pytest.mark.slow
def test_secure_aggregation_shows_the_server_the_sum_only(ran):
    own = ran.leakage[ran.leakage.defense == "secure_aggregation"]
    skipped = own[own.status == "skipped"]
    assert sorted(skipped.client.unique()) == [0, 1] and skipped.detail.str.contains("sum of the round's updates").all()
    assert set(own[own.status == "ok"].client) == {-1}
    cell = "defense=secure_aggregation,seed=0"
    assert not list((ran.path / "cells" / cell / "checkpoints").glob("client_*.safetensors"))


@pytest.mark.slow
def test_a_benchmark_draws_its_frontier_and_its_images(ran):
    paths = draw_benchmark(ran, write_benchmark(ran))
    assert [one.path.name for one in paths] == ["frontier.png", "exposure.png", "reconstructions.png"]
    assert all(one.path.stat().st_size > 10_000 for one in paths)
    same = paths[-1].alt  # the client's images under secure aggregation are found among those of the union
    assert "none: 6 of 6 (span)" in same and "secure_aggregation: 12 of 12 (all clients, span)" in same


@pytest.mark.slow
def test_an_adaptive_attack_repeated_from_the_command_line_knows_the_defense_again(ran, fedspill, tmp_path):
    name = next(name for name in ran.cells if "noise" in name)
    cell = ["--run", ran.path, "--client", "0", "--cell", name]
    for label, knows in (("span", {}), ("span-adaptive", {"noise_scale": 10.0})):
        result = fedspill("attack", *cell, "--attack", label, "--out", tmp_path / label)
        assert result.returncode == 0, result.stderr
        facts = json.loads((tmp_path / label / "facts.json").read_text())
        of_participants = {name: facts["knowledge"].pop(name) for name in ("pixel_mean", "pixel_range")}
        assert of_participants["pixel_range"] == [0.0, 1.0]
        assert facts["knowledge"] == knows


@pytest.mark.slow
def test_members_and_diagnosis_of_a_recorded_observation(ran, fedspill, tmp_path):
    """Of the undefended update of client 0: what it trained on scores above the public images, and the evaluator's
    version of the diagnosis sees that the private images' gradients span it."""
    cell = ["--run", ran.path, "--client", "0", "--cell", "defense=none,seed=0"]
    scenario = ran.cells["defense=none,seed=0"].scenario
    data = split_data(scenario.data, scenario.partition, scenario.federation.clients, scenario.seed)
    private, public = data.client(0)[0], data.public()[0][:20]
    np.savez(tmp_path / "some.npz", images=np.concatenate([private, public]))
    result = fedspill("member", *cell, "--candidates", tmp_path / "some.npz", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    scores = pd.read_csv(tmp_path / "membership.csv").score
    assert scores[: len(private)].min() > scores[len(private) :].max()
    result = fedspill("diagnose", *cell, "--evaluator", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    facts = json.loads((tmp_path / "diagnose.json").read_text())
    assert facts["view"] == "evaluator" and facts["images"] == len(private) == 6 and facts["unexplained"] < 0.5
