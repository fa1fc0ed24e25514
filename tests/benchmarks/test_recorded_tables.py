"""The tables of docs/records are those of the data beside them."""

import json
from itertools import groupby
from pathlib import Path

import pandas as pd
import pytest

from tests.benchmarks import defense_table, headline, zoo

RECORDS = Path(__file__).parents[2] / "docs" / "records"


def lines_of(name):
    return list(map(json.loads, (RECORDS / name).read_text().splitlines()))


ROWS = {name: list(draws) for name, draws in groupby(lines_of("zoo.jsonl"), lambda line: line["row"])}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_zoo_is_what_its_ten_draws_say(name):
    assert len({draw["seed"] for draw in ROWS[name]}) == len(ROWS[name]) == 10
    assert zoo.line_of(name, ROWS[name]) in (RECORDS / "zoo.md").read_text().splitlines()


def test_the_table_at_equal_utility_is_what_its_run_says():
    equal = pd.read_csv(RECORDS / "defenses_equal_utility.csv")
    table = defense_table.markdown(defense_table.equal_rows(equal))
    assert table in (RECORDS / "defenses_equal_utility.md").read_text()


def test_the_table_of_the_headline_is_what_its_lines_say():
    curves = [line for line in lines_of("headline.jsonl") if line["part"] == "curves"]
    assert headline.table(curves) in (RECORDS / "headline.md").read_text()
