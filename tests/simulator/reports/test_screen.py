"""What the screen shows of a run in 80 columns: every cell whole, the worst first."""

import numpy as np
import pandas as pd
from rich.console import Console

from simulator.reports.screen import client_table, full_table, granted_lines, verdict_lines, worst_rows
from simulator.reports.tables import leakage_grid
from simulator.reports.verdict import Verdict
from simulator.reports.verdict_words import REPORTED
from simulator.results.schema import LEAKAGE

ROW = dict.fromkeys(LEAKAGE.columns, np.nan) | {
    "round": 1, "client": 0, "threat_model": "server", "attack": "ntk", "defense": "none", "seed": 0,
    "target": "private", "status": "ok", "num_private": 8, "recovered": 7, "leakage": 0.5, "floor_leakage": 0.1,
    "l2_median": 0.25, "floor_l2_median": 2.0, "mean_image_leakage": 0.05, "mean_image_l2_median": 3.0,
    "psnr_mean": 30.0, "floor_psnr_mean": 12.0, "mean_image_psnr_mean": 11.0, "membership_auc": 0.9994,
    "knowledge": '{"num_private": 8}',
}  # fmt: skip


def frame(*rows):
    return pd.DataFrame([ROW | row for row in rows])


def lines(table, width=80):
    """What a console prints, which is nowhere wider than it is and has no cell cut."""
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    text = capture.get()
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    return text.splitlines()


def test_a_client_has_one_line_its_worst_and_the_most_exposed_comes_first():
    rows = frame(
        {"client": 0, "recovered": 2}, {"client": 0, "recovered": 4, "attack": "span", "round": 2},
        {"client": 1, "recovered": 8}, {"client": -1, "recovered": 3, "num_private": 16, "threat_model": "observer"},
    )  # fmt: skip
    said = [line.split() for line in lines(client_table(rows, 80))[3:]]
    assert said == [
        "1 server ntk 1 8 of 8 0.50 (0.10) 1.00".split(), "0 server span 2 4 of 8 0.50 (0.10) 1.00".split(),
        "all observer ntk 1 3 of 16 0.50 (0.10) 1.00".split(),
    ]  # fmt: skip
    assert worst_rows(rows).recovered.tolist() == [8, 4, 3]


def test_every_attack_and_round_is_in_the_full_table():
    rows = frame(*({"round": number, "recovered": number} for number in range(1, 80)))
    assert len(lines(full_table(rows, 80))) == 3 + 79


def test_the_page_has_the_columns_of_the_screen_and_what_takes_more_room():
    rows = frame({"held": 7}, {"client": 1, "status": "timeout", "recovered": np.nan})
    shown = [str(column.header) for column in full_table(rows, 200).columns]
    assert [column.name for column in leakage_grid(rows).columns] == [*shown, "told", "status"]
    assert "held" not in shown and "attack" not in shown  # it is `recovered`, and there is one attack


def test_a_client_without_any_result_says_why_and_comes_last():
    rows = frame({"client": 3, "status": "timeout", "recovered": np.nan, "leakage": np.nan}, {"client": 5})
    said = lines(client_table(rows, 80))[3:]
    assert [line.split()[0] for line in said] == ["5", "3"] and "timeout" in said[1] and "nan" not in said[1]


def test_a_sweep_of_two_keys_has_a_line_for_every_cell_and_client_with_its_keys_shortened():
    swept = {"training.learning_rate": [0.01, 0.1, 0.01, 0.1], "model.options.dual_normalization": ["mean", "max"] * 2}
    who = {"attack": "span-adaptive", "threat_model": "server_history"}
    rows = frame(*(who | {"client": client, "recovered": recovered} for client, recovered in ((0, 8), (0, 6), (1, 7))))
    rows = pd.concat([rows, frame(who | {"client": 1, "recovered": 5})], ignore_index=True).assign(**swept)
    said = " ".join(" ".join(lines(client_table(rows, 80))[3:]).split())
    assert said.count(" of 8") == 4 and "learning_rate=" in said and "training." not in said


def test_the_widest_rows_fold_their_texts_and_leave_out_what_tells_least():
    rows = frame(
        {"num_private": 100, "recovered": 90, "held": 95, "recovered_affine": 99, "recovered_group": 98,
         "precision": 0.5, "attack": "gradient_matching-adaptive", "threat_model": "server_history",
         "defense": "clipping+noise"},
        {"num_private": 100, "recovered": 91, "knowledge": '{"labels": [1], "num_private": 8}', "seed": 1},
    )  # fmt: skip
    assert granted_lines(rows) == [
        f"server_history: told nothing but {REPORTED}.",
        f"server: told their labels, and {REPORTED}.",
    ]
    for table in (client_table(rows, 80), full_table(rows, 80)):
        said = lines(table)
        assert "recovered" in said[1] and "91 of 100" in "".join(said) and "leakage" in said[1]


def test_what_all_attacks_of_somebody_are_granted_is_said_once():
    told = {"knowledge": '{"num_private": 8, "steps": 4}'}
    rows = frame({"attack": "ntk"}, {"attack": "span"}, told | {"threat_model": "history", "attack": "ntk"},
                 told | {"threat_model": "history", "attack": "span"})  # fmt: skip
    assert granted_lines(rows) == [
        f"server: told nothing but {REPORTED}.",
        f"history: told the number of steps, and {REPORTED}.",
    ]
    union = {"client": -1, "knowledge": "{}"}
    views = frame(
        {}, {"threat_model": "history"}, union | {"threat_model": "observer"}, union | {"threat_model": "history"}
    )
    assert granted_lines(views) == [
        f"who sees one client: told nothing but {REPORTED}.",
        "who sees all clients together: told nothing.",
    ]
    adaptive = frame({}, told | {"attack": "ntk-adaptive"})
    assert granted_lines(adaptive)[1] == f"ntk-adaptive: told the number of steps, and {REPORTED}."
    mixed = frame({}, {"attack": "span"}, told, told | {"attack": "span", "threat_model": "history"})
    assert granted_lines(mixed)[1] == f"server ntk, history span: told the number of steps, and {REPORTED}."


def test_scores_stand_beside_the_floor_of_the_better_of_two_attackers_who_know_nothing():
    rows = frame({"mean_image_leakage": 0.3, "mean_image_l2_median": 1.5, "mean_image_psnr_mean": 14.0})
    said = lines(full_table(rows, 80))[-1]
    assert "0.50 (0.30)" in said and "(1.50)" not in said and "(14.0)" not in said  # one floor
    column = frame({"leakage_floor": 0.3})  # leakage.csv says what the screen shows
    assert "0.50 (0.30)" in lines(full_table(column, 80))[-1]


def test_the_verdict_is_wrapped_and_its_caveats_are_counted_where_they_are_too_many():
    caveats = [f"Caveat {number} says what takes more than a line of eighty letters to say." for number in range(9)]
    found = Verdict("exposed", "Client 2 is exposed worst." * 9, {"shown": ["A detail."], "caveats": caveats})
    said = verdict_lines(found, 80)
    assert said[0].startswith("EXPOSED: Client 2") and max(map(len, said)) <= 80 and "- A detail." in said
    assert said[-1] == "- 3 more with --all." and "Caveat 8" not in " ".join(said)
    assert "Caveat 8" in " ".join(verdict_lines(found, 80, show_all=True))
