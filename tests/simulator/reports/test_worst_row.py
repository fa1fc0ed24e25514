"""The worst row is the same one wherever somebody looks: verdict, screen, page, figures, notebook, benchmark."""

import numpy as np
import pytest
import torch

from simulator.reports import benchmark_figures, drawing
from simulator.reports.benchmark_table import strongest
from simulator.reports.page import pages
from simulator.reports.screen import worst_rows
from simulator.reports.tables import leakage_grid
from simulator.reports.verdict import verdict
from simulator.results.schema import LEAKAGE
from simulator.rundir import run as rundir
from simulator.rundir.exposure_rows import MEASURES, worst_first
from simulator.rundir.run import Run, worst_table
from simulator.rundir.strip import Strip
from tests.simulator.reports.conftest import leakage_row

BLIND = {"recovered": None, "recovered_fraction": None, "leakage": None, "num_private": None, "num_inferred": 8}
CASES = {
    "up to brightness": [leakage_row(1, 0, 4, leakage=0.6), leakage_row(1, 1, 3, recovered_affine=8)],
    "held": [leakage_row(1, 0, 4), leakage_row(1, 1, 0, held=6)],
    "more than chance": [leakage_row(1, 0, 5, null_recovered_p=0.4), leakage_row(1, 1, 3, null_recovered_p=0.01)],
    "of fewer images": [leakage_row(1, 0, 4), leakage_row(1, 1, 3, num_private=4)],
    "all of more images": [leakage_row(1, 0, 1, num_private=1, leakage=1), leakage_row(1, 1, 8, leakage=0.9)],
    "strictly, of as many": [leakage_row(1, 0, 3, recovered_affine=8), leakage_row(1, 1, 8)],
    "told less": [leakage_row(1, 0, 8, knowledge='{"labels": [1]}'), leakage_row(1, 1, 8)],
    "behind no defense": [leakage_row(1, 0, 8, defense="noise"), leakage_row(1, 1, 8)],
    "a single client": [leakage_row(1, -1, 8), leakage_row(1, 1, 8)],
    "in one round alone": [leakage_row(3, 0, 8, threat_model="history", leakage=1), leakage_row(3, 1, 8, leakage=0.8)],
    "in an earlier round": [leakage_row(3, 0, 8, leakage=0.9), leakage_row(1, 1, 8, leakage=0.8)],
    "without the truth": [
        leakage_row(1, 0, 8, relative_residual=0.7) | BLIND, leakage_row(1, 1, 4, relative_residual=0.02) | BLIND,
    ],
}  # fmt: skip


@pytest.fixture(params=CASES, ids=str)
def two(request, large, monkeypatch):
    """A run of two rows of which the second is the worst, with everything but pictures."""
    large.leakage = LEAKAGE.frame(CASES[request.param])
    monkeypatch.setattr(pages, "picture_of", lambda run, row, *_: {"title": f"client {row.client}", "groups": []})
    monkeypatch.setattr(rundir, "worst_pictures", lambda run, row, most: row)
    monkeypatch.setattr(drawing, "strip_of", lambda run, row, title: strip(f"client {row.client}"))
    return large


def strip(title):
    return Strip(title, None, torch.zeros(1, 1, 2, 2), np.zeros(1))


def test_all_reports_name_the_same_worst_row(two, monkeypatch, tmp_path):
    leakage = two.leakage
    assert worst_first(leakage).client.iloc[0] == 1
    assert leakage_grid(leakage).rows[0][[c.name for c in leakage_grid(leakage).columns].index("client")] == "1"
    assert worst_rows(leakage).client.iloc[0] == 1
    assert verdict(leakage).headline.startswith("Client 1 is exposed worst")
    assert Run.show(two).client == 1 and worst_table(leakage).client.iloc[0] == "1"
    first, others = pages.pictures(two, print)
    assert first["title"] == "client 1" or others["without"] == ["client 1, round 1 (held, not returned)"]
    shown = []
    monkeypatch.setattr(drawing, "draw_strips", lambda strips, *_, **__: shown.extend(strips))
    drawing.image_grid(two, leakage, tmp_path / "x.png")
    assert shown[0].title == "client 1"


@pytest.mark.parametrize("case", ["up to brightness", "held", "strictly, of as many"])
def test_the_benchmark_ranks_attacks_as_the_verdict_does(case):
    rows = [row | {"client": 0, "attack": name} for name, row in zip(("span", "ntk"), CASES[case], strict=True)]
    leakage = LEAKAGE.frame(rows)
    shares = {f"{name}_fraction": leakage[name] / leakage.num_private for name in MEASURES}
    (best,) = strongest(leakage.assign(**shares)).itertuples()
    assert best.attack == "ntk" and "by attack 'ntk'" in verdict(leakage).headline


def test_the_benchmark_decides_between_equal_attacks_as_the_verdict_does():
    """As in a verdict: after the images it is leakage, then membership, that decides."""
    rows = [leakage_row(1, 0, attack="ntk", membership_auc=0.9), leakage_row(1, 0, attack="span", membership_auc=0.8)]
    assert worst_first(LEAKAGE.frame(rows)).attack.iloc[0] == "ntk"
    assert strongest(LEAKAGE.frame(rows)).attack.tolist() == ["ntk"]


def test_the_grid_of_defenses_shows_the_client_that_is_exposed_worst(large, monkeypatch, tmp_path):
    large.leakage = LEAKAGE.frame(CASES["up to brightness"])
    large.private_images = lambda key, cell: torch.zeros(8, 1, 2, 2)
    monkeypatch.setattr(benchmark_figures, "_line", lambda *_: None)
    monkeypatch.setattr(benchmark_figures, "_draw", lambda *_: None)
    assert "(client 1, round 1, seed 0)" in benchmark_figures.defense_grid(large, tmp_path / "x.png").caption


def test_images_that_a_test_held_back_come_before_those_of_a_search_without_one():
    blind = BLIND | {"num_vouched": None}
    noise = leakage_row(1, 0, 0, attack="ntk", relative_residual=0.7, num_reconstructed=24) | blind
    held = leakage_row(1, 0, 0, num_reconstructed=0, num_held=24) | blind | {"num_vouched": 0}
    for rows in ([noise, held], [held, noise]):
        worst = worst_rows(LEAKAGE.frame(rows))
        assert list(worst.attack) == ["span"]
        assert (
            leakage_grid(worst).rows[0][[c.name for c in leakage_grid(worst).columns].index("recovered")] == "24 held"
        )
