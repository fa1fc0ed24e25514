"""The sentences that a benchmark ends in."""

from types import SimpleNamespace

import pandas as pd
import pytest

from simulator.reports.benchmark_advice import (
    advice,
    benchmark_verdict,
    compared,
    learned,
    only_learned,
    untrained,
)
from tests.simulator.reports.conftest import leakage_row, utility_row


def table(*rows):
    """rows: (defense, recovered, held, accuracy, further columns)."""
    same = {"attack": "span", "threat_model": "server", "adaptive": False, "target": "private", "round": 8, "seeds": 1}
    same |= {"leakage": 0.5, "recovered_fraction_low": 0.0, "membership_auc": 0.84}
    return pd.DataFrame(
        [
            {"defense": name, **same, "recovered_fraction": found, "recovered_fraction_high": found + 0.1}
            | {"held_fraction": held, "test_accuracy": accuracy, "accuracy_difference": accuracy - 0.85, **more}
            for name, found, held, accuracy, more in rows
        ]
    )


NONE, CHANCE = ("none", 1.0, 1.0, 0.85, {}), ("dp_sgd", 0.0, 0.0, 0.09, {})
SPARSE, HOLDING = ("random_k", 0.0, 0.0, 0.83, {}), ("dropout", 0.0, 0.95, 0.86, {})
ROUNDED = ("noise", 0.4, 0.4, 0.85, {"recovered_fraction_low": 0.3})


def advised(*rows):
    return advice(table(*rows), 0.1)


def test_the_conclusion_names_defense_cost_attacker_and_members():
    first, *others = advised(NONE, CHANCE, HOLDING, ROUNDED, SPARSE)
    assert first.startswith("random_k lets least through of what costs at most 3 points of accuracy: 0% of the")
    for said in ("(95 % interval: 0% to 10%)", "is span (server)", "100% without a defense"):
        assert said in first
    assert "Accuracy is 0.83 (-2.0 points)" in first and "AUC of 0.84" in first
    assert others[0].startswith("Next: noise 40% (+0.0 points), dropout 95% (+1.0 points).")  # held is leaked
    assert "do not tell it from" not in others[0]
    alike = advised(NONE, SPARSE, ("sign_sgd", 0.1, 0.1, 0.84, {}))
    assert "The intervals do not tell it from sign_sgd." in alike[1]
    assert "one seed" in others[-1] and "what so few can exclude" in others[-1]


def test_a_defense_that_learns_nothing_is_no_equal_of_one_that_does():
    assert learned(table(NONE, CHANCE, SPARSE)) == {"none", "random_k"}
    said = advised(NONE, CHANCE, SPARSE)
    assert "dp_sgd" not in said[0] and any(line.startswith("Not compared: dp_sgd cost more than 10") for line in said)


def test_a_verdict_of_one_row_names_it():
    said = "This is row 'none', without a defense, as all others cost more than 10 points of accuracy. "
    assert only_learned(table(NONE, CHANCE)) == said
    assert only_learned(table(NONE, CHANCE, SPARSE)) == only_learned(table(NONE)) == ""


def test_the_verdict_of_a_benchmark_is_its_conclusion_and_not_of_what_learned_nothing():
    """A reader's case: the headline was about no defense, and the box named svt at an accuracy of 0.12 as an equal."""
    leakage = pd.DataFrame([leakage_row(8, 14), leakage_row(8, 14, 0, defense="random_k"),
                            leakage_row(8, 14, 0, defense="dp_sgd")])  # fmt: skip
    utility = pd.DataFrame([utility_row(0), utility_row(8, test_accuracy=0.85)])
    record = SimpleNamespace(leakage=leakage, utility=utility, stopped="")
    found = benchmark_verdict(record, table(NONE, SPARSE, CHANCE))
    assert found.level == "exposed" and found.headline.startswith("random_k lets least through of what costs at most")
    assert [line[:13] for line in found.of("shown")[:2]] == ["Not compared:", "How sure: one"]
    assert found.of("shown")[2].startswith("Client 14 is exposed worst (at no defense)") and not found.of("next")
    assert "No attack has an image at random_k." in found.of("tried") and "dp_sgd" not in str(found.of("tried"))
    alone = benchmark_verdict(record, table(NONE))
    assert alone.headline.startswith("Client 14 is exposed worst") and alone.of("next")


def test_what_an_eye_would_know_is_let_through():
    """personal_first: 2 % of the images recovered, and 26 % that an eye would know."""
    seen = ("personal_first", 0.02, 0.02, 0.84, {"recognized_fraction": 0.26})
    assert "26% of the private images (returned: 2%" in advised(NONE, seen)[0]
    floor = ("personal_first", 0.02, 0.02, 0.84, {"recognized_fraction": 0.26, "floor_recognized_fraction": 0.3})
    assert "2% of the private images (95 % interval: 0% to" in advised(NONE, floor)[0]


def test_one_that_costs_more_and_lets_less_through_is_named():
    dear, dearer = ("power_sgd", 0.01, 0.01, 0.77, {}), ("prune_easiest", 0.8, 0.8, 0.77, {})
    assert "Less comes through, for 3 to 10 points: power_sgd 1% (-8.0 points)." in advised(NONE, ROUNDED, dear, dearer)
    assert "power_sgd 1%" in advised(NONE, dear)[1]
    assert "Less" not in str(advised(NONE, SPARSE, dear))


def test_where_nothing_was_learned_no_defense_is_named():
    (said,) = advice(table(NONE, SPARSE), 0.6)
    assert "not learned" in said and "0.85 after round 8, 0.60 before" in said and "random_k" not in said
    utility = pd.DataFrame({"round": [0, 0, 1], "defense": "none", "test_accuracy": [0.1, 0.2, 0.9]})
    assert untrained(utility) == pytest.approx(0.15)


def test_the_worst_threat_model_is_what_a_defense_leaks():
    union = ("random_k", 0.6, 0.6, 0.83, {"threat_model": "observer", "adaptive": True, "attack": "ntk"})
    assert compared(table(NONE, SPARSE, union)).leak.tolist() == [0.6, 1.0]
    said = advised(NONE, SPARSE, union)[0]
    assert "60% of the private images" in said and "ntk, told the defense (observer)" in said


def test_where_none_helps_or_none_is_compared_that_is_said():
    assert advised(NONE, CHANCE)[0] == "None of the defenses costs at most 3 points of accuracy."
    assert "lets less through than no defense: 100%" in advised(NONE, ("clipping", 1.0, 1.0, 0.85, {}))[0]
    assert advised(NONE) == advised(SPARSE) == []
    broken = ("top_k", float("nan"), float("nan"), 0.85, {})
    assert "random_k lets least" in advised(NONE, broken, SPARSE)[0]  # a row that broke ends nothing
