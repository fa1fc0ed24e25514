import json
import math

import numpy as np
import pandas as pd
import pytest

from simulator.results.columns import SchemaError
from simulator.results.ledger import Ledger
from simulator.results.schema import LEAKAGE

KEY = {"defense": "none", "seed": 0, "target": "private", "attack": "ntk"}


def rows(round, client, threat="server", **columns):
    key = {**KEY, "round": round, "client": client, "threat_model": threat}
    sample = {**key, "image": 0, "l2": 0.5}
    return {"leakage": [{**key, "status": "ok", **columns}], "samples": [sample]}


def test_rows_are_sorted_whatever_order_they_came_in(tmp_path):
    ledger = Ledger(tmp_path)
    for round, client, threat in [(2, 0, "server"), (1, -1, "observer"), (1, 1, "server"), (1, 0, "server")]:
        ledger.add("", **rows(round, client, threat))
    table = ledger.tables()["leakage"]
    assert list(zip(table["round"], table["client"], strict=True)) == [(1, 0), (1, 1), (1, -1), (2, 0)]


def test_columns_stand_in_their_order_and_those_of_a_sweep_follow(tmp_path):
    ledger = Ledger(tmp_path, swept=["model.width"])
    ledger.add("", **rows(1, 0, num_private=8, **{"model.width": 64}))
    table = ledger.write_tables()["leakage"]
    assert list(table.columns) == [*LEAKAGE.columns, "model.width"]
    stored = pd.read_parquet(tmp_path / "leakage.parquet")
    assert stored.num_private.tolist() == [8] and stored.num_private.dtype == "Int64"
    assert pd.read_csv(tmp_path / "leakage.csv").num_private.tolist() == [8]
    assert len(pd.read_parquet(tmp_path / "samples.parquet")) == 1


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("num_inferred", 2.5),
        ("recovered", math.inf),
        ("num_private", 2**63),
        ("leakage", 10**400),
        ("leakage", "high"),
        ("leakage", True),
        ("leakage", [0.5]),
        ("leakage", np.ones(2)),
        ("knowledge", 3),
        ("adaptive", "yes"),
    ],
)
def test_a_value_that_fits_no_column_costs_neither_its_row_nor_a_table(tmp_path, column, value):
    ledger = Ledger(tmp_path)
    ledger.add("", **rows(1, 0, detail="first", **{column: value}))
    ledger.add("", **rows(1, 1, recovered=2))
    table = ledger.write_tables()["leakage"]
    assert table[column].isna()[0] and table.recovered.tolist()[1] == 2
    assert table.detail[0].startswith(f"first; {column} = ") and table.detail[0].endswith("is no value of that column")


@pytest.mark.parametrize(
    ("column", "value", "written"),
    [
        ("num_inferred", np.int64(3), 3),
        ("num_inferred", 3.0, 3),
        ("leakage", np.float32(0.5), 0.5),
        ("leakage", 1, 1.0),
        ("psnr_mean", math.inf, math.inf),
        ("adaptive", np.bool_(True), True),
    ],
)
def test_numbers_of_numpy_are_numbers(tmp_path, column, value, written):
    ledger = Ledger(tmp_path)
    ledger.add("", **rows(1, 0, **{column: value}))
    assert ledger.write_tables()["leakage"][column].tolist() == [written]


def test_reopening_keeps_finished_cells_and_drops_the_others(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.add("a", **rows(1, 0))
    ledger.mark_done("a")
    ledger.add("b", **rows(1, 0))
    again = Ledger(tmp_path)
    assert again.done == {"a"}
    assert len(again.tables()["leakage"]) == 1


def test_attacks_of_an_unfinished_cell_are_taken_up_where_they_attacked_the_same(tmp_path):
    ledger, attacks = Ledger(tmp_path), [{**KEY, "round": 1, "client": i, "threat_model": "server"} for i in range(4)]
    attacks = [{name: row[name] for name in ("round", "client", "threat_model", "attack")} for row in attacks]
    for client, attack in enumerate(attacks):
        ledger.put("b", attack, f"checkpoint {client}", **rows(1, client, leakage=0.5))
    ledger.add("b", utility=[{"round": 1}])
    lines = ledger.journal.read_text().splitlines(keepends=True)
    ledger.journal.write_text("".join(lines[:-2]))  # the row of utility and the sample of client 3 are lost
    for _ in range(2):  # however often a run is interrupted
        ledger = Ledger(tmp_path)
        assert ledger.tables()["leakage"].client.tolist() == [0, 1, 2] and ledger.tables()["utility"].empty
    assert ledger.take_up("b", attacks[0], "checkpoint 0")["leakage"] == 0.5
    assert ledger.take_up("b", attacks[1], "another") is ledger.take_up("b", attacks[3], "checkpoint 3") is None
    ledger.put("b", attacks[1], "another", **rows(1, 1, leakage=0.7))
    ledger.mark_done("b")  # nobody asked for client 2
    again = Ledger(tmp_path)
    assert again.done == {"b"} and again.tables()["leakage"].leakage.tolist() == [0.5, 0.7]
    assert len(again.tables()["samples"]) == 2


def test_an_attack_that_ran_out_of_time_is_replaced_and_all_else_stays(tmp_path):
    ledger = Ledger(tmp_path)
    for cell in ("a", "b"):
        for client in (0, 1):
            ledger.add(cell, **rows(1, client, status="timeout" if (cell, client) == ("a", 1) else "ok"))
    ledger.mark_done("a", {"file": "00000000"})
    ledger = Ledger(tmp_path)  # b was not done
    ((cell, late),) = ledger.out_of_time
    assert (cell, late["client"]) == ("a", 1)
    columns = {"round": 1, "client": 1, "threat_model": "server", "attack": "ntk"}
    ledger.put("a", columns, **rows(1, 1, status="ok", recovered=2))
    ledger.add("b", **rows(1, 0))  # the file is still open
    table = ledger.tables()["leakage"]
    assert table.query("client == 1").recovered.tolist() == [2] and table.status.tolist() == ["ok"] * 3
    again = Ledger(tmp_path)
    assert again.done == {"a"} and again.out_of_time == again.problems == []
    assert again.tables()["leakage"].client.tolist() == [0, 1] and len(again.tables()["samples"]) == 2


def test_a_torn_last_line_is_ignored(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.add("a", **rows(1, 0))
    ledger.mark_done("a")
    with ledger.journal.open("a") as file:
        file.write('{"table": "leakage", "ce')
    assert len(Ledger(tmp_path).tables()["leakage"]) == 1


def test_every_line_of_the_journal_is_json(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.add("", utility=[{"round": 1, "test_accuracy": 0.5}])
    lines = ledger.journal.read_text().splitlines()
    assert [json.loads(line)["table"] for line in lines] == ["utility"]
    assert ledger.tables()["utility"].test_accuracy.tolist() == [pytest.approx(0.5)]


def test_a_column_that_is_neither_declared_nor_swept_is_an_error_at_once(tmp_path):
    ledger = Ledger(tmp_path, swept=["model.width"])
    for bad in (rows(1, 0, contrast=0.5), rows(1, 0, **{"model.depth": 2})):
        with pytest.raises(SchemaError, match=r"no column .*: declare it in simulator/results/schema\.py"):
            ledger.add("", **bad)
    with pytest.raises(SchemaError, match="table 'utility' has no column 'accuracy'"):
        ledger.add("", utility=[{"round": 1, "accuracy": 0.5}])
    assert ledger.journal.read_text() == ""
