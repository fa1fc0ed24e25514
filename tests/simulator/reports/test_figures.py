"""What the figures of a run are made of, where a defense trains on distilled images: both targets, apart."""

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import pyplot

from attacks import Knowledge
from clients.local_update import load_data
from simulator.evaluation.job import Job, Setting, run_job
from simulator.evaluation.truth import Truth
from simulator.reports import figures
from simulator.reports.figures import Strip, draw_figures, draw_strips, strip_of
from simulator.results.keys import ObservationKey, RecordedObservation
from simulator.results.storage import CellStore
from simulator.scenario.scenario import validate
from simulator.scenario.yaml_source import Source

DISTILLED = torch.stack([torch.full((1, 8, 8), shade) for shade in (0.1, 0.4)])


class FakeRecord:
    """As much of a record as the figures read: one client, attacked in one round."""

    def __init__(self, path, scenario, result):
        self.path, self.cells = path, {"": scenario.cells()[0]}
        self.leakage = pd.DataFrame(result.leakage)
        self.samples = pd.DataFrame(result.samples)

    def store(self, cell):
        return CellStore(self.path)

    def private_images(self, key, cell):
        return Truth.of(self.cells[cell].scenario, [key.client], [key.client]).private


@pytest.fixture
def record(tmp_path):
    content = {
        "name": "s",
        "data": {"public": 30, "test": 30},
        "partition": {"images": 3},
        "model": {"width": 16, "depth": 1},
        "adversary": {"attacks": ["mean_image"]},
    }
    scenario = validate(Source(content))
    store = CellStore(tmp_path)
    store.create(scenario.model, (1, 8, 8), 10, 0)
    initial = store.architecture()[0].state_dict()
    final = {name: value + 0.01 for name, value in initial.items()}
    key, pair = ObservationKey(1, 0, "server"), (store.save_global(0, initial), store.save_client(1, 0, final))
    store.save_observation(RecordedObservation(key, (pair,), (0,), (0,)), Knowledge(num_private=3))
    store.save_distilled(1, 0, DISTILLED)
    result = run_job(Job(Setting.of(scenario.cells()[0]), tmp_path, key, scenario.adversary.attacks[0]))
    return FakeRecord(tmp_path, scenario, result)


def test_pairs_show_the_images_that_the_row_was_scored_against(record):
    private, distilled = (strip_of(record, row, "") for _, row in record.leakage.iterrows())
    (image,) = distilled.private
    assert torch.equal(image, DISTILLED[1]) and distilled.l2[0] == pytest.approx(0.8, rel=1e-4)  # the nearer of the two
    own = load_data(record.cells[""].client_config(use_gpu=False)).client(0)[0]
    assert any(torch.equal(private.private[0], image) for image in own)


def test_targets_have_lines_panels_and_files_of_their_own(record, monkeypatch):
    drawn = {}

    def save(figure, path, tight=True):
        drawn[path.name] = [(axis.get_title(), [line.get_ydata() for line in axis.lines]) for axis in figure.axes]
        pyplot.close(figure)
        return path

    monkeypatch.setattr(figures, "save", save)
    draw_figures(record)
    assert {"reconstructions_server_mean_image.png", "reconstructions_server_mean_image_distilled.png"} <= set(drawn)
    for name in ("curves.png", "leakage_by_round.png"):
        panels = {title.removeprefix("server, "): lines for title, lines in drawn[name] if title}
        assert set(panels) == {"mean_image", "mean_image, distilled images"}
        if name == "curves.png":  # the floor, then the distances
            assert [len(panels[title][1]) for title in sorted(panels)] == [3, 2]


def test_strips_take_as_many_lines_as_their_images_need(tmp_path, monkeypatch):
    axes = []
    monkeypatch.setattr(figures, "save", lambda figure, path, tight: axes.extend(figure.axes))
    images = torch.rand(5, 1, 4, 4)
    strips = [
        Strip("five", images, images, np.arange(5.0), "private"),
        Strip("none", images[:0], images[:0], np.ones(0)),
    ]
    draw_strips(strips, tmp_path / "sheet.png", columns=3)
    titles = [axis.get_title(loc) for axis in axes for loc in ("left", "center") if axis.get_title(loc)]
    assert titles == ["five", "L2 0.00", "L2 1.00", "L2 2.00", "L2 3.00", "L2 4.00", "none"]
    assert len({axis.get_position().y0 for axis in axes}) == 5  # two lines of two rows, and the title without images


def test_a_figure_that_fails_costs_a_line_and_no_other(record, monkeypatch):
    def broken(samples, path):
        raise ValueError("Number of columns must be\na positive integer, not 0")

    monkeypatch.setattr(figures, "curves", broken)
    said = []
    assert "leakage_by_round" in [path.stem for path in draw_figures(record, said.append)]
    reason = "ValueError: Number of columns must be a positive integer, not 0"
    assert said == [f"figure curves.png could not be drawn: {reason}"]
