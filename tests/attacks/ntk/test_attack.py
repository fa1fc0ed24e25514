from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge, Observation, get_attack
from attacks.ntk.objective import high_frequencies, inverse_temperature, outside_range
from tests.attacks.conftest import client, digits, generator, mlp, nearest


@pytest.mark.slow
def test_digits_of_a_fedavg_client_are_reconstructed():
    images = digits(4)
    observation = client(mlp(256), images)
    found = get_attack("ntk", kernel="hybrid", iterations=2000).run(observation, Knowledge(), generator())
    assert found.num_inferred == 4 and len(found.images) == 8
    assert found.pixel_mean == pytest.approx((0.3,), abs=1e-3)
    assert torch.allclose(found.pixels(), (found.images + found.pixel_mean[0]).clamp(0, 1))
    assert (nearest(images, found) < 0.8).all()


def test_a_convolutional_network_takes_the_general_path():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    observation = client(model, digits(2))
    attack = get_attack("ntk", iterations=60, kernel="initial")
    found = attack.run(observation, Knowledge(num_private=2, pixel_mean=(0.3,)), generator())
    first, last = found.loss_trace[0][1], found.relative_residual**2
    assert len(found.images) == 4 and last < first


def test_unknown_number_is_refused_by_name_where_it_cannot_be_inferred():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    with pytest.raises(InputError, match="num_private"):
        get_attack("ntk", iterations=5).run(client(model, digits(2)), Knowledge(), generator())


def test_minibatches_follow_the_same_trajectory():
    observation = client(mlp(64), digits(3))
    knowledge = Knowledge(num_private=3, pixel_mean=(0.3,))
    options = {"iterations": 50, "precision": "float64"}
    full = get_attack("ntk", **options).run(observation, knowledge, generator())
    batched = get_attack("ntk", batch_size=2, **options).run(observation, knowledge, generator())
    assert torch.allclose(full.images, batched.images, atol=1e-5)


def test_same_generator_same_bits_and_restarts_keep_the_best():
    observation = client(mlp(64), digits(3))

    def run(seed, **options):
        return get_attack("ntk", iterations=40, **options).run(observation, Knowledge(), generator(seed))

    assert torch.equal(run(0).images, run(0).images)
    assert run(0, restarts=3).relative_residual <= run(0).relative_residual


def test_candidates_as_multiple_or_number():
    observation, knowledge = client(mlp(64), digits(3)), Knowledge(num_private=3)
    assert len(get_attack("ntk", iterations=2, candidates=1.5).run(observation, knowledge, generator()).images) == 4
    assert len(get_attack("ntk", iterations=2, num_candidates=7).run(observation, knowledge, generator()).images) == 7


@pytest.mark.parametrize("option", ["patience", "tolerance", "range_penalty"])
def test_negative_options_are_refused(option):
    with pytest.raises(InputError, match=f"attack 'ntk': {option} is -1, it must not be negative"):
        get_attack("ntk", **{option: -1})


def test_whoever_says_how_many_candidates_need_not_know_how_many_images():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))
    model[0].requires_grad_(False)  # no trained layer sees the images
    observation = client(model, digits(3))
    found = get_attack("ntk", iterations=2, num_candidates=4).run(observation, Knowledge(), generator())
    assert len(found.images) == 4 and found.num_inferred is None
    with pytest.raises(InputError, match="needs num_private"):
        get_attack("ntk", iterations=2).run(observation, Knowledge(), generator())


def test_a_flat_loss_stops_early():
    observation = client(mlp(64), digits(3))
    attack = get_attack("ntk", iterations=300, patience=20, tolerance=0.5)
    # β is 200 from iteration 171 on, and two means of 20 losses that end after it are needed: it ends at 200
    assert attack.run(observation, Knowledge(), generator()).loss_trace[-1][0] == 100


def test_an_update_and_a_multiple_of_it_are_attacked_alike():
    """In the tangent space of the initial parameters: the same images, and duals that are as many times as large."""
    clean = client(mlp(64).double(), digits(3).double())
    attack = get_attack("ntk", kernel="initial", iterations=60, learning_rate=0.1, precision="float64")

    def attacked(factor):
        final = {name: clean.initial[name] + factor * value for name, value in clean.delta().items()}
        observation = Observation(clean.model, ((clean.initial, final),), (1, 8, 8))
        return attack.run(observation, Knowledge(3, pixel_mean=(0.3,)), generator())

    once, tenth = attacked(1.0), attacked(0.1)
    assert float(outside_range(once.images, torch.tensor(-0.3), torch.tensor(0.7))) > 0.001  # the penalty counts
    assert torch.allclose(once.images, tenth.images, atol=1e-4)
    assert torch.allclose(once.duals, 10 * tenth.duals, atol=1e-4 * float(once.duals.abs().max()))


def test_progress_is_reported():
    seen = []
    observation = client(mlp(64), digits(3))
    get_attack("ntk", iterations=250).run(observation, Knowledge(), generator(), lambda i, n, loss: seen.append((i, n)))
    assert seen[0] == (0, 250) and seen[-1] == (250, 250) and len(seen) >= 4


def test_annealing_of_the_paper():
    assert inverse_temperature(0, 80_000) == pytest.approx(11.0)
    assert inverse_temperature(20_000, 80_000) == pytest.approx(20.0)  # 10 + 10^(i/20000)
    assert inverse_temperature(40_000, 80_000) == pytest.approx(110.0)
    assert inverse_temperature(80_000, 80_000) == 200.0


def test_range_penalty_by_hand():
    images = torch.tensor([[[[1.5, -0.5]]], [[[0.2, 0.3]]]])
    low, high = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
    # two of four pixels are 0.5 outside: 2 images × mean(0.25, 0.25, 0, 0)
    assert float(outside_range(images, low, high)) == pytest.approx(2 * 0.5 / 4)


def test_high_frequencies_by_hand():
    image = torch.zeros(2, 1, 5, 5)
    image[0, 0, 2, 2] = 1.0
    image[1] = 0.7  # a constant has none, also at its edges
    # of the impulse the blur leaves 1 - 4/16 in the middle and takes 2/16 and 1/16 from its eight neighbours
    expected = (0.75**2 + 4 * (2 / 16) ** 2 + 4 * (1 / 16) ** 2) / 25
    assert float(high_frequencies(image)) == pytest.approx(expected)


def test_smoothness_removes_high_frequencies():
    observation, knowledge = client(mlp(256), digits(4)), Knowledge(num_private=4, pixel_mean=(0.3,))

    def roughness(**options):
        attack = get_attack("ntk", iterations=100, **options)
        return float(high_frequencies(attack.run(observation, knowledge, generator()).images))

    assert roughness(smoothness=1.0) < 0.5 * roughness()
    with pytest.raises(InputError, match="smoothness is -1"):
        get_attack("ntk", smoothness=-1)


def test_bad_options_name_themselves():
    with pytest.raises(InputError, match="iterations is 0"):
        get_attack("ntk", iterations=0)
    with pytest.raises(InputError, match="did you mean 'iterations'"):
        get_attack("ntk", iteratons=5)
    with pytest.raises(InputError, match="did you mean 'ntk'"):
        get_attack("nkt")


@pytest.mark.parametrize("told", [{"noise_scale": 2.0}, {"quantization_bits": 4}, {"kept_fraction": 0.3}])
def test_what_does_not_help_is_not_used(told):
    """Noise and rounding of known size, and entries left out that are known to be small."""
    clean = client(mlp(64), digits(4))
    bound = torch.cat([value.abs().flatten() for value in clean.delta().values()]).quantile(0.7)
    largest = {name: value * (value.abs() > bound) for name, value in clean.delta().items()}
    final = {name: (clean.initial[name] + value).float() for name, value in largest.items()}
    sent = Observation(clean.model, ((clean.initial, final),), (1, 8, 8))
    attack, naive = get_attack("ntk", iterations=20), Knowledge(num_private=4, pixel_mean=(0.3,))
    found, without = (attack.run(sent, knowledge, generator()) for knowledge in (replace(naive, **told), naive))
    assert torch.equal(found.images, without.images)


def test_only_entries_that_were_sent_count():
    clean = client(mlp(256), digits(4))
    draws = generator(1)
    final = {
        name: clean.initial[name] + value.float() * (torch.rand(value.shape, generator=draws) < 0.3)
        for name, value in clean.delta().items()
    }
    masked, attack = Observation(clean.model, ((clean.initial, final),), (1, 8, 8)), get_attack("ntk", iterations=200)
    naive, told = Knowledge(num_private=4, pixel_mean=(0.3,)), {"kept_fraction": 0.32}
    adaptive = Knowledge(num_private=4, pixel_mean=(0.3,), **told)
    without, found = (attack.run(masked, knowledge, generator()) for knowledge in (naive, adaptive))
    assert (
        found.relative_residual < 0.6 * without.relative_residual
    )  # what was left out, 0.7 of the squares, is no loss
