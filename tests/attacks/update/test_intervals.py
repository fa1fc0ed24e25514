import math

import pytest
import torch

from attacks import Knowledge
from attacks.update.intervals import (
    kept_entries,
    known_intervals,
    noise_deviation,
    noise_edge,
    possible_entries,
    quantization_step,
    rounded_intervals,
)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_deviation_of_noise_from_the_noised_update():
    clean = {"a": draw(200, 300), "b": draw(100)}
    scale, entries = 0.3, 60100
    norm = math.sqrt(sum(float(value.square().sum()) for value in clean.values()))
    deviation = scale * norm / entries**0.5
    noised = {name: value + deviation * draw(*value.shape, seed=1) for name, value in clean.items()}
    assert noise_deviation(noised, Knowledge(noise_scale=scale)) == pytest.approx(deviation, rel=0.01)
    assert noise_deviation(noised, Knowledge(noise_std=0.5)) == 0.5
    assert noise_deviation(noised, Knowledge()) == 0


@pytest.mark.parametrize("shape", [(120, 40), (30, 200), (80, 80)])
def test_noise_stays_below_its_edge_and_near_it(shape):
    largest = torch.stack([torch.linalg.svdvals(draw(*shape, seed=seed))[0] for seed in range(100)])
    edge = noise_edge(*shape)
    assert (largest > edge).sum() <= 5 and largest.median() > 0.93 * edge


def test_cells_of_a_quantized_update_hold_what_was_rounded():
    value = draw(50, 40)
    low, high = value.min(), value.max()
    step = (high - low) / 15
    sent = low + step * ((value - low) / step).round()
    assert quantization_step(sent, 4) == pytest.approx(float(step))
    cells = known_intervals({"a": sent}, Knowledge(quantization_bits=4))["a"]
    assert (cells.lowest <= value + 1e-12).all() and (value - 1e-12 <= cells.highest).all()
    torch.testing.assert_close(cells.highest - cells.lowest, step.expand(50, 40))
    inside = (sent.abs() < step / 2) == (cells.middle() == 0)
    assert inside.all()


def test_levels_about_zero_are_known_as_those_between_extremes_are():
    """As int8 has them: -127 to 127 times a scale, or with a level for the least entry's side more."""
    value = draw(50, 40)
    for levels in (7, 8):
        step = float(value.abs().max()) / levels
        sent = (value / step).round() * step
        assert quantization_step(sent, 4) == pytest.approx(step) and quantization_step(value, 4) is None
        cells = known_intervals({"a": sent}, Knowledge(quantization_bits=4))["a"]
        assert (cells.lowest <= value + 1e-12).all() and (value - 1e-12 <= cells.highest).all()


def test_entries_left_out_are_bounded_only_where_the_largest_were_sent():
    value = torch.tensor([[3.0, -0.2], [0.5, -2.0]], dtype=torch.float64)
    largest = known_intervals({"a": value * torch.tensor([[1, 0], [0, 1]])}, Knowledge(kept_fraction=0.5))["a"]
    assert largest.lowest.tolist() == [[3, -2], [-2, -2]] and largest.highest.tolist() == [[3, 2], [2, -2]]
    many = draw(100, 100)
    at_random = many * (draw(100, 100, seed=1) > 0)
    cells = known_intervals({"a": at_random}, Knowledge(kept_fraction=0.52))["a"]
    assert torch.equal(cells.bounded(), at_random != 0)
    kept = kept_entries({"a": at_random}, Knowledge(kept_fraction=0.52))["a"]
    assert torch.equal(kept, (at_random != 0).double())
    assert kept_entries({"a": value * torch.tensor([[1, 0], [0, 1]])}, Knowledge(kept_fraction=0.5)) is None


def test_a_single_bit_tells_the_side_of_the_middle_of_both_levels():
    sent = torch.tensor([1.0, -2.0, 1.0])
    own = possible_entries({"a": sent, "b": torch.ones(2)}, Knowledge(quantization_bits=1))
    assert own["a"].lowest.tolist() == [-0.5, -math.inf, -0.5] and own["a"].highest.tolist() == [
        math.inf,
        -0.5,
        math.inf,
    ]
    assert own["b"].lowest.isinf().all() and own["b"].highest.isinf().all()  # where the middle lies is not seen
    assert known_intervals({"a": sent}, Knowledge(quantization_bits=1)) is None
    assert possible_entries({"a": draw(5)}, Knowledge(quantization_bits=1)) is None  # a mean of several clients
    cells = possible_entries({"a": torch.tensor([0.0, 1.0, 2.0, 3.0])}, Knowledge(quantization_bits=2))["a"]
    assert cells.lowest.tolist() == [-0.5, 0.5, 1.5, 2.5]


def test_sums_over_clients_have_no_cells():
    """More entries than one client sends, and values that are no levels."""
    value = draw(100, 100)
    assert known_intervals({"a": value}, Knowledge(kept_fraction=0.5)) is None
    assert known_intervals({"a": value}, Knowledge(quantization_bits=4)) is None
    assert kept_entries({"a": value}, Knowledge(kept_fraction=0.5)) is None
    assert known_intervals({"a": value}, Knowledge()) is None


def test_a_parameter_of_few_bits_was_rounded_by_half_of_their_distance():
    """Numbers of bfloat16 between 1 and 2 are 2⁻⁷ apart, between 1/8 and 1/4 2⁻¹⁰."""
    initial = {"w": torch.tensor([1.0, 0.125, -1.0])}
    made = {"w": torch.tensor([1.017, 0.1301, -1.3])}
    sent = made["w"].bfloat16().float()
    found = rounded_intervals({"w": sent - initial["w"]}, initial, Knowledge(significant_bits=8))["w"]
    torch.testing.assert_close(found.highest - found.lowest, torch.tensor([2**-7, 2**-10, 2**-7]).double())
    change = (made["w"] - initial["w"]).double()
    assert ((found.lowest <= change) & (change <= found.highest)).all()


def test_a_mean_of_several_clients_is_on_no_grid_of_few_bits():
    initial, told = {"w": torch.zeros(50, dtype=torch.float64)}, Knowledge(significant_bits=8)
    clients = [draw(50, seed=seed).bfloat16().double() for seed in range(3)]
    assert rounded_intervals({"w": clients[0]}, initial, told) is not None
    assert rounded_intervals({"w": sum(clients) / 3}, initial, told) is None
    assert rounded_intervals({"w": clients[0]}, initial, Knowledge()) is None
