"""Experiments of the paper: their files, what claims make of hand-made tables, and one small experiment on Ray."""

import json

import pandas as pd
import pytest
from rich.console import Console

from attacks import InputError
from clients.config import Count, Section
from simulator.paper import EXPERIMENTS, Claim, Job, Result, get_experiment
from simulator.paper.command import claim_folder, natural, run_experiment
from simulator.paper.files import choose_dataset, file_of, load_file, narrow_sweep
from simulator.paper.measures import paired, spearman_within
from simulator.paper.reconstruction.curves import class_claims, size_claims
from simulator.paper.reconstruction.kernel_choice import choice_claims
from simulator.paper.reconstruction.kernel_regime import COLUMNS, regime_claims
from simulator.paper.reconstruction.networks import lenet_claims, resolution_claims
from simulator.paper.reconstruction.training import loss_claims, stopping_claims
from simulator.run.cluster import stop_ray
from simulator.run.display import Display
from simulator.scenario.scenario import load_source
from simulator.scenario.yaml_source import Source


def job_of(source: Source, out) -> Job:
    return Job("test", "quick", source, out, Display(), lambda *_: None, lambda _: None)


@pytest.mark.parametrize("name", sorted(EXPERIMENTS, key=natural))
@pytest.mark.parametrize("profile", ["quick", "full"])
def test_every_experiment_has_a_valid_file(name, profile, tmp_path):
    job = job_of(load_file(name, profile, []), tmp_path)
    job.check(EXPERIMENTS[name].settings)
    assert file_of(name).exists() and job.source.data["name"] == name


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
    cells = load_source(Source(content)).cells()
    points = {(c.scenario.model.options["width"], c.scenario.seed, c.scenario.training.epochs) for c in cells}
    assert points == {(8, 1, 1), (8, 1, 2), (16, 2, 1), (16, 2, 2)}
    assert cells[0].swept["model.width"] == 8 and cells[0].swept["seed"] == 1
    content["sweep"] = {"model.width + seed": [[8]]}
    with pytest.raises(InputError, match="needs a list of 2 values"):
        load_source(Source(content))


def test_rank_correlation_within_groups_and_pairs():
    # within a and within b the values fall, over both they rise
    frame = pd.DataFrame({"g": list("aabb"), "x": [1, 2, 3, 4], "y": [2.0, 1.0, 9.0, 8.0]})
    assert spearman_within(frame, "x", "y", ["g"]) == pytest.approx(-1.0)
    table = paired(frame.assign(k=[0, 1, 0, 1]), "k", 1, 0, "y", ["g"])
    assert table.better.tolist() == [1.0, 8.0] and table.worse.tolist() == [2.0, 9.0]


def test_what_set_left_out_is_no_verdict():
    table = regime([1, 2, 3, 4])
    assert [c.holds for c in regime_claims(table[table.width == 64], "here")] == [True, None, True]
    with pytest.raises(InputError, match="--set left linearized out"):
        size_claims(scores(l2_mean=[1.0, 2.0], num_private=[10, 20]), "here")
    with pytest.raises(InputError, match=r"data\.task with one value"):
        class_claims(scores(task=["classes"]), "here")


def regime(errors):
    """Two widths, two training sets; kernel distances 0.1 to 0.4."""
    rows = [(0.1, 10, 64), (0.2, 20, 64), (0.3, 10, 32), (0.4, 20, 32)]
    return pd.DataFrame(
        [(d, error, n, w, "standard", 0) for (d, n, w), error in zip(rows, errors, strict=True)], columns=COLUMNS
    )


def test_a_claim_is_judged_by_its_statistic():
    holds = [claim.holds for claim in regime_claims(regime([1, 2, 3, 4]), "here")]
    assert holds == [True, True, True]
    # ranks 2 1 4 3 against 1 2 3 4: 1 − 6·4/(4·15) = 0.6, below 0.8
    claim = regime_claims(regime([2, 1, 4, 3]), "here")[0]
    assert not claim.holds and "Spearman 0.60" in claim.measured


def scores(**columns):
    """A score table with one row for each value of the columns; what is not given is the same everywhere."""
    same = {"num_private": 10, "width": 64, "dynamics": "standard", "seed": 0, "floor_l2_mean": 7.0, "l2_mean": 1.0}
    same |= {"recovered": 5, "recovered_fraction": 0.5, "kernel_distance": 0.01, "attack": "ntk", "seconds": 1.0}
    return pd.DataFrame(same | columns)


def holds(claims):
    return [claim.holds for claim in claims]


def test_claims_about_size_width_and_linearization():
    table = scores(
        num_private=[10, 20] * 4,
        width=[64, 64, 128, 128] * 2,
        dynamics=["standard"] * 4 + ["linearized"] * 4,
        l2_mean=[3.0, 5.0, 2.0, 4.0, 1.0, 2.0, 0.5, 1.0],
        recovered=[5, 2, 9, 8, 8, 9, 10, 18],
    )
    assert holds(size_claims(table, "here")) == [True, True, True]
    table.loc[table.dynamics == "linearized", "l2_mean"] = [4.0, 6.0, 1.0, 2.0]  # better in two of four pairs
    assert holds(size_claims(table, "here")) == [True, True, False]


def test_the_claim_about_classes_has_to_hold_in_every_seed():
    table = scores(task=["odd_even", "classes"] * 2, seed=[0, 0, 1, 1], l2_mean=[3.0, 2.0, 5.0, 4.0])
    assert holds(class_claims(table, "here")) == [True]
    table["l2_mean"] = [9.0, 2.0, 4.0, 4.5]  # lower on average, not with seed 1
    assert holds(class_claims(table, "here")) == [False]


def test_claims_about_early_stopping():
    table = scores(stop_at_loss=[0.1, 0.01, 1e-5], l2_mean=[2.0, 3.0, 4.0], kernel_distance=[0.01, 0.02, 0.03])
    claims = stopping_claims(table, "here")
    assert holds(claims) == [True, True, True] and "1e-05: 4.00, 0.01: 3.00, 0.1: 2.00" in claims[1].measured
    assert holds(stopping_claims(table.assign(l2_mean=[8.0, 3.0, 4.0]), "here")) == [False, False, True]


def test_claims_about_the_kernel():
    table = scores(attack=["initial", "final", "hybrid"], l2_mean=[3.0, 2.5, 2.0], seconds=[1.0, 1.0, 2.1])
    assert holds(choice_claims(table, "here")) == [True, True, True]
    assert holds(choice_claims(table.assign(l2_mean=[2.0, 2.5, 2.2]), "here")) == [False, False, True]


def test_claims_about_networks_and_losses():
    wide = scores(multiplier=[1, 8, 16], l2_mean=[8.0, 6.0, 5.0])
    assert holds(lenet_claims(wide, "here")) == [True, True]
    assert holds(lenet_claims(wide[wide.multiplier < 8], "here"))[0] is False  # nothing as wide was measured
    losses = scores(loss=["mse", "cross_entropy"], l2_mean=[9.0, 6.9])
    assert holds(loss_claims(losses, "here")) == [True]
    larger = scores(dynamics=["standard", "linearized"], l2_mean=[7.1, 3.0])
    assert holds(resolution_claims(larger, "here")) == [False, True]


class Small(Section):
    size: Count = 3


def measure(job: Job) -> Result:
    size = job.settings(Small).size
    data = pd.DataFrame({"size": [size]})
    claim = Claim("sizes are odd", "nowhere", "they are", f"size {size}", size % 2 == 1)
    return Result(data, [claim], lambda path: path.write_text("a figure") and None)


def test_settings_of_an_experiment_are_validated(tmp_path):
    source = Source({"name": "x", "settings": {"size": 5}})
    assert measure(job_of(source, tmp_path)).data["size"].tolist() == [5]
    with pytest.raises(InputError, match=r"settings\.sise"):
        job_of(Source({"settings": {"sise": 5}}, {("settings", "sise"): "x.yaml, line 1"}), tmp_path).check(Small)


def test_a_folder_of_something_else_is_refused(tmp_path):
    job = job_of(Source({"name": "x"}), tmp_path / "out")
    claim_folder(job)
    claim_folder(job_of(Source({"name": "y"}), tmp_path / "out"))  # nothing was measured there yet
    (tmp_path / "out" / "data.csv").write_text("a\n1\n")
    claim_folder(job_of(Source({"name": "y"}), tmp_path / "out"))
    with pytest.raises(InputError, match="under other settings"):
        claim_folder(job)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("hello")
    with pytest.raises(InputError, match="no experiment"):
        claim_folder(job_of(Source({"name": "x"}), tmp_path / "other"))


def test_errors_name_what_is_near():
    with pytest.raises(InputError, match="did you mean 'figure3'"):
        get_experiment("figur3")
    with pytest.raises(InputError, match="did you mean 'full'"):
        load_file("figure3", "ful", [])


SMALL = ["adversary.attacks.0.iterations=30", "training.steps=40", "partition.images=[3, 5]", "model.width=[32, 64]"]


@pytest.mark.slow
def test_an_experiment_on_ray(tmp_path):
    out = tmp_path / "out"
    said = [*SMALL, "seed=[0]", "data.public=50"]
    try:
        result = run_experiment("figure3", "quick", said, out, True, Console(quiet=True))
    finally:
        stop_ray()
    data = pd.read_csv(out / "data.csv")
    assert list(data.columns) == COLUMNS and len(data) == 4 and set(data.width) == {32, 64}
    claims = json.loads((out / "claims.json").read_text())
    assert all(set(claim) == {"claim", "source", "paper", "measured", "holds"} for claim in claims)
    assert "no data.root was given" in claims[0]["measured"] and claims[0]["holds"] == result.claims[0].holds
    assert all((out / name).stat().st_size > 10_000 for name in ("figure.png", "sheet.png"))
    before = (out / "run" / "leakage.csv").read_bytes()
    run_experiment("figure3", "quick", said, out, False, Console(quiet=True))  # reads what is there, without Ray
    assert (out / "run" / "leakage.csv").read_bytes() == before
