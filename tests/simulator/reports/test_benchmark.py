"""The benchmark of defenses: its table from hand-made rows."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from flwr.app import ArrayRecord
from scipy import optimize, stats

from clients.defenses.guarantee import Guarantee
from clients.local_update import load_data, make_model
from simulator.adversary.reply import ClientReply
from simulator.reports.benchmark_figures import draw_benchmark, frontier_of
from simulator.reports.benchmark_table import benchmark_table, strongest
from simulator.reports.tables import untested
from simulator.results.ledger import Ledger
from simulator.results.privacy import privacy_columns
from simulator.results.schema import CLIENTS, LEAKAGE, UTILITY
from simulator.results.threat_models import all_views
from simulator.run.federation import Utility
from simulator.run.run_folder import claimed
from simulator.run_errors import CellsFailed
from simulator.scenario.scenario import validate
from simulator.scenario.yaml_source import YamlSource

COLUMNS = (
    "defense attack threat_model adaptive seeds leakage leakage_ci95 recovered_fraction recovered_fraction_ci95 "
    "psnr_best psnr_mean membership_auc test_accuracy test_accuracy_ci95 epsilon bytes client_seconds target failures "
    "floor_recovered_fraction floor_leakage mean_image_leakage distilled_l2_median delta privacy_unit privacy_against "
    "adjacency nominal_epsilon guarantees round leakage_low leakage_high recovered_fraction_low "
    "recovered_fraction_high recovered_difference recovered_difference_low recovered_difference_high recovered_pairs "
    "recovered_p test_accuracy_low test_accuracy_high accuracy_difference accuracy_difference_ci95 "
    "not_attacked_by prior_success reconstruction_bound"
)


def record(leakage, utility, clients):
    """As much of a record as the table reads."""
    attacks = [SimpleNamespace(label="span", name="span"), SimpleNamespace(label="span-adaptive", name="span")]
    scenario = SimpleNamespace(adversary=SimpleNamespace(attacks=attacks))
    views = all_views(["server", "observer", "history"], hides_clients=False)
    scenarios = {name: SimpleNamespace(defense=name, chain=(), views=views) for name in ("none", "noise")}
    cells = {name: SimpleNamespace(scenario=one) for name, one in scenarios.items()}
    clients = CLIENTS.frame(clients)
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


def one_row_of_each(rows):
    """What the table says of rows of one seed, by defense."""
    utility = pd.DataFrame([{"round": 1, "defense": d, "seed": 0, "test_accuracy": 0.5} for d in ("none", "noise")])
    clients = pd.DataFrame([{"defense": d, "status": "ok", "bytes": 1, "seconds": 1.0} for d in ("none", "noise")])
    ran = record(pd.DataFrame(rows), utility, clients)
    ran.scenario.adversary.attacks += [SimpleNamespace(label=name, name=name) for name in ("ntk", "gradient_matching")]
    return benchmark_table(ran)


def test_a_row_names_the_attacks_that_gave_no_result_with_the_reason():
    """`span` refuses noise: that is a result where all others ran, and none where one of them did not."""
    counts = {"num_reconstructed": 2, "num_held": 0, "detail": "fine"}
    refused = {"num_reconstructed": 0, "num_held": 0, "detail": "the update has rank 64; and more"}
    late = {"num_reconstructed": None, "num_held": None, "detail": "no result within 1 s"}
    plain = [row("none", 0, 0, 1.0, attack=name) | counts for name in ("span", "ntk", "gradient_matching")]
    noise = [row("noise", 0, 0, 0.0) | refused, row("noise", 0, 0, 0.3, attack="ntk") | counts]
    for last, said in (
        (None, "span (refused: the update has rank 64); gradient_matching (not run)"),
        (row("noise", 0, 0, 0.0, "timeout", "gradient_matching") | late,
         "span (refused: the update has rank 64); gradient_matching (timeout: no result within 1 s)"),
        (row("noise", 0, 0, 0.4, attack="gradient_matching") | counts, None),
    ):  # fmt: skip
        table = one_row_of_each([*plain, *noise, *([] if last is None else [last])])
        found = table.groupby("defense").not_attacked_by.agg(lambda own: own.iloc[0])
        assert pd.isna(found["none"]) and (pd.isna(found["noise"]) if said is None else found["noise"] == said)
        assert untested(table) == ([] if said is None else [f"not attacked by {said}: noise (server)"])
        best = strongest(table)
        assert set(best[best.not_attacked_by.isna()].defense) == ({"none"} if said else {"none", "noise"})


def test_the_strongest_attack_is_the_one_that_has_most_be_it_held_back():
    rows = [
        row("none", 0, 0, 0.0) | {"held_fraction": 0.5},
        row("none", 0, 0, 0.1, attack="ntk") | {"held_fraction": 0.1},
    ]
    (best,) = strongest(one_row_of_each(rows)).itertuples()
    assert (best.attack, best.recovered_fraction, best.leak) == ("span", 0.0, 0.5)


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


def epsilon_of_gaussian(shift, delta=1e-5):
    """Balle and Wang (2018), theorem 8, for sensitivity over noise = shift."""

    def missing(epsilon):
        above, below = (stats.norm.cdf(sign * shift / 2 - epsilon / shift) for sign in (1, -1))
        return above - math.exp(epsilon) * below - delta

    return optimize.brentq(missing, 0, 100, xtol=1e-9)


class Rows(dict):
    """A ledger that keeps what is added."""

    def add(self, cell, **tables):
        for name, rows in tables.items():
            self.setdefault(name, []).extend(rows)


def test_epsilon_bound_and_accuracy_are_of_the_same_clients_though_others_are_attacked():
    """Client 2 took part in four rounds, those of the last round, who are attacked, in two and in one. With a noise
    multiplier of 1 a client in k rounds moves what is released by √k standard deviations."""
    content = {
        "name": "s",
        "data": {"public": 30, "test": 30},
        "partition": {"images": 3},
        "model": {"width": 4, "depth": 1},
        "federation": {"rounds": 5, "clients": 3},
        "defenses": ["central_dp"],
        "adversary": {"threat_models": ["observer", "server"], "attacks": ["span"]},
    }
    cell, ledger, asked = validate(YamlSource(content)).cells()[0], Rows(), [[2], [2], [0, 2], [2], [0, 1]]
    data = load_data(cell.client_config(use_gpu=False))
    model = make_model(cell.client_config(use_gpu=False), data)
    measured = Utility(cell, data, model, ledger)
    for round, clients in enumerate(asked, start=1):
        for client in clients:
            spent = epsilon_of_gaussian(math.sqrt(sum(client in some for some in asked[:round])))
            promised = (Guarantee("central_dp", spent, 1e-5, "client", "observer", "add_remove"),)
            columns = {"client": client, "status": "ok", "steps": 1, "num_examples": 3, "last_loss": 1.0}
            columns |= {"bytes": 1, "seconds": 1.0, **privacy_columns(promised)}
            measured.note(round, ClientReply(client, "ok", "", object(), columns, promised))
        measured.measure(round, ArrayRecord(model.state_dict()))
    ran = SimpleNamespace(scenario=cell.scenario, cells={"": cell}, clients=CLIENTS.frame(ledger["clients"]))
    ran.utility = UTILITY.frame(ledger["utility"])
    rows = [row("central_dp", 0, -1, 0.0, round=5) | {"threat_model": view} for view in ("observer", "server")]
    ran.leakage = pd.DataFrame(rows)
    table, after = benchmark_table(ran).set_index("threat_model"), ran.utility.set_index("round").loc[5]
    observer = table.loc["observer"]
    assert observer.epsilon == after.epsilon == pytest.approx(epsilon_of_gaussian(2.0))  # √4
    assert observer.epsilon == pytest.approx(9.997, abs=1e-3)  # 6.572 is that of the attacked client with two rounds
    assert observer.reconstruction_bound == pytest.approx(stats.norm.cdf(stats.norm.ppf(observer.prior_success) + 2))
    assert observer.test_accuracy == after.test_accuracy
    assert math.isnan(table.epsilon["server"]) and math.isnan(table.reconstruction_bound["server"])


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
        raise CellsFailed("1 of 2 settings failed: b")

    monkeypatch.setattr("simulator.run.engine.simulate", run_all_but_one)
    path = tmp_path / "b.yaml"
    path.write_text("name: b\noutput: {figures: false}\nbenchmark: {defenses: [none, noise], seeds: 1}\n")
    stopped = fedspill("benchmark", path, "--out", tmp_path / "out")
    assert (stopped.returncode, stopped.stderr) == (1, "fedspill: 1 of 2 settings failed: b\n")
    assert pd.read_csv(tmp_path / "out" / "benchmark.csv").leakage.tolist() == [0.5]


def test_the_frontier_is_what_nothing_beats_in_both():
    rows = pd.DataFrame(
        {
            "defense": list("abcd"),
            "test_accuracy": [0.9, 0.8, 0.7, 0.7],
            "leak": [1.0, 0.2, 0.5, 0.0],
        }
    )
    assert frontier_of(rows).defense.tolist() == ["a", "b", "d"]


def test_figures_of_a_benchmark_without_a_score(tmp_path):
    """Every attack failed: no figure, and no error."""
    leakage = pd.DataFrame([row("none", 0, 0, 1.0, "failed")])
    utility = pd.DataFrame([{"round": 1, "defense": "none", "seed": 0, "test_accuracy": 0.5, "epsilon": np.nan}])
    clients = pd.DataFrame([{"defense": "none", "status": "ok", "bytes": 1, "seconds": 1.0}])
    ran = record(leakage, utility, clients)
    ran.path = tmp_path
    assert draw_benchmark(ran, benchmark_table(ran)) == []
