"""What the headline figure says, on lines made by hand and on a client of a few digits."""

import pytest
import torch

from attacks import Knowledge
from tests.attacks.conftest import client, digits, mlp
from tests.benchmarks import headline


def test_too_few_candidates_are_filled_up_with_the_mean_image():
    """Two images of four pixels, at L2 2 and 4 from the mean, which is 0; the second one comes back, off by 0.2."""
    private = torch.tensor([1.0, 2.0]).view(2, 1, 1, 1).expand(2, 1, 2, 2)
    assert headline.curve(private, private[1:] + 0.1) == [0.2, 2.0]
    assert headline.curve(private, private[:0]) == [2.0, 4.0]
    assert headline.within(private, private.flip(0) + 0.5, 1.0) == 2


def test_the_recipe_is_watched_and_not_changed(monkeypatch):
    private = digits(3)
    observed = client(mlp(32), private), private, Knowledge(num_private=3, pixel_mean=(0.3,))
    monkeypatch.setattr(headline, "RECIPE", dict.fromkeys(headline.NTK, 30))
    monkeypatch.setattr(headline, "LOOKS", {10, 30})
    monkeypatch.setattr(headline, "ITERATIONS", dict.fromkeys(headline.NTK, 30))
    notes = headline.follow("ntk, now", observed, 0)["notes"]
    assert [note["iteration"] for note in notes] == [10, 30] and notes[1]["seconds"] > notes[0]["seconds"]
    ended = headline.attack("ntk, now", observed, 0)["l2"]
    assert [notes[-1][f"within_{bound:g}"] for bound in (1, 2)] == [sum(l2 <= b for l2 in ended) for b in (1, 2)]


def test_the_table_has_a_share_within_each_bound():
    line = {"data": "mnist", "width": 8, "images": 4, "seconds": 3.2, "l2": [0.5, 1.5, 1.9, 7.0]}
    said = headline.table([{**line, "attack": "span"}]).splitlines()
    assert said[0] == "| data | width | images | span |" and said[2] == "| mnist | 8 | 4 | 25% / 75%, 3 s |"


@pytest.mark.parametrize("part", ["curves", "recipe"])
def test_the_figure_is_drawn_of_what_there_is(part, tmp_path):
    base = {"part": part, "data": "mnist", "width": 1024, "images": 20, "seed": 0, "attack": "span", "device": "cpu"}
    notes = [{"iteration": 0, "seconds": 1.0, "within_1": 20, "within_2": 20}]
    headline.draw([base | ({"l2": [0.1] * 20} if part == "curves" else {"notes": notes})], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
