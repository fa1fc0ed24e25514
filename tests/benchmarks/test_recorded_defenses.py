"""What the recorded table of the defenses lets pass, on tables made by hand."""

import pandas as pd
import pytest

from tests.benchmarks.recorded_defenses import FIGURES, SAME_EVERYWHERE, differences


def table(processor, *rows):
    """rows: (defense, share of the images that come back, failures)."""
    key = {"attack": "span", "threat_model": "server", "adaptive": False, "target": "private", "round": 8}
    same = dict.fromkeys(SAME_EVERYWHERE, 1.0)
    return pd.DataFrame(
        [
            {"processor": processor, "defense": defense, **key, **dict.fromkeys(FIGURES, share), **same}
            | {"failures": failures, "psnr_mean": 90 * share}
            for defense, share, failures in rows
        ]
    )


RECORDED = pd.concat(
    [table("new", ("none", 1.0, 0), ("noise", 0.7, 0)), table("old", ("none", 0.9, 0), ("noise", 0.0, 0))]
)


def test_on_a_processor_that_was_recorded_every_row_is_the_very_same():
    assert differences(table("new", ("noise", 0.7, 0), ("none", 1.0, 0)), RECORDED) == []
    found = differences(table("new", ("none", 0.975, 0), ("noise", 0.7, 0)), RECORDED)
    assert len(found) == len(FIGURES) + 1 and all("'none'" in line for line in found)  # psnr_mean, too


@pytest.mark.parametrize("share", [0.0, 0.4, 0.94])
def test_on_another_processor_figures_lie_between_those_recorded_or_near_them(share):
    assert differences(table("third", ("none", 0.66, 0), ("noise", share, 0)), RECORDED) == []


def test_beyond_that_a_row_that_is_gone_and_a_failure_are_differences_everywhere():
    assert len(differences(table("third", ("none", 0.5, 0), ("noise", 0.5, 0)), RECORDED)) == len(FIGURES)
    for processor in ("new", "third"):
        found = differences(table(processor, ("none", 1.0, 1), ("other", 0.0, 0)), RECORDED)
        said = {line.rpartition(")")[2] for line in found}
        assert said == {" failures: 1, recorded 0", ": gone", ": not recorded"}
    assert differences(table("third", ("none", float("nan"), 0), ("noise", 0.5, 0)), RECORDED)


def test_a_text_has_to_be_the_same_also_where_no_row_of_the_recorded_table_has_one():
    recorded = RECORDED.assign(not_attacked_by=float("nan"))
    found = table("new", ("none", 1.0, 0), ("noise", 0.7, 0)).assign(not_attacked_by=[None, "span (refused: why)"])
    (line,) = differences(found, recorded)
    assert line.endswith("not_attacked_by: span (refused: why), recorded nan")
    assert len(differences(recorded[:2], recorded.assign(not_attacked_by=["other", None] * 2))) == 1
    assert differences(found, recorded.assign(not_attacked_by=found.not_attacked_by.tolist() * 2)) == []
