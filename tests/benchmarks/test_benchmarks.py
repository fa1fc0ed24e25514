"""The figures of the benchmark are whatever the machine makes of them; that its tables are whole is tested here."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attacks.kernel.empirical import empirical_ntk
from tests.benchmarks import growth, iteration, kernel, map_strays, maps, quality, scale, timing

CPU = torch.device("cpu")


def test_tables_have_a_line_per_setting(monkeypatch, capsys):
    monkeypatch.setattr(timing, "TURNS", 1)
    monkeypatch.setattr(timing, "SQUARE", 64)
    monkeypatch.setattr(iteration, "SIZES", [(3, 4, 16)])
    monkeypatch.setattr(iteration, "SPANS", [(4, 32, 5), (6, 32, 5)])
    iteration.print_ntk(CPU)
    iteration.print_span(CPU)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines if line and line[0].isdigit()] == [["3", "4"], ["4", "32"], ["6", "32"]]


def test_maps_have_a_line_per_block_and_per_size(monkeypatch, capsys):
    monkeypatch.setattr(timing, "SQUARE", 64)
    small = [maps.Block(1, 16, 4), maps.Block(2, 16, 4)]
    monkeypatch.setattr(maps, "SHARES", small)
    monkeypatch.setattr(maps, "GROWTH", {"images": small})
    maps.print_shares(CPU)
    maps.print_growth(CPU)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:3] for line in lines if line and line[0].isdigit()] == [["1", "16", "4"], ["2", "16", "4"]]
    assert [line[:3] for line in lines if line and line[0] == "images"] == [["images", "1", "2"]]


def test_growth_has_a_line_per_size(monkeypatch, capsys):
    monkeypatch.setattr(timing, "SQUARE", 64)
    small = {"NTK iteration, rounds": (1, 2), "span step, images N": (4, 6), "server's round, clients": (2, 4)}
    sizes = {title: (growth.GROWTH[title][0], values) for title, values in small.items()}
    monkeypatch.setattr(growth, "GROWTH", sizes)
    growth.print_growth(CPU)
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition("(")[2] for line in lines if line.startswith(("NTK", "server"))] == ["1.0)", "1.0)"]
    assert sum(line.startswith("span") for line in lines) == 1


def test_growth_over_rounds_is_a_slope_once_the_first_are_over():
    seen = scale.Seen(peaks={"server": {1: 100.0, 2: 500.0, 3: 600.0, 4: 610.0, 5: 612.0, 6: 614.0}})
    assert seen.slope("server") == pytest.approx(2.0)


def test_the_exponent_of_a_power_law_is_found():
    assert maps.exponent([1, 2, 4], [3, 24, 192]) == pytest.approx(3)


def test_no_event_bounds_the_rate_at_three_over_the_tries():
    assert map_strays.largest_rate(0, 200) == pytest.approx(3 / 200, rel=0.01)
    assert map_strays.largest_rate(1, 20) == pytest.approx(0.2161, abs=1e-4)  # Clopper and Pearson's table
    assert map_strays.largest_rate(5, 5) == 1


def test_span_runs_until_it_is_as_good_as_ntk(monkeypatch, capsys):
    monkeypatch.setattr(timing, "TURNS", 1)
    monkeypatch.setattr(quality, "ITERATIONS", 100)
    monkeypatch.setattr(quality, "WIDTH", 256)
    quality.print_table(CPU)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("ntk", "span"))]
    medians = [float(row[-4]) for row in rows]
    assert rows[0][0] == "ntk," and medians[-1] <= medians[0]


def test_both_kernels_that_are_timed_are_the_same():
    model, images = kernel.problem(20, 64, CPU, torch.float64)
    found, naive = empirical_ntk(model, model.state_dict(), images), kernel.by_gradients(model, images)
    assert float((found - naive).abs().max() / naive.abs().max()) < 1e-10


def test_the_kernel_of_an_mlp_takes_a_twentieth_of_the_operations_of_its_gradients():
    """Counted, since a busy machine disturbs a clock. The products of N gradients of P numbers alone are 2 N² P."""
    model, images = kernel.problem(100, 64, CPU, torch.float64)

    def operations(compute):
        with FlopCounterMode(display=False) as counter:
            compute()
        return counter.get_total_flops()

    naive = operations(lambda: kernel.by_gradients(model, images))
    assert naive > 2 * 100**2 * sum(parameter.numel() for parameter in model.parameters())
    assert naive > 20 * operations(lambda: empirical_ntk(model, model.state_dict(), images))
