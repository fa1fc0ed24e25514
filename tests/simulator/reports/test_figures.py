"""What the figures of a run are made of."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot

from simulator.reports import figures
from simulator.reports.drawing import panel_titles, value_text
from simulator.reports.figures import curves, draw_figures, horizontal, places_of, spread
from simulator.results.schema import LEAKAGE, SAMPLES
from tests.simulator.reports.conftest import leakage_row, sample_rows


@pytest.fixture
def drawn(monkeypatch):
    """Figures that would have been saved, by name."""
    found = {}

    def save(figure, path):
        found[path.stem] = figure
        pyplot.close(figure)
        return path

    monkeypatch.setattr("simulator.reports.drawing.save", save)
    return found


def titles(figure):
    return {axis.get_title("left").removeprefix("server, ") for axis in figure.axes}


def test_targets_have_lines_panels_and_files_of_their_own(record, drawn):
    names = {one.path.stem for one in draw_figures(record)}
    assert {"reconstructions_server_mean_image", "reconstructions_server_mean_image_distilled"} <= names
    for name in ("curves", "leakage_by_round"):
        assert titles(drawn[name]) == {"mean_image", "mean_image, distilled images"}
    lengths = {len(line.get_ydata()) for axis in drawn["curves"].axes for line in axis.lines} - {0}
    assert lengths == {2, 3}  # private images and distilled ones


def test_an_exact_attack_is_inside_the_frame_of_the_curves(drawn, tmp_path):
    samples = SAMPLES.frame(
        [*sample_rows(leakage_row(1, 0), exact=True), *sample_rows(leakage_row(1, 1, attack="ntk"))]
    )
    curves(samples, tmp_path / "curves.png")
    axes = drawn["curves"].axes
    exact = next(line for line in axes[0].lines if len(line.get_ydata()) and not np.any(line.get_ydata()))
    height = axes[0].transAxes.inverted().transform(axes[0].transData.transform((1, exact.get_ydata()[0])))[1]
    assert 0.03 < height < 0.15 and axes[0].get_yscale() == "symlog"
    assert axes[0].get_yticklabels()[0].get_text() == "0 (exact)"
    assert axes[0].get_ylim() == axes[1].get_ylim()  # the panels can be compared


def test_a_panel_in_which_nothing_was_returned_says_so(drawn, tmp_path):
    curves(SAMPLES.frame(list(sample_rows(leakage_row(1, 0, recovered=0)))), tmp_path / "curves.png")
    (axis,) = drawn["curves"].axes
    (said,) = axis.texts
    assert said.get_text() == "nothing returned:\nscored as the mean image"
    assert said.get_window_extent().x1 < axis.get_window_extent().x1  # inside the plot


def test_a_figure_that_fails_costs_a_line_and_no_other(record, monkeypatch):
    def broken(samples, path):
        raise ValueError("Number of columns must be\na positive integer, not 0")

    monkeypatch.setattr(figures, "curves", broken)
    said = []
    assert "leakage_by_round" in [one.path.stem for one in draw_figures(record, said.append)]
    reason = "ValueError: Number of columns must be a positive integer, not 0"
    where = f"{__file__}:{broken.__code__.co_firstlineno + 1}"  # what stands in for a figure is no code of fedspill's
    assert said == [f"figure curves.png could not be drawn: {reason}, in or below {where}"]


def frame(*rows):
    return LEAKAGE.frame(list(rows), swept=["training.learning_rate"])


def test_the_x_axis_is_what_moves():
    one = [leakage_row(1, client) for client in (2, 0, -1)]
    clients = frame(*one).assign(who=["client 2", "client 0", "all clients"])
    assert horizontal(clients) == "who" and places_of(clients, "who") == ["client 0", "client 2", "all clients"]
    assert horizontal(frame(*one, leakage_row(2, 0))) == "round"
    defended = frame(leakage_row(1, 0, defense="noise"), leakage_row(2, 0))
    assert horizontal(defended) == "defense" and places_of(defended, "defense") == ["none", "noise"]
    swept = frame(*(leakage_row(1, 0, **{"training.learning_rate": rate}) for rate in (0.1, 0.01)))
    assert horizontal(swept) == "training.learning_rate"
    assert places_of(swept, "training.learning_rate") == [0.01, 0.1]
    assert set(panel_titles(swept, without="training.learning_rate")) == {"span"}
    assert set(panel_titles(swept)) == {"span, learning rate 0.1", "span, learning rate 0.01"}


def test_a_setting_that_is_a_mapping_is_written_without_its_signs():
    assert value_text('{"name": "FedProx", "options": {"proximal_mu": 50.0}}') == "FedProx, proximal_mu: 50.0"
    assert (value_text('"FedAvg"'), value_text(0.1)) == ("FedAvg", "0.1")


def test_clients_that_coincide_stand_beside_each_other():
    rows = frame(*(leakage_row(round, client) for round in (1, 2) for client in (3, 0, 1, 2)))
    x = spread(rows, "round")
    assert x.nunique() == 8 and ((x - rows["round"] + 1).abs() < 0.4).all()
    at = dict(zip(zip(rows["round"], rows.client, strict=True), x, strict=True))
    assert [at[1, client] for client in range(4)] == sorted(at[1, client] for client in range(4))
    assert x.equals(spread(rows, "round"))


def test_more_settings_than_a_figure_has_room_for_are_counted(drawn, tmp_path):
    rows = pd.concat([frame(leakage_row(r, 0, attack=f"attack {i}")) for i in range(14) for r in (1, 2)])
    said = figures.leakage_figure(rows.reset_index(drop=True), tmp_path / "leakage_by_round.png").caption
    assert "12 of 14 settings are shown" in said and len(drawn["leakage_by_round"].axes) == 12


def test_the_settings_that_a_figure_has_room_for_are_those_that_the_verdict_puts_first(drawn, tmp_path):
    """More leakage than all others, and no image: it is exposed least."""
    blurred = [leakage_row(r, 0, 0, attack="blurred", leakage=0.9) for r in (1, 2)]
    sharp = [leakage_row(r, 0, 1 + i // 2, attack=f"attack {i}", leakage=0.5) for i in range(12) for r in (1, 2)]
    said = figures.leakage_figure(frame(*blurred, *sharp), tmp_path / "leakage_by_round.png").caption
    shown = [axis.get_title("left") for axis in drawn["leakage_by_round"].axes]
    assert "12 of 13 settings are shown, the worst first" in said
    assert {shown[0], shown[1]} == {"server, attack 10", "server, attack 11"}
    assert "server, blurred" not in shown
