"""Defenses at equal loss of accuracy, from a hand-made table."""

import pandas as pd
import pytest

from simulator.reports.benchmark_table import equal_utility, settings, write_equal_utility
from simulator.reports.tables import equal_utility_grid, in_letters
from simulator.results.schema import AT_SETTING
from tests.simulator.reports.test_tables import printed


def table(*rows):
    """rows: (defense, accuracy difference, recovered), of one attack that the server runs."""
    frame = pd.DataFrame(rows, columns=["defense", "accuracy_difference", "recovered_fraction"])
    constant = {"threat_model": "server", "target": "private", "round": 6, "attack": "span", "adaptive": False}
    for name in AT_SETTING.split():
        constant.setdefault(name, 0)
    constant = {name: value for name, value in constant.items() if name not in frame}
    return frame.assign(**{**constant, "test_accuracy": 0.9 + frame.accuracy_difference})


SWEPT = [("none", 0.0, 1.0), ("noise", -0.5, 0.0), ("noise=0.1", 0.0, 0.9), ("noise=0.3", -0.02, 0.4)]
STRONG = ("noise=1.0", -0.1, 0.0)


def test_the_strongest_setting_within_the_loss_counts():
    found = equal_utility(table(*SWEPT, STRONG, ("dp_sgd=1.0", -0.7, 0.0))).set_index(["family", "accepted_loss"])
    assert found.setting["noise"].tolist() == ["noise=0.1", "noise=0.3", "noise=1.0"]  # at 1, 3 and 10 points
    assert found.recovered_fraction["noise"].tolist() == [0.9, 0.4, 0.0]
    assert found.setting["dp_sgd"].isna().all()  # every setting costs more
    assert "none" not in found.index.levels[0]


def test_the_printed_table_says_where_no_setting_is_cheap_enough():
    shown = printed(in_letters(equal_utility_grid(equal_utility(table(*SWEPT, ("dp_sgd=1.0", -0.7, 0.0)))), 80))
    assert "noise=0.3" in shown and shown.count("none costs so little") == 3 and "nan" not in shown


def test_a_setting_counts_with_the_attack_that_recovers_most():
    told = table(("noise=0.1", 0.0, 0.95)).assign(adaptive=True)
    found = settings(pd.concat([table(*SWEPT), told], ignore_index=True))
    assert dict(zip(found.defense, found.recovered_fraction, strict=True)) == {"noise=0.1": 0.95, "noise=0.3": 0.4}


def test_without_strengths_there_is_no_file(tmp_path):
    class Ran:
        path = tmp_path

    assert write_equal_utility(Ran, table(("none", 0.0, 1.0))).empty and not list(tmp_path.iterdir())
    assert len(write_equal_utility(Ran, table(*SWEPT))) == 3
    assert pd.read_csv(tmp_path / "equal_utility.csv").accepted_loss.tolist() == pytest.approx([0.01, 0.03, 0.1])
