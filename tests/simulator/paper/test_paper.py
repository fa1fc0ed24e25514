"""Experiments of the paper: their files, what claims make of hand-made tables, and one small experiment on Ray."""

import json
import os

import pandas as pd
import pytest
from rich.console import Console

from attacks import InputError
from clients.config import Count, Section
from simulator.paper.claims import file_of
from simulator.paper.command import (
    choose_dataset,
    claim_folder,
    load_file,
    narrow_sweep,
    run_experiment,
)
from simulator.paper.experiment import EXPERIMENTS, ExperimentRun, get_experiment
from simulator.paper.measures import SCORES, paired, spearman_within
from simulator.paper.reconstruction.curves import (
    class_statistics,
    kernel_statistics,
    lenet_statistics,
    loss_statistics,
    regime_statistics,
    resolution_statistics,
    size_statistics,
    stopping_statistics,
)
from simulator.paper.records import natural
from simulator.run.display import Display
from simulator.scenario.scenario import load_source
from simulator.scenario.yaml_source import YamlSource, read_yaml
from tests.simulator.conftest import ray_stays_up


def run_of(source: YamlSource, out) -> ExperimentRun:
    return ExperimentRun("test", "quick", source, out, Display(), lambda *_: None, lambda _: None)


PROFILES = [
    (name, profile)
    for name in sorted(EXPERIMENTS, key=natural)
    for profile in ("quick", "two_cores", "full")
    if profile in read_yaml(file_of(name)).data["profiles"] or profile != "two_cores"
]


@pytest.mark.parametrize(("name", "profile"), PROFILES)
def test_every_experiment_has_a_valid_file(name, profile, tmp_path):
    run = run_of(load_file(name, profile, []), tmp_path)
    run.check(EXPERIMENTS[name].settings)
    assert file_of(name).exists() and run.source.data["name"] == name


def test_a_root_alone_is_that_of_the_first_data_set_with_one_and_a_name_wins():
    known = ["digits", "mnist", "cifar10"]
    assert choose_dataset(known, []) == "digits"
    assert choose_dataset(known, ["data.root=/somewhere", "model.width=3"]) == "mnist"
    assert choose_dataset(known, ["data.root=/somewhere", "data.name=cifar10"]) == "cifar10"
    source = load_file("figure2", "quick", ["data.name=cifar10", "data.root=/somewhere"])
    assert source.data["data"] | {"task": "animal_vehicle", "name": "cifar10"} == source.data["data"]


@pytest.mark.parametrize(
    ("name", "said", "dataset", "task"),
    [
        ("figure17", [], "mnist", "odd_even"),  # 8x8 digits are too small for it
        ("figure17", ["data.root=/somewhere"], "mnist", "odd_even"),
        ("figure18", [], "digits", None),
        ("figure19", ["data.root=/somewhere"], "tiny_imagenet", None),
    ],
)
def test_some_experiments_have_data_sets_of_their_own(name, said, dataset, task):
    data = load_file(name, "quick", said).data["data"]
    assert data["name"] == dataset and data.get("task") == task


def test_what_a_file_sweeps_can_be_narrowed():
    sweep = {"model.width": [1, 2], "a.x + b.y": [["s", 1], ["t", 2]], "seed": [0]}
    said = ["model.width=8", "a.x=t", "seed=[3, 4]", "data.test=5"]
    narrowed, rest = narrow_sweep(sweep, said)
    assert narrowed == {"model.width": [8], "a.x + b.y": [["t", 2]], "seed": [3, 4]} and rest == ["data.test=5"]
    with pytest.raises(InputError, match="with the values 1, 2"):
        narrow_sweep(sweep, ["b.y=3"])


def test_paired_keys_move_together():
    content = {"name": "x", "sweep": {"model.width + seed": [[8, 1], [16, 2]], "training.epochs": [1, 2]}}
    cells = load_source(YamlSource(content)).cells()
    points = {(c.scenario.model.options["width"], c.scenario.seed, c.scenario.training.epochs) for c in cells}
    assert points == {(8, 1, 1), (8, 1, 2), (16, 2, 1), (16, 2, 2)}
    assert cells[0].swept["model.width"] == 8 and cells[0].swept["seed"] == 1
    content["sweep"] = {"model.width + seed": [[8]]}
    with pytest.raises(InputError, match="needs a list of 2 values"):
        load_source(YamlSource(content))


def test_rank_correlation_within_groups_and_pairs():
    # within a and within b the values fall, over both they rise
    frame = pd.DataFrame({"g": list("aabb"), "x": [1, 2, 3, 4], "y": [2.0, 1.0, 9.0, 8.0]})
    assert spearman_within(frame, "x", "y", ["g"]) == pytest.approx(-1.0)
    table = paired(frame.assign(k=[0, 1, 0, 1]), "k", 1, 0, "y", ["g"])
    assert table.better.tolist() == [1.0, 8.0] and table.worse.tolist() == [2.0, 9.0]


def test_what_set_left_out_is_no_verdict(holds):
    table = regime([1, 2, 3, 4])
    assert holds("figure3", regime_statistics(table[table.width == 64])) == [True, None, True]
    with pytest.raises(InputError, match="--set left linearized out"):
        size_statistics(scores(l2_mean=[1.0, 2.0], num_private=[10, 20]))
    with pytest.raises(InputError, match=r"data\.task with one value"):
        class_statistics(scores(task=["classes"]))


def regime(errors):
    """Two widths, two training sets; kernel distances 0.1 to 0.4."""
    rows = [(0.1, 10, 64), (0.2, 20, 64), (0.3, 10, 32), (0.4, 20, 32)]
    return pd.DataFrame(
        [(d, error, n, w, "standard", 0) for (d, n, w), error in zip(rows, errors, strict=True)],
        columns="kernel_distance l2_mean num_private width dynamics seed".split(),
    )


def test_a_claim_is_judged_by_its_statistic(holds, judged):
    assert holds("figure3", regime_statistics(regime([1, 2, 3, 4]))) == [True, True, True]
    # ranks 2 1 4 3 against 1 2 3 4: 1 − 6·4/(4·15) = 0.6, below 0.8
    claim = judged("figure3", regime_statistics(regime([2, 1, 4, 3])))["kernel"]
    assert not claim.met and "Spearman 0.60" in claim.measured


def scores(**columns):
    """A score table with one row for each value of the columns; what is not given is the same everywhere."""
    same = {"num_private": 10, "width": 64, "dynamics": "standard", "seed": 0, "floor_l2_mean": 7.0, "l2_mean": 1.0}
    same |= {"recovered": 5, "recovered_fraction": 0.5, "kernel_distance": 0.01, "attack": "ntk", "seconds": 1.0}
    return pd.DataFrame(same | columns)


def test_claims_about_size_width_and_linearization(holds):
    table = scores(
        num_private=[10, 20] * 4,
        width=[64, 64, 128, 128] * 2,
        dynamics=["standard"] * 4 + ["linearized"] * 4,
        l2_mean=[3.0, 5.0, 2.0, 4.0, 1.0, 2.0, 0.5, 1.0],
        recovered=[5, 2, 9, 8, 8, 9, 10, 18],
    )
    assert holds("figure2", size_statistics(table)) == [True, True, True]
    table.loc[table.dynamics == "linearized", "l2_mean"] = [4.0, 6.0, 1.0, 2.0]  # better in two of four pairs
    assert holds("figure2", size_statistics(table)) == [True, True, False]


def test_the_claim_about_classes_has_to_hold_in_every_seed(holds):
    table = scores(task=["odd_even", "classes"] * 2, seed=[0, 0, 1, 1], l2_mean=[3.0, 2.0, 5.0, 4.0])
    assert holds("figure5", class_statistics(table)) == [True]
    table["l2_mean"] = [9.0, 2.0, 4.0, 4.5]  # lower on average, not with seed 1
    assert holds("figure5", class_statistics(table)) == [False]


def test_claims_about_early_stopping(holds, judged):
    table = scores(stop_at_loss=[0.1, 0.01, 1e-5], l2_mean=[2.0, 3.0, 4.0], kernel_distance=[0.01, 0.02, 0.03])
    claims = list(judged("figure15", stopping_statistics(table)).values())
    assert [claim.met for claim in claims] == [True, True, True] and "1e-05: 4.00, 0.01: 3.00, 0.1: 2.00" in claims[
        1
    ].measured
    assert holds("figure15", stopping_statistics(table.assign(l2_mean=[8.0, 3.0, 4.0]))) == [False, False, True]


def test_claims_about_the_kernel(holds):
    table = scores(attack=["initial", "final", "hybrid"], l2_mean=[3.0, 2.5, 2.0], seconds=[1.0, 1.0, 2.1])
    assert holds("appendix_i", kernel_statistics(table)) == [True, True, True]
    assert holds("appendix_i", kernel_statistics(table.assign(l2_mean=[2.0, 2.5, 2.2]))) == [False, False, True]


def test_claims_about_networks_and_losses(holds):
    wide = scores(multiplier=[1, 8, 16], l2_mean=[8.0, 6.0, 5.0])
    assert holds("figure17", lenet_statistics(wide)) == [True, True]
    assert holds("figure17", lenet_statistics(wide[wide.multiplier < 8]))[0] is False  # nothing as wide was measured
    losses = scores(loss=["mse", "cross_entropy"], l2_mean=[9.0, 6.9])
    assert holds("appendix_g", loss_statistics(losses)) == [True]
    larger = scores(dynamics=["standard", "linearized"], l2_mean=[7.1, 3.0])
    assert holds("figure18", resolution_statistics(larger)) == [False, True]


class Small(Section):
    size: Count = 3


def test_settings_of_an_experiment_are_validated(tmp_path):
    source = YamlSource({"name": "x", "settings": {"size": 5}})
    assert run_of(source, tmp_path).check(Small) == Small(size=5)
    with pytest.raises(InputError, match=r"settings\.sise"):
        run_of(YamlSource({"settings": {"sise": 5}}, {("settings", "sise"): "x.yaml, line 1"}), tmp_path).check(Small)


def test_a_folder_of_something_else_is_refused(tmp_path):
    run = run_of(YamlSource({"name": "x"}), tmp_path / "out")
    claim_folder(run)
    claim_folder(run_of(YamlSource({"name": "y"}), tmp_path / "out"))  # nothing was measured there yet
    (tmp_path / "out" / "data.csv").write_text("a\n1\n")
    claim_folder(run_of(YamlSource({"name": "y"}), tmp_path / "out"))
    with pytest.raises(InputError, match="under other settings"):
        claim_folder(run)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("hello")
    with pytest.raises(InputError, match="no fedspill experiment"):
        claim_folder(run_of(YamlSource({"name": "x"}), tmp_path / "other"))


def test_errors_name_what_is_near():
    with pytest.raises(InputError, match="did you mean 'figure3'"):
        get_experiment("figur3")
    with pytest.raises(InputError, match="did you mean 'full'"):
        load_file("figure3", "ful", [])


SMALL = ["adversary.attacks.0.iterations=30", "training.steps=40", "partition.images=[3, 5]", "model.width=[32, 64]"]


@pytest.mark.slow
def test_an_experiment_on_ray(tmp_path):
    out = tmp_path / "out"
    said = [*SMALL, "seed=[0]", "data.public=50", f"engine.cpus={os.cpu_count()}", "engine.attack_workers=1"]
    with ray_stays_up():
        judged_claims = run_experiment("figure3", "quick", said, out, Console(quiet=True), sheet=True)
    data = pd.read_csv(out / "data.csv")
    assert set(SCORES) < set(data.columns) and len(data) == 16 and set(data.width) == {32, 64}
    assert data.kernel_distance.notna().sum() == (data["rank"] == 1).sum() == 4
    claims = json.loads((out / "claims.json").read_text())
    keys = {"claim", "source", "paper", "measured", "met", "n", "agree", "p", "holds", "verdict"}
    keys |= {"identity", "profile", "interval"}
    assert all(set(claim) == keys for claim in claims)
    assert claims[1]["n"] == 1 and claims[1]["p"] == 0.5
    assert "no data.root was given" in claims[0]["measured"] and claims[0]["holds"] == judged_claims[0].holds
    assert all((out / name).stat().st_size > 10_000 for name in ("figure.png", "sheet.png"))
    before = (out / "run" / "leakage.csv").read_bytes()
    run_experiment("figure3", "quick", said, out, Console(quiet=True))  # reads what is there, without Ray
    assert (out / "run" / "leakage.csv").read_bytes() == before
