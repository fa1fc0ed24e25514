import json

import pandas as pd
import pytest

from clients.defenses.guarantee import Guarantee, to_json
from simulator.results.privacy import privacy_columns, privacy_notes, worst_columns

CENTRAL = Guarantee("central_dp", 3.0, 1e-5, "client", "observer", "add_remove")
RECORD = Guarantee("dp_sgd", 8.0, 1e-5, "record", "both", "add_remove")
LOCAL = Guarantee("local_dp", 12.0, 1e-6, "client", "both", "replace_one", 20.0)


def test_a_row_shows_the_first_guarantee_that_holds_against_its_adversary():
    row = privacy_columns([CENTRAL, RECORD, LOCAL], "server")
    assert (row["epsilon"], row["delta"], row["privacy_unit"], row["privacy_against"]) == (8.0, 1e-5, "record", "both")
    assert [one["mechanism"] for one in json.loads(row["guarantees"])] == ["central_dp", "dp_sgd", "local_dp"]
    assert privacy_columns([CENTRAL, RECORD], "observer")["epsilon"] == 3.0
    assert privacy_columns([LOCAL], "server")["nominal_epsilon"] == 20.0
    assert privacy_columns([CENTRAL])["epsilon"] == 3.0  # a row about nobody


def test_where_none_holds_the_cell_is_empty_and_the_detail_says_why():
    assert set(privacy_columns([CENTRAL], "server")) == {"guarantees"}
    (note,) = privacy_notes([CENTRAL], "server")
    assert note == "no guarantee against the server (central_dp: ε 3 at δ 1e-05 of one client against observer)"


def test_two_mechanisms_are_both_in_the_detail_and_one_alone_is_no_news():
    (note,) = privacy_notes([RECORD, LOCAL], "server")
    assert "dp_sgd: ε 8" in note and "local_dp: ε 12" in note and "server and observer" in note
    assert privacy_notes([RECORD], "server") == privacy_notes([], "server") == []
    assert privacy_columns([], "server") == {}


def replies(*of_clients):
    return pd.DataFrame({"guarantees": [to_json(own) if own else None for own in of_clients]})


def test_of_many_replies_the_largest_epsilon_counts_and_one_without_leaves_none():
    larger = Guarantee("dp_sgd", 9.0, 1e-5, "record", "both", "add_remove")
    both = worst_columns(replies([larger], [RECORD]), "server")
    assert both["epsilon"] == 9.0 and both["privacy_unit"] == "record" and both["guarantees"] == to_json([larger])
    assert set(worst_columns(replies([CENTRAL], [CENTRAL]), "server")) == {"guarantees"}
    assert worst_columns(replies([CENTRAL], []), "observer") == worst_columns(replies(), "observer") == {}
    assert worst_columns(pd.DataFrame([{"round": 1}]), "server") == {}


@pytest.mark.parametrize("against", ["server", "observer"])
def test_columns_are_those_of_the_schema(against):
    from simulator.results.schema import LEAKAGE

    assert set(privacy_columns([CENTRAL, LOCAL], against)) <= set(LEAKAGE.columns)
