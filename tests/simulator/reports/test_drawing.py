"""Styles and labels: a name looks the same in every figure, and labels do not lie on each other."""

import numpy as np
import pytest

from clients.defenses import DEFENSES
from simulator.reports.drawing import apart, styles


def test_a_defense_looks_the_same_whoever_stands_beside_it():
    alone, among = styles(["noise", "clipping+noise"]), styles([*sorted(DEFENSES), "none", "clipping+noise", "x=1"])
    assert alone["noise"] == among["noise"] and alone["clipping+noise"] == among["clipping+noise"]
    assert styles(["none"])["none"]["color"] == "#000000"


def test_no_two_names_share_colour_and_marker():
    names = ["none", *DEFENSES, *map(str, range(56 - len(DEFENSES)))]
    looks = {(style["color"], style["marker"]) for style in styles(names).values()}
    assert len(looks) == len(names) == 57


@pytest.mark.parametrize(
    ("wanted", "placed"),
    [
        ([0.2, 0.5], [0.2, 0.5]),
        ([0.5, 0.5, 0.5], [0.5, 0.6, 0.7]),
        ([1.0, 1.0, 1.0], [0.8, 0.9, 1.0]),  # no room above
        ([0.0, 1.0, 1.0], [0.0, 0.9, 1.0]),
    ],
)
def test_labels_are_a_line_apart_and_near_their_points(wanted, placed):
    assert apart(wanted, 0.1) == pytest.approx(np.array(placed))
