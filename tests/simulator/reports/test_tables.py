from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from docs.reference.scenarios import reference
from simulator.reports.screen import full_table, granted_lines
from simulator.reports.tables import defenses_grid, exposure_grid, in_letters, leakage_grid, legend
from simulator.reports.verdict_words import REPORTED
from simulator.results.schema import LEAKAGE


def rows(**columns):
    base = dict.fromkeys(LEAKAGE.columns, np.nan) | {
        "round": 1, "client": 0, "threat_model": "server", "attack": "ntk", "defense": "none", "seed": 0,
        "status": "ok", "num_private": 8, "recovered": 7, "leakage": 0.5,
        "floor_leakage": 0.1, "l2_median": 0.25, "floor_l2_median": 2.0,
        "mean_image_leakage": 0.05, "mean_image_l2_median": 3.0, "psnr_mean": 30.0, "floor_psnr_mean": 12.0,
        "mean_image_psnr_mean": 11.0, "ssim_mean": 0.9, "membership_auc": 0.9994,
        "knowledge": '{"num_private": 8}',
    }  # fmt: skip
    return pd.DataFrame([base, base | columns])


def text(frame, width=80):
    return printed(full_table(frame, width), width)


def printed(table, width=80):
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_columns_that_differ_are_shown_and_constant_ones_are_not():
    assert "attack" not in text(rows()).splitlines()[2]
    table = text(rows(attack="span", **{"model.width": 64}).assign(**{"model.width": [32, 64]}), 120)
    assert "width" in table and "attack" in table and "span" in table


def test_rows_of_one_attack_say_which_images_they_were_scored_against():
    table = text(rows().assign(target=["private", "distilled"]), width=100).splitlines()
    assert [line.split()[-1] for line in table[1:] if line.strip("─ ")] == ["setting", "private", "distilled"]


def test_the_benchmark_names_its_defenses_within_eighty_columns():
    weak = {
        "defense": "secure_aggregation", "threat_model": "observer", "attack": "span", "adaptive": False,
        "target": "private", "round": 1, "recovered_fraction": 0.25, "recovered_fraction_ci95": 0.125, "leakage": 0.5,
        "recovered_fraction_low": 0.375, "recovered_fraction_high": 1.0, "held_fraction": 0.62,
        "privacy_unit": "record",
        "membership_auc": 0.75, "test_accuracy": 0.5, "test_accuracy_low": 0.25,
        "test_accuracy_high": 0.75, "epsilon": 12.34, "bytes": 1204264,
    }  # fmt: skip
    strong = weak | {"attack": "ntk", "adaptive": True, "recovered_fraction": 0.5}
    table = printed(in_letters(defenses_grid(pd.DataFrame([weak, strong])), 80)).splitlines()
    assert table[3].split() == "secure_aggregation observer ntk* 0.50 .38–1 0.62 0.75 0.50 .25–.75 12.3 r 1204".split()
    assert len(table) == 4  # the strongest attack alone


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ("### model.pretrain", "data folder"),
        ("### federation.strategy", "name options"),
        ("### adversary.attacks", "name label adaptive optional options"),
        ("## benchmark", "defenses strengths seeds with_root profiles"),
    ],
)
def test_the_page_of_keys_descends_into_sections_of_sections(section, keys):
    text = reference().split(f"{section}\n")[1].split("\n## ")[0].split("\n### ")[0]
    assert [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")] == keys.split()


def test_the_page_of_keys_is_up_to_date():
    page = Path(__file__).parents[3] / "docs" / "reference" / "scenarios.md"
    assert page.read_text() == reference(), "run: python -m docs.reference.scenarios > docs/reference/scenarios.md"


def test_swept_columns_that_end_alike_are_both_shown():
    keys = ["training.epochs", "model.pretrain.epochs"]
    table = text(rows().assign(**{key: [1, 2] for key in keys}), 160)
    assert "training.epochs=2, pretrain.epochs=2" in table.splitlines()[-1]


def test_what_recovered_does_not_say_is_shown_where_it_differs_within_eighty_columns():
    plain = rows(attack="span", held=7, recovered_affine=7, precision=1.0)
    assert not {"held", "relit", "group", "precision"} & set(text(plain).split())
    frame = rows(attack="span", client=-1, threat_model="observer", held=8, recovered_affine=8, recovered_group=8)
    frame = frame.assign(recovered=[0, 7], precision=[0.0, 0.5], num_private=16, num_held=[0, 9])
    table = printed(full_table(frame, 80))
    heading, last = (table.splitlines()[i].split() for i in (-4, -1))
    assert heading[:8] == "round client threat attack recovered held relit group".split() and "…" not in table
    assert last[3:10] == "span 7 of 16 8 8 8".split()
    assert "held: recovered, counting" in legend(heading) and "held:" not in legend(["recovered"])


def test_runs_from_before_these_columns_are_still_printed():
    assert "7 of 8" in text(rows().drop(columns=["held", "recovered_affine", "recovered_group", "precision"]))


def test_grants_that_differ_in_their_values_alone_are_said_once():
    assert granted_lines(rows(client=-1, knowledge='{"num_private": 16}')) == [f"Told nothing but {REPORTED}."]


def test_a_cell_is_the_same_on_the_screen_and_on_the_page():
    frame = LEAKAGE.frame(rows(attack="span", client=-1, held=8, recovered_affine=8, num_held=2, target="private"))
    page = leakage_grid(frame).cells()
    line = text(frame).splitlines()[-1]
    assert page["client"] == ["0", "all"] or page["client"] == ["all", "0"]
    for name in ("recovered", "held", "relit", "leakage"):
        assert page[name][page["client"].index("all")] in line


def test_every_column_that_is_shown_is_declared_alone():
    """A new one needs no word outside of its declaration."""
    for column in LEAKAGE.printed:
        assert not column.legend or f"{column.heading}: {column.legend}" in legend([column.heading])
    ways = [column for column in LEAKAGE.columns.values() if column.counts is not None]
    assert sorted(column.counts.rank for column in ways) == list(range(len(ways)))
    assert all(column.counts.how or column.name == "recovered" for column in ways)


def test_a_benchmark_of_the_longest_names_has_every_cell_whole_in_eighty_columns():
    row = {
        "defense": "percentile+secure_aggregation", "threat_model": "server_history", "attack": "gradient_matching",
        "adaptive": True, "target": "private", "round": 1, "recovered_fraction": 0.25, "leakage": 0.5,
        "recovered_fraction_low": 0.12, "recovered_fraction_high": 0.88, "held_fraction": 0.62,
        "privacy_unit": "client", "membership_auc": 0.75, "test_accuracy": 0.5, "test_accuracy_ci95": 0.25,
        "test_accuracy_low": 0.25, "test_accuracy_high": 0.75, "epsilon": 12.34, "bytes": 1204264,
    }  # fmt: skip
    lines = printed(in_letters(defenses_grid(pd.DataFrame([row])), 80)).splitlines()
    assert max(map(len, lines)) <= 80 and "…" not in "".join(lines)
    assert {"0.25", ".12–.88", "0.75", "12.3"} <= set(" ".join(lines[3:]).split())


def test_names_that_do_not_fit_in_eighty_columns_are_broken_behind_an_underscore():
    names = ("quantization", "secure_aggregation", "none")
    row = {
        "threat_model": "observer", "attack": "gradient_matching", "adaptive": False, "target": "private", "round": 1,
        "recovered_fraction": 0.25, "leakage": 0.5, "recovered_fraction_low": 0.12, "recovered_fraction_high": 0.88,
        "held_fraction": 0.62, "membership_auc": 0.75, "test_accuracy": 0.5, "privacy_unit": "record", "epsilon": 12.34,
        "bytes": 1204264,
    }  # fmt: skip
    table = defenses_grid(pd.DataFrame([row | {"defense": name} for name in names]))
    words = set(printed(in_letters(table, 80)).split())
    assert {"quantization", "secure_", "aggregation", "gradient_", "matching"} <= words
    assert "secure_aggregation" in printed(in_letters(table, 120), 120)


def test_members_of_another_update_than_the_row_names_are_said_to_be_of_that():
    """A newcomer's case: 15 of 280 in round 3, in a line of round 1, which has 12."""
    of = {"membership_candidates": 280, "recovered": 0, "num_inferred": 8, "num_reconstructed": 0}
    first, third = ({"round": number, "membership_told": told} for number, told in ((1, 12), (3, 15)))
    both = pd.concat([rows(**of, **first)[1:], rows(**of, **third)[1:]], ignore_index=True)
    cells = exposure_grid(both).cells()
    assert cells["of whom"] == ["client 0, round 1"] and cells["membership AUC"] == ["1.00"]
    assert cells["stand out"] == ["15 of 280 (client 0, round 3)"]


def test_the_number_of_a_client_is_said_for_runs_and_for_audits():
    """A newcomer's case: "partition id", where a recording had numbered the hospitals itself."""
    meaning = next(column.meaning for column in leakage_grid(rows()).columns if column.name == "client")
    assert "in a run its partition id" in meaning and "in an audit" in meaning and "recording.json" in meaning
