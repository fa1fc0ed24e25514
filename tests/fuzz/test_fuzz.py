"""A small share of `make fuzz`, always the same: `make fuzz COUNT=100000` is the whole."""

import pytest

from tests.fuzz.harness import fuzz
from tests.fuzz.kinds import KINDS

COUNT = {"plan": 3, "run folder": 10, "mailed run": 4, "scenario": 20}  # these take longest


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_broken_input_is_one_error_or_a_valid_result(kind, tmp_path):
    report = fuzz(kind, COUNT.get(kind, 40), seed=0, keep=tmp_path)
    assert report.findings == []
    assert report.refused  # it is broken, after all


def test_what_is_neither_is_a_finding(tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, "set", KINDS["set"].__class__(KINDS["set"].inputs, lambda text: 1 // 0))
    report = fuzz("set", 2, seed=0, keep=tmp_path)
    assert [what for what, _ in report.findings] == ["ZeroDivisionError: 'integer division or modulo by zero'"] * 2
    assert len(list(tmp_path.rglob("text.txt"))) == 2
