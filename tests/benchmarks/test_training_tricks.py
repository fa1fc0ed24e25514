"""Clients of `training_tricks` of whom images that are nobody's had come back, among ten fresh ones of each trick."""

import pytest

from tests.benchmarks.training_tricks import counted, small_sets


@pytest.mark.parametrize(
    ("trick", "seed", "returned"),
    [
        ("AdamW", 7006, 0),  # the signs of its only image, behind one hidden layer
        ("pixels 0 to 255, small rate", 7000, 1),  # 2.8 times too bright: rounding had taken its bias, and is undone
        ("clipped gradients", 7004, 5),  # two hold 43 and 14 % of an image whose dual holds theirs
        ("update in 8 bits", 7006, 1),  # ten times the one image less nine times the other, beside the other
    ],
)
def test_what_had_been_nobodys_is_not_returned(trick, seed, returned, shared_data):
    row, _ = counted(trick, seed, small_sets(shared_data))
    assert (row["returned"], row["strays"]) == (returned, 0)
