"""The page as text: what it says, that it needs nothing else, and how large it gets."""

import io
import re
from base64 import b64decode

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from simulator.reports.figures import draw_figures
from simulator.reports.page import pictures as page_pictures
from simulator.reports.page.pages import render, run_page
from simulator.reports.page.pictures import distance, in_words, picture_of, tile
from simulator.reports.tables import leakage_grid, utility_grid
from simulator.results.keys import ObservationKey
from simulator.results.schema import LEAKAGE, SAMPLES, UTILITY
from simulator.rundir import exposure_rows
from simulator.rundir.strip import Strip
from tests.simulator.reports.conftest import leakage_row, sample_rows, utility_row

FIVE_MEGABYTES = 5 * 1000 * 1000


@pytest.fixture
def noise(monkeypatch):
    """Strips of images that cannot be compressed, as large as people have them."""

    def strip_of(run, row, title, most=10, counted=None):
        count = min(most, row["recovered"])
        images = torch.rand(count, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        return Strip(title, images, images, torch.full((count,), 0.15).numpy(), "private", row["recovered"])

    monkeypatch.setattr(page_pictures, "strip_of", strip_of)


def test_a_page_says_what_was_found_and_needs_nothing_else(record, monkeypatch):
    monkeypatch.setattr(exposure_rows, "BLIND", ())  # the baseline stands for an attack
    record.leakage = record.leakage.assign(recovered=1, null_recovered_p=0.01)
    text = render(run_page(record, draw_figures(record)))
    assert text.lstrip().startswith("<!doctype html>") and '<html lang="en">' in text
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text) and "url(" not in text and "@import" not in text
    wanted = ("viewport", "prefers-color-scheme", "@media print", "<figcaption>", "<details", "fedspill run s.yaml")
    for needle in wanted:
        assert needle in text
    assert all(re.findall(r'<img [^>]*alt="[^"]{8,}"', image) for image in re.findall(r"<img [^>]*>", text))
    row = record.leakage[record.leakage.target == "private"].iloc[0]
    floor = max(row.floor_leakage, row.mean_image_leakage)
    said = "Client 0, round 1: 1 private image above what mean_image made of the update; 1 of 3 recovered. "
    assert f"{said}Leakage {row.leakage:.2f} (the floor is {floor:.2f}), median L2" in text and floor > 0
    assert row.leakage_floor == floor


def test_what_users_write_is_text_and_no_markup(record):
    record.description["scenario"]["name"] = "<script>alert(1)</script>"
    record.leakage["detail"] = "<b>bold</b>"
    text = render(run_page(record, ()))
    assert "<script>alert" not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text and "<b>bold" not in text


def test_a_page_on_what_failed_names_the_reasons_and_shows_no_picture(record):
    unmeasured = {"membership_auc": float("nan"), "class_counts": None, "recovered": None}
    record.leakage = record.leakage.assign(status="timeout", detail="gave up after 3 s", **unmeasured)
    page = run_page(record, ())
    assert page["verdict"].level == "no result" and page["worst"] is None and not page["exposures"].rows
    text = render(page)
    assert "gave up after 3 s" in text and "Nobody compared them with the truth" not in text


def test_ten_rounds_of_ten_clients_are_small_enough_to_be_mailed(large, noise):
    drawn = draw_figures(large, lambda line: None)
    page = run_page(large, [one for one in drawn if not one.path.stem.startswith("reconstructions")])
    assert len(page["tables"][0].rows) == 220 and 3 <= len(page["others"]["pictures"]) <= 12
    assert len(render(page).encode()) < FIVE_MEGABYTES


def test_clients_that_there_is_no_room_for_are_counted(large, noise):
    rows = [leakage_row(1, client, recovered=1 + client % 8) for client in range(30)]
    large.leakage = LEAKAGE.frame(rows)
    others = run_page(large, ())["others"]
    assert len(others["pictures"]) == 12 and others["not_shown"].startswith("17 more clients are not shown")


def test_clients_of_whom_nothing_came_back_are_named_in_one_line(large, noise):
    large.leakage = LEAKAGE.frame([leakage_row(1, 0), leakage_row(1, 1, recovered=0), leakage_row(1, 2, recovered=0)])
    others = run_page(large, ())["others"]
    assert others["pictures"] == [] and others["without"] == ["client 1, round 1", "client 2, round 1"]


def test_a_client_of_whom_all_is_held_is_named_and_takes_no_place_of_a_picture(large, noise):
    """Of client 0 the attacker has all, returned nothing, and there is nothing to draw."""
    held = leakage_row(1, 0, recovered=0, num_reconstructed=0, held=8)
    large.leakage = LEAKAGE.frame([held, leakage_row(1, 1, 3), leakage_row(1, 2, 0)])
    page = run_page(large, ())
    assert "client 0" in page["verdict"].headline.lower() and page["worst"]["title"] == "client 1, round 1"
    assert page["others"]["without"] == ["client 0, round 1 (held, not returned)", "client 2, round 1"]
    assert page["others"]["pictures"] == [] and "Worst returned: client 1" in render(page)


def test_the_headline_and_cells_have_no_backtick(large, noise):
    large.leakage = LEAKAGE.frame([leakage_row(1, 0, recovered=0, recognized=8)])
    page = run_page(large, ())
    assert "(`recognized`)" in page["verdict"].headline
    body = render(page).partition("<body")[2]
    assert (
        "(<code>recognized</code>)" in body and "`" not in body.partition('<h2 id="details"')[0].partition("<script")[0]
    )


def test_no_picture_is_of_what_the_verdict_does_not_count(large, noise):
    """Reviewers' case: coloured noise, headed as the worst, under NOTHING SHOWN."""
    large.leakage = LEAKAGE.frame([leakage_row(1, 0, recovered=2, floor_recovered_fraction=0.25, membership_auc=0.5)])
    page = run_page(large, ())
    assert page["verdict"].level == "nothing shown" and page["worst"] is None and page["others"]["pictures"] == []
    blind = dict.fromkeys(["num_private", "recovered", "leakage"]) | {
        "num_inferred": 8,
        "relative_residual": 0.4,
        "membership_auc": None,
    }
    large.leakage = LEAKAGE.frame([leakage_row(1, 0, recovered=8) | blind])
    assert run_page(large, ())["worst"] is None


@pytest.fixture
def eight(record):
    """Eight images of a client, of which seven came back: the closest of all matches is of another image."""
    images = torch.linspace(0, 1, 8)[:, None, None, None].expand(8, 1, 8, 8)
    record.leakage = LEAKAGE.frame([leakage_row(1, 0, 7, num_reconstructed=8, attack="ntk")])
    record.samples = SAMPLES.frame(
        [sample | {"l2": 1 - sample["image"] / 8} for sample in sample_rows(record.leakage.iloc[0])]
    )
    record.private_images = lambda key, cell: images
    np.savez(record.store("").reconstruction_path(ObservationKey(1, 0, "server"), "ntk"), images=images.numpy())
    return record


def shades(picture, which):
    """The brightness of each image of a picture, from 0 to 7."""
    sources = [pair[which]["source"] for group in picture["groups"] for pair in group]
    levels = [np.array(Image.open(io.BytesIO(b64decode(one.split(",")[1])))).mean() for one in sources]
    return [round(level * 7 / 255) for level in levels]


def test_a_picture_has_the_pairs_that_the_verdict_counts_and_no_other(eight):
    """A reader's case: the verdict says 7 of 8, and below it stood 8 pairs."""
    page = run_page(eight, ())
    assert "recovers 7 of its 8 private images" in page["verdict"].headline
    assert shades(page["worst"], "private") == shades(page["worst"], "guess") == [6, 5, 4, 3, 2, 1, 0]
    assert ": 7 private images above what ntk made of the update; 7 of 8 recovered." in page["worst"]["caption"]
    eight.leakage = eight.leakage.assign(recovered_affine=8, null_recovered_affine_p=0.01)
    assert shades(run_page(eight, ())["worst"], "guess") == [0, 1, 2, 3, 4, 5, 6, 7]  # flat ones are alike to none
    eight.leakage = eight.leakage.assign(recovered_affine=7, held=8)
    assert shades(run_page(eight, ())["worst"], "guess") == [6, 5, 4, 3, 2, 1, 0]


def test_a_picture_without_a_truth_has_no_more_images_than_the_verdict(eight):
    blind = dict.fromkeys(["recovered", "recovered_fraction", "leakage"]) | {"num_private": 6}
    eight.leakage = LEAKAGE.frame([leakage_row(1, 0, attack="ntk", relative_residual=0.02) | blind])
    eight.samples = eight.samples.iloc[:0]
    page = run_page(eight, ())
    assert "finds 6 images of 6 (very likely right" in page["verdict"].headline
    assert shades(page["worst"], "guess") == [0, 1, 2, 3, 4, 5] and ": 6 images that ntk" in page["worst"]["caption"]
    assert page["tables"][0].cells()["recovered"] == ["6 found"]
    eight.leakage = eight.leakage.assign(num_inferred=0)  # the update shows none of them
    assert run_page(eight, ())["tables"][0].cells()["recovered"] == ["8 doubtful"]


def test_the_box_has_what_broke_and_a_run_that_was_stopped_says_so(large):
    detail = "RuntimeError: out of cheese"
    failed = leakage_row(1, 1, status="failed", attack="ntk", detail=detail, membership_auc=None)
    large.leakage, large.stopped = (
        LEAKAGE.frame([leakage_row(1, 0, 0, membership_auc=0.5), failed]),
        "1 of 3 attacks are over",
    )
    text = render(run_page(large, ()))
    box = text.partition("</section>")[0]
    assert [title for title in re.findall("<h3>(.*)</h3>", box)] == [
        "Not finished", "Tried without result", "What broke"
    ]  # fmt: skip
    assert "out of cheese" in box and "1 of 3 attacks are over" in box


def test_pictures_that_cannot_be_shown_cost_a_line(large, monkeypatch):
    def gone(*args, **options):
        raise FileNotFoundError("digits have moved")

    monkeypatch.setattr(page_pictures, "strip_of", gone)
    said = []
    page = run_page(large, (), said.append)
    assert page["worst"] is None and "digits have moved" in said[0]


def test_without_a_truth_reconstructions_stand_alone(record):
    record.samples = record.samples.iloc[:0]
    picture = picture_of(record, record.leakage.iloc[0], 10)
    assert all(pair["private"] is None for group in picture["groups"] for pair in group)
    assert "Nobody compared them with the truth" in picture["caption"]


def test_what_recovered_and_leakage_mean_stands_below_the_first_picture(large, noise):
    section = render(run_page(large, ())).partition('<h2 id="worst">')[2].partition("<h2")[0]
    assert "recovered: PSNR of at least 20 dB" in section and "leakage: 1 is exact. In parentheses: the flo" in section


def test_what_a_defense_named_there_does_stands_below_what_to_do_next(large, noise):
    section = render(run_page(large, ())).partition("<h2>What to do next")[2].partition("<h2")[0]
    meaning = "Send the update of every layer in a compressed form, as the product of"
    assert f'<dt id="power_sgd">power_sgd</dt>\n<dd>{meaning}' in section
    assert section.count("<dt ") == 3  # those that the lines above name, `random_k` against members among them
    assert section.count('<a href="#power_sgd"><code>power_sgd</code></a>') == 2  # against images, and members


def test_a_page_of_members_alone_says_what_recovered_and_leakage_mean(large, noise):
    large.leakage = LEAKAGE.frame([leakage_row(1, 0, 0, num_reconstructed=8)])
    page = run_page(large, ())
    assert page["worst"] is None and any(line.startswith("Leakage 0.00") for line in page["verdict"].of("shown"))
    text = render(page)
    assert "recovered: PSNR of at least 20 dB" in text.partition("<h2>What to do next")[0]


def test_an_audit_has_a_page_without_scenario_and_utility(record):
    del record.description["scenario"]
    record.description["audit"] = {"recording": "runs/mine", "model": "net.py:Net", "shape": [1, 8, 8], "truth": None}
    record.without_utility = True
    page = run_page(record, ())
    assert (page["kind"], page["title"], page["utility"]) == ("audit", "mine", None)
    assert page["repeat"].startswith("fedspill audit runs/mine --model net.py:Net --shape 1,8,8 --out ")
    assert page["facts"]["What was done"]["recording"] == "runs/mine" and "fedspill audit runs/mine" in render(page)


def test_small_images_are_kept_as_they_are_and_large_ones_scaled_down():
    small = torch.tensor([[[0.0, 1.0], [0.2, 0.4]]])
    found = Image.open(io.BytesIO(b64decode(tile(small, "x")["source"].split(",")[1])))
    assert np.array(found).tolist() == [[0, 255], [51, 102]]  # 0.2 · 255, 0.4 · 255
    large = Image.open(io.BytesIO(b64decode(tile(torch.rand(3, 300, 200), "x")["source"].split(",")[1])))
    assert large.size == (85, 128)


@pytest.mark.parametrize(("l2", "text"), [(0.0, "0.00"), (0.154, "0.15"), (1.4e-6, "1e-6"), (0.006, "0.01")])
def test_a_distance_that_is_nearly_nothing_is_not_called_nothing(l2, text):
    assert distance(l2) == text


def test_every_row_has_its_floors_and_remarks_the_worst_first():
    rows = [leakage_row(1, 0, 2, detail="too noisy"), leakage_row(1, -1, 7, threat_model="observer")]
    rows.append(leakage_row(2, 0, 0, status="skipped", detail="hidden"))
    grid = leakage_grid(LEAKAGE.frame(rows))
    lines = [dict(zip((column.name for column in grid.columns), row, strict=True)) for row in grid.rows]
    assert [line["recovered"] for line in lines] == ["7 of 8", "2 of 8", "skipped"]
    assert [line["client"] for line in lines] == ["all", "0", "0"] and lines[0]["leakage"] == "0.88 (0.10)"
    assert [line["remarks"] for line in lines] == ["", "too noisy", "hidden"] and lines[0]["told"] == "nothing"
    assert {column.name: column.numeric for column in grid.columns}["remarks"] is False


def test_utility_is_that_of_the_first_and_the_last_round_by_defense():
    leakage = LEAKAGE.frame([leakage_row(1, 0, 4), leakage_row(1, 0, 2, defense="noise")])
    rows = [utility_row(r, defense=name, seed=s, test_accuracy=0.1 + r * (0.4 + 0.2 * s)) for r in (0, 1)
            for s in (0, 1) for name in ("noise", "none")]  # fmt: skip
    grid = utility_grid(UTILITY.frame(rows), leakage)
    assert grid.rows == (("none", "0.10", "0.60", "50 %"), ("noise", "0.10", "0.60", "25 %"))
    assert [column.name for column in grid.columns][-3:] == ["untrained", "accuracy", "taken by server"]


def test_settings_are_read_as_words():
    assert in_words({"name": "mlp", "options": {"width": 8}, "seed": None, "frozen": []}) == "mlp, options width 8"
    assert in_words([True, "a"]) == "yes; a" and in_words(pd.NA is None) == "no"
