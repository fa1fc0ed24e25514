"""Onion and distillation: rankings and likenesses by hand, claims on hand-made tables, one small onion."""

import pandas as pd
import pytest
import torch

from attacks import InputError
from clients.defenses.training_data import without_easiest
from simulator.paper import distilled
from simulator.paper.command import load_file
from simulator.paper.distilled import DistillationSettings, cosines, gap_table, likeness, table1
from simulator.paper.experiment import ExperimentRun
from simulator.paper.reconstruction.onion import (
    OnionSettings,
    Peeling,
    advantage,
    at_infinite_width,
    onion,
    onion_statistics,
)
from simulator.run.display import Display
from simulator.tools.distillation import Owner


def test_the_easiest_are_left_out():
    ease = torch.tensor([5.0, 1, 4, 2, 3, 0])
    assert without_easiest(ease, 2).tolist() == [1, 3, 4, 5]
    groups = torch.tensor([0, 0, 0, 1, 1, 1])  # the largest of each: 0 and 4; then 2 of the first
    assert without_easiest(ease, 2, groups).tolist() == [1, 2, 3, 5]
    assert without_easiest(ease, 3, groups).tolist() == [1, 3, 5]
    assert without_easiest(ease[:4], 4, groups[:4]).tolist() == [1]  # no class is asked for more than it has


def run_of(tmp_path, *overrides):
    source = load_file("figure6", "quick", ["seed=0", "data.public=60", "data.test=50", *overrides])
    return ExperimentRun("figure6", "quick", source, tmp_path, Display(), lambda *_: None, lambda _: None)


@pytest.mark.parametrize("balanced", [True, False])
def test_a_small_onion(tmp_path, balanced):
    run = run_of(tmp_path, "partition.images=12", "training.steps=20")
    scenario = run.scenario.cells()[0].scenario
    settings = OnionSettings(drop=4, until=4, draws=2, iterations=5, balanced=balanced, width_per_image=2.0)
    owner = Owner.of(scenario)
    peeling = Peeling(owner, settings, scenario.training)
    table = peeling.table()
    count = table.groupby(["chosen", "num_private"]).size()
    assert count["easiest"].to_dict() == {12: 1, 8: 1, 4: 1} and count["random"].to_dict() == {8: 2, 4: 2}
    assert count["duals"].to_dict() == {8: 1, 4: 1}
    assert peeling.network(8)[1].out_features == 16
    kept = peeling.without(torch.arange(12), torch.arange(12.0))
    lost = [i for i in range(12) if i not in kept.tolist()]
    assert len(kept) == 8 and (balanced or lost == [8, 9, 10, 11])
    if balanced:
        assert peeling.groups[lost].bincount().tolist() == [2, 2]
    again = Peeling(owner, settings, scenario.training).table()
    pd.testing.assert_frame_equal(table, again)


def onion_table(easiest, l2, regime="fitted", minority=0.3):
    rows = [
        {
            "seed": 0,
            "num_private": n,
            "chosen": "easiest",
            "accuracy": a,
            "l2_easiest": d,
            "floor_l2_mean": 7.0,
            "l2_mean": d,
            "l2_before": 2.5,
            "dual_rank": -0.5,
        }
        for n, a, d in zip((30, 20, 10), easiest, l2, strict=True)
    ]
    rows += [{"seed": 0, "num_private": n, "chosen": "random", "accuracy": 0.8} for n in (20, 10) for _ in range(2)]
    return pd.DataFrame(rows).assign(regime=regime, minority=minority)


@pytest.fixture
def held(judged):
    """Whether each claim of an experiment holds on a table of onions."""
    return lambda name, table: {key: c.met for key, c in judged(name, onion_statistics(table)).items()}


def test_claims_of_the_onion_are_judged_by_their_statistics(held):
    table = onion_table([0.9, 0.85, 0.7], [3.0, 2.0, 1.0])
    assert advantage(table).gain.tolist() == pytest.approx([-0.1, 0.05])  # at 10, at 20
    assert held("figure6", table)["layers"]
    assert not held("figure6", onion_table([0.9, 0.8, 0.7], [1.0, 2.0, 3.0]))["layers"]
    both = pd.concat([table, onion_table([0.9, 0.81, 0.8], [1.0, 1, 1], "underfit")])
    assert list(held("figure21", both).values()) == [True, True, True, True]
    both = pd.concat([table.assign(minority=0.5), onion_table([0.9, 0.9, 0.8], [1.0, 1, 1], "underfit")])
    assert list(held("figure21", both).values()) == [True, True, False, False]
    assert not held("figure6", onion_table([0.9, 0.8, 0.7], [3.0, 3.0, 2.5]))["exposed"]  # 0.5 and 0.5 worse, 0 better


def test_claims_of_the_onion_about_duals_and_accuracy(held):
    table = onion_table([0.9, 0.85, 0.83], [3.0, 2.0, 1.0])
    duals = table[table.chosen == "easiest"].assign(chosen="duals", regime="infinite width")
    both = pd.concat([table, duals, table[table.chosen == "random"].assign(regime="infinite width")])
    wanted = {"layers": True, "exposed": True, "accuracy": True, "infinite_width": True, "hard_to_fit": True}
    assert held("figure6", both) == wanted
    assert held("figure6", table) == wanted | {"infinite_width": None}  # it was not measured
    worse = both.assign(accuracy=both.accuracy.where(both.chosen == "random", 0.7), dual_rank=0.1)
    assert held("figure6", worse) == wanted | {"accuracy": False, "infinite_width": False, "hard_to_fit": False}


def test_the_onion_at_infinite_width(tmp_path):
    scenario = run_of(tmp_path).scenario.cells()[0].scenario
    table = at_infinite_width(scenario, OnionSettings(reference_images=40, draws=2))
    counts = table.groupby(["chosen", "num_private"]).size().unstack("chosen")
    assert counts.index.tolist() == list(range(8, 39, 2)) and (counts.duals == 1).all() and (counts.random == 2).all()
    assert table.accuracy.between(0, 1).all()


def test_gap_between_infinite_and_finite_width():
    rows = [("infinite_width", 0.9), ("standard", 0.5), ("linearized", 0.7)]
    frame = pd.DataFrame([("kip", 20, 40, 0, *row) for row in rows])
    frame.columns = ["set", "size", "train", "seed", "learner", "accuracy"]
    assert gap_table(frame).gap.tolist() == pytest.approx([0.3])


def test_likeness_to_images_and_to_class_means(tmp_path):
    owner = Owner.of(run_of(tmp_path, "partition.images=8").scenario.cells()[0].scenario)
    odd = owner.targets[:, 0] > 0
    images = torch.stack([owner.images[3] * -0.5, owner.images[odd].mean(0)])
    table = likeness(owner, images)
    assert table.nearest[0] == pytest.approx(1) and table.average[1] == pytest.approx(1)
    assert table.nearest[1] < 1 and table.average[0] < 1
    x, y = torch.tensor([[[[3.0, 0.0]]]]), torch.tensor([[[[3.0, 4.0]]]])
    assert cosines(x, y).item() == pytest.approx(0.6)


def test_what_cannot_be_compared_is_refused_before_anything_is_computed(tmp_path):
    source = load_file("table1", "quick", ["settings.methods=[kip, rkip]"])
    with pytest.raises(InputError, match="leaves rkip_finite out"):
        run = ExperimentRun("table1", "quick", source, tmp_path, Display(), lambda *_: None, lambda _: None)
        table1(run, run.check(DistillationSettings))
    with pytest.raises(InputError, match="only one stage"):
        run = run_of(tmp_path, "partition.images=20")
        onion(run.cells[0], run.check(OnionSettings))


def test_seeds_that_are_done_are_not_distilled_again(tmp_path, monkeypatch):
    """Distillation takes minutes a seed: what a run that was stopped has is taken up."""
    asked = list[int]()

    def measured(run, settings, cell):
        asked.append(cell.scenario.seed)
        return [{"set": "kip", "size": 2, "accuracy": 0.1 + cell.scenario.seed, "seed": cell.scenario.seed}], []

    monkeypatch.setattr(distilled, "cell_accuracies", measured)
    source = load_file("figure8", "quick", ["seed=[7, 8]"])
    run = ExperimentRun("figure8", "quick", source, tmp_path, Display(), lambda *_: None, lambda _: None)
    first = distilled.figure8(run, run.check(DistillationSettings)).data
    next((tmp_path / "cells").glob("*8*")).unlink()
    again = distilled.figure8(run, run.check(DistillationSettings)).data
    assert asked == [7, 8, 8] and again.equals(first) and again.accuracy.tolist() == [7.1, 8.1]
