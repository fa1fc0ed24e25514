"""The sentences that a benchmark ends in."""

import pandas as pd

from simulator.reports.benchmark_advice import advice, compared, learned


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


def test_the_conclusion_names_defense_cost_attacker_and_members():
    first, *others = advice(table(NONE, CHANCE, HOLDING, ROUNDED, SPARSE))
    assert first.startswith("random_k lets least through of those that cost at most 3 points of accuracy: 0% of the")
    for said in ("95 % interval 0% to 10%", "(span, server), 100% without", "at -2.0 points", "(0.83)", "AUC of 0.84"):
        assert said in first
    assert others[0].startswith("Next: noise 40% (+0.0 points), dropout 95% (+1.0 points).")  # held is leaked
    assert "do not tell it from" not in others[0]
    alike = advice(table(NONE, SPARSE, ("sign_sgd", 0.1, 0.1, 0.84, {})))
    assert "The intervals do not tell it from sign_sgd." in alike[1]
    assert "one seed" in others[-1] and "what so few can exclude" in others[-1]


def test_a_defense_that_learns_nothing_is_no_equal_of_one_that_does():
    rows = table(NONE, CHANCE, SPARSE)
    assert learned(rows) == {"none", "random_k"}
    said = advice(rows)
    assert "dp_sgd" not in said[0] and any(line.startswith("Not compared: dp_sgd cost more than 10") for line in said)


def test_the_worst_threat_model_is_what_a_defense_leaks():
    union = ("random_k", 0.6, 0.6, 0.83, {"threat_model": "observer", "adaptive": True, "attack": "ntk"})
    rows = table(NONE, SPARSE, union)
    assert compared(rows).leak.tolist() == [0.6, 1.0]
    assert "60% of the private images" in advice(rows)[0] and "(ntk, told the defense, observer)" in advice(rows)[0]


def test_where_none_helps_or_none_is_compared_that_is_said():
    assert advice(table(NONE, CHANCE))[0] == "No defense is among those that cost at most 3 points of accuracy."
    assert "lets less through than no defense: 100%" in advice(table(NONE, ("clipping", 1.0, 1.0, 0.85, {})))[0]
    assert advice(table(NONE)) == advice(table(SPARSE)) == []
    broken = ("top_k", float("nan"), float("nan"), 0.85, {})
    assert "random_k lets least" in advice(table(NONE, broken, SPARSE))[0]  # a row that broke ends nothing
