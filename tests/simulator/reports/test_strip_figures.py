"""Strips of images: what they show, how they are labelled and how much room they take."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from clients.local_update import load_data
from simulator.reports import drawing
from simulator.reports.drawing import draw_strips, image_grid
from simulator.results.keys import ObservationKey
from simulator.results.schema import LEAKAGE, SAMPLES
from simulator.rundir.strip import Strip, strip_of, title_of
from tests.simulator.reports.conftest import DISTILLED, leakage_row, sample_rows


@pytest.fixture
def drawn(monkeypatch):
    """Figures that would have been saved."""
    figures = []
    monkeypatch.setattr(drawing, "save", lambda figure, path: figures.append(figure) or path)
    return figures


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_pairs_show_the_images_that_the_row_was_scored_against(record):
    private, distilled = (strip_of(record, row, "") for _, row in record.leakage.iterrows())
    (image,) = distilled.private
    assert torch.equal(image, DISTILLED[1]) and distilled.l2[0] == pytest.approx(0.8, rel=1e-4)  # the nearer of the two
    own = load_data(record.cells[""].client_config(use_gpu=False)).client(0)[0]
    assert any(torch.equal(private.private[0], image) for image in own)


def test_pairs_are_those_that_the_verdict_counts(record):
    """Five digits that come back as negatives in another order: each lies nearer to another one's negative."""
    digits = torch.tensor(load_digits().images[:5] / 16, dtype=torch.float32)[:, None]
    found, order = 1 - digits[[3, 0, 4, 2, 1]], [3, 0, 4, 2, 1]
    closest = torch.cdist(digits.flatten(1), found.flatten(1)).argmin(1)
    assert [order[place] for place in closest] != [0, 1, 2, 3, 4]
    row = leakage_row(1, 0, 0, num_private=5, num_reconstructed=5, attack="ntk", recognized_threshold=0.9)
    rows = sample_rows(row | {"num_private": 5})
    record.samples = SAMPLES.frame([one | {"match": int(closest[one["image"]])} for one in rows])
    record.private_images = lambda key, cell: digits
    np.savez(record.store("").reconstruction_path(ObservationKey(1, 0, "server"), "ntk"), images=found.numpy())

    def pairs(**counts):
        strip = strip_of(record, LEAKAGE.frame([row | counts]).iloc[0], "")
        return [torch.equal(upper, 1 - lower) for upper, lower in zip(strip.private, strip.guesses, strict=True)]

    assert pairs(recognized=5, null_recognized_p=0.01, recognized_fraction=1.0) == [True] * 5
    assert not all(pairs())


def test_without_a_truth_the_best_reconstructions_stand_alone(record, drawn, tmp_path):
    record.samples = record.samples.iloc[:0]
    row = record.leakage.iloc[0]
    strip = strip_of(record, row, "found")
    assert strip.private is None and len(strip) == row.num_reconstructed
    draw_strips([strip], tmp_path / "x.png")
    assert texts(drawn[0])[1:] == ["reconstructed"]


def test_without_a_truth_what_was_held_back_is_shown_where_nothing_was_returned(record):
    """Sixteen digits of a client with dropout were exact, and nobody saw them: the picture said "nothing returned"."""
    record.samples = record.samples.iloc[:0]
    row = record.leakage.iloc[0]
    held, path = torch.rand(3, 1, 8, 8), record.store("").reconstruction_path(ObservationKey.of(row), row.attack)
    np.savez(path, images=held[:0].numpy(), held=held.numpy())
    strip = strip_of(record, row.where(row.index != "num_held", 3), "client 0", most=2)
    assert torch.equal(strip.guesses, held[:2])
    assert strip.heading == "client 0; held back, not sure (the first 2 of 3 shown)"
    assert not len(strip_of(record, row.where(row.index != "num_held", 0), "client 0"))


def test_strips_take_as_many_lines_as_their_images_need(tmp_path, drawn):
    images = torch.rand(5, 1, 4, 4)
    five = Strip("five", images, images, np.arange(5.0), total=7)
    none = Strip("none", images[:0], images[:0], np.ones(0))
    draw_strips([five, none], tmp_path / "sheet.png", columns=3)
    (figure,) = drawn
    labels = ["private", "reconstructed"]
    first = ["five (the closest 5 of 7 shown)", *labels, "L2 0.00", "L2 1.00", "L2 2.00"]
    assert texts(figure) == [*first, *labels, "L2 3.00", "L2 4.00", "none", "nothing returned"]
    (sheet,) = figure.axes
    bottoms = {round(image.get_extent()[2], 4) for image in sheet.images}
    assert len(bottoms) == 4  # two lines of two rows
    assert sheet.get_ylim() == (0, pytest.approx(figure.get_figheight()))  # its units are inches
    assert min(bottoms) < 1.0  # a strip without images is two lines of text high


def test_a_sheet_has_the_worst_first_and_says_how_many_are_left_out(record, drawn, tmp_path):
    row = record.leakage.iloc[0]
    rows = record.leakage.iloc[[0] * 9].assign(recovered=range(9), recovered_fraction=[n / 9 for n in range(9)])
    sheet = image_grid(record, rows.reset_index(drop=True), tmp_path / "x.png")
    assert texts(drawn[0])[0] == "8 of 9 updates are shown, the worst first" and "8 of 9 updates" in sheet.caption
    assert texts(drawn[0])[1].startswith(f"client 0, round 1: 8 of {row.num_private} recovered")


def test_a_title_says_where_and_how_much(record):
    row = record.leakage.iloc[0]
    many = row.copy()
    many["recovered"], many["held"], many["cell"] = 1, 2, "learning_rate=0.1,seed=0"
    assert title_of(many).startswith("client 0, round 1 (learning rate 0.1, seed 0): 1 of 3 recovered, 2 held, leakage")
    many["recovered_affine"] = 3
    assert "1 of 3 recovered, 2 held, 3 relit, leakage" in title_of(many)
