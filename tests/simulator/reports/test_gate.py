"""--fail-above: what counts as above, what is refused before a run, and what nothing is known of."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from attacks import InputError
from simulator.reports.gate import Limit, judge, parse_limits

KNOWN = ["server", "observer", "span", "noise", "none"]


def table(*rows):
    base = {"round": 1, "client": 0, "threat_model": "server", "attack": "span", "defense": "none", "seed": 0,
            "target": "private", "status": "ok", "leakage": 0.1, "recovered": 0}  # fmt: skip
    return pd.DataFrame([base | row for row in rows])


def judged(frame, *limits):
    error, unknown = judge(frame, parse_limits(limits, KNOWN))
    return SimpleNamespace(error=error, unknown=unknown, exceeded=tuple(str(error or "").split("\n  ")[1:]))


def test_rows_above_are_named_the_worst_first_and_the_exit_code_is_4():
    found = judged(table({"leakage": 0.3}, {"leakage": 0.2}, {"leakage": 0.9, "client": -1, "round": 3}), "leakage=0.2")
    assert found.exceeded == (
        "leakage 0.9 > 0.2: round 3, all clients, server, span, seed 0",
        "leakage 0.3 > 0.2: round 1, client 0, server, span, seed 0",
    )
    assert found.error.exit_code == 4 and "client 0" in str(found.error) and not found.unknown


@pytest.mark.parametrize(
    "rows",
    [
        [{"leakage": 0.2}],  # the limit is met
        [{}, {"leakage": 1.0, "target": "distilled"}],  # images that a defense made are nobody's
    ],
)
def test_what_is_not_above_a_limit(rows):
    assert judged(table(*rows), "leakage=0.2", "recovered=0").error is None


@pytest.mark.parametrize(
    ("limit", "count"), [("observer:leakage=0.2", 1), ("server:leakage=0.2", 2), ("noise/server:leakage=0.2", 1)]
)
def test_a_limit_holds_where_it_says(limit, count):
    rows = table({"threat_model": "observer", "leakage": 0.5}, {"leakage": 0.6}, {"leakage": 0.7, "defense": "noise"})
    assert len(judged(rows, limit).exceeded) == count


def test_a_row_without_a_value_is_not_safe_but_named():
    found = judged(table({}, {"leakage": np.nan, "status": "timeout"}), "leakage=0.2")
    (line,) = found.unknown
    assert found.error is None and "1 of 2 rows have no value (timeout)" in line and "does not make them safe" in line


def test_a_limit_that_no_row_has_a_value_for_counts_as_exceeded():
    assert "none of 1 rows has a value" in str(judged(table({"leakage": np.nan}), "leakage=0.2").error)
    assert judged(table({}), "membership_tpr=0.5").error is not None  # the column is not there at all


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("leakage", "write COLUMN=VALUE"), ("=0.2", "write COLUMN=VALUE"), ("leakge=0.2", "did you mean 'leakage'?"),
        ("attack=1", "no numeric column 'attack'"), ("leakage=much", "'much' is no finite number"),
        ("leakage=nan", "no finite number"), ("sever:leakage=0.2", "did you mean 'server'?"),
    ],
)  # fmt: skip
def test_what_is_no_limit_is_refused(text, says):
    with pytest.raises(InputError, match="--fail-above") as error:
        parse_limits([text], KNOWN)
    assert says in str(error.value)


def test_a_score_without_a_truth_is_refused_before_anything_is_attacked():
    with pytest.raises(InputError, match="'leakage' needs the private images: add --truth"):
        parse_limits(["leakage=0.2"], KNOWN, scored=False)
    assert parse_limits(["membership_told=0"], KNOWN, scored=False)


def test_a_limit_reads_as_it_was_written():
    assert str(Limit.parse("noise/server:leakage=0.25")) == "noise/server:leakage=0.25"
