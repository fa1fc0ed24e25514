"""Adaptive span attack: what it is told of the defense pays, and without it nothing changes."""

import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge, Observation, get_attack
from attacks.update.intervals import seen_compression
from tests.attacks.conftest import client, digits, generator, minibatches, mlp, nearest, state_of
from tests.attacks.span.conftest import Convolutional, run


@pytest.fixture
def trained(federated):
    images, observation, _ = federated
    return images, observation, observation.delta()


def sent(observation, delta):
    initial = observation.initial
    final = {name: (initial[name] + delta[name]).float() for name in initial}
    return Observation(observation.model, ((initial, final),), observation.input_shape)


def noised(delta, scale):
    generator = torch.Generator().manual_seed(3)
    entries = sum(value.numel() for value in delta.values())
    norm = sum(value.square().sum() for value in delta.values()) ** 0.5
    return {
        name: value + scale * norm / entries**0.5 * torch.randn(value.shape, generator=generator)
        for name, value in delta.items()
    }


def at_random(delta, fraction):
    generator = torch.Generator().manual_seed(3)
    return {name: value * (torch.rand(value.shape, generator=generator) < fraction) for name, value in delta.items()}


@pytest.mark.parametrize(
    ("defense", "strength", "told", "within"),
    [
        (noised, 0.2, Knowledge(noise_scale=0.2), 0.5),  # two different digits are 2.5 to 4 apart
        (at_random, 0.5, Knowledge(kept_fraction=0.52), 0.1),
    ],
)
def test_a_defense_that_is_known_stops_neither_the_images_nor_their_number(trained, defense, strength, told, within):
    images, observation, delta = trained
    defended = sent(observation, defense(delta, strength))
    assert len(run(defended).images) == 0
    found = run(defended, told)
    assert found.num_inferred == 8
    assert (nearest(images, found) < within).all()


def largest(delta, fraction):
    entries = torch.cat([value.abs().flatten() for value in delta.values()])
    least = entries.topk(round(fraction * len(entries))).values[-1]
    return {name: value * (value.abs() >= least) for name, value in delta.items()}


@pytest.mark.parametrize(("start", "fraction"), [(200, 0.1), (300, 0.1), (400, 0.2)])
def test_entries_that_were_left_out_vouch_for_nothing(start, fraction):
    """Any dual has zeros then: four to ten wrong images of twenty passed for exact ones."""
    images = digits(20, start=start)
    observation = client(mlp(256), images, minibatches(20, 8, 5))
    assert len(run(sent(observation, largest(observation.delta(), fraction))).images) == 0


def test_pixels_that_are_black_in_places_are_no_entries_left_out():
    """Where nothing is subtracted, a black pixel of all images that a unit sees leaves its entry as it was."""
    images = digits(12, mean=0.0, start=200)
    observation = client(mlp(256), images, minibatches(12, 4, 5))
    (moved,) = (value for name, value in observation.delta().items() if value.shape == (256, 64))
    assert (moved[moved.any(1)][:, moved.any(0)] == 0).float().mean() > 0.05
    assert (nearest(images, run(observation, Knowledge(pixel_mean=(0.0,)))) < 0.1).all()


def test_too_few_entries_are_counted(trained):
    _, observation, delta = trained
    found = run(sent(observation, at_random(delta, 0.05)), Knowledge(num_private=8, kept_fraction=0.06))
    assert len(found.images) == 0 and found.facts["kept"] < found.facts["needed"]
    assert f"{found.facts['kept']:.0f} of the first layer's entries are kept, 8 images need" in found.warnings[0]


def test_quantization_is_undone(trained):
    images, observation, delta = trained
    rounded = {}
    for name, value in delta.items():
        step = (value.max() - value.min()) / (2**6 - 1)
        rounded[name] = value.min() + step * ((value - value.min()) / step).round()
    found = run(sent(observation, rounded), Knowledge(num_private=8, quantization_bits=6))
    assert (nearest(images, found) < 0.1).all()


def about_zero(delta, bits):
    """Levels that int8 has, of fewer bits: 0, and as many on either side of it."""
    steps = {name: value.abs().max() / (2 ** (bits - 1) - 1) for name, value in delta.items()}
    return {name: (value / steps[name]).round() * steps[name] for name, value in delta.items()}


@pytest.mark.parametrize("count", [None, 8])
@pytest.mark.parametrize(
    ("defense", "strength", "field"), [(about_zero, 5, "quantization_bits"), (at_random, 0.5, "kept_fraction")]
)
def test_what_anybody_sees_of_a_defense_is_not_taken_for_local_adam(trained, defense, strength, field, count):
    """Images come back once it is known, so that a refusal has to name it."""
    images, observation, delta = trained
    seen = sent(observation, defense(delta, strength))
    refused = run(seen, Knowledge(num_private=count))
    assert refused.num_inferred is None and not len(refused.images) and "Adam" not in refused.warnings[0]
    named, _, value = refused.warnings[0].partition("say --know ")[2].partition(",")[0].partition("=")
    found = run(seen, Knowledge(num_private=8, **{named: int(value) if value.isdigit() else float(value)}))
    assert named == field and (nearest(images, found) < 0.2).all()


@pytest.mark.parametrize("share", [0.01, 0.1])
@pytest.mark.parametrize("make", [lambda: mlp(256), Convolutional])
def test_a_refusal_of_the_largest_entries_alone_names_what_reads_them(make, share):
    images = digits(4)
    observation = client(make(), images, 1)
    seen = sent(observation, largest(observation.delta(), share))
    said = run(seen, Knowledge(num_private=4)).warnings[0]
    named = said.partition("say --know kept_fraction=")[2].partition(",")[0]
    assert "'gradient_matching', told learning_rate and steps" in said
    told = Knowledge(num_private=4, pixel_mean=(0.3,), learning_rate=0.05, steps=1, kept_fraction=float(named))
    found = get_attack("gradient_matching", iterations=300).run(seen, told, generator())
    assert (nearest(images, found) < 1.2).all()  # two digits are 2.5 to 4 apart


def test_of_a_first_layer_whose_biases_were_left_out_that_is_said():
    observation = client(mlp(256), digits(4), 1)
    seen = sent(observation, largest(observation.delta(), 0.1))
    final = {name: seen.initial[name] if name == "1.bias" else value for name, value in seen.final.items()}
    with pytest.raises(
        InputError, match=r"'1.bias' .* as it was sent \(90% of the update's entries are 0.*kept_fraction=0"
    ):
        run(Observation(seen.model, ((seen.initial, final),), seen.input_shape))


@pytest.mark.parametrize("make", [lambda: mlp(256), Convolutional])
def test_idle_units_are_no_entries_left_out(make):
    assert seen_compression(client(make(), digits(1), 1), Knowledge()) is None


def test_units_at_rest_that_a_mean_of_clients_rounds_are_no_entries_left_out():
    """Their weights are off by 1e-7, and some of their biases are not, beside a small step of the other units."""
    model = mlp(256)
    start, ends = state_of(model), []
    for images in digits(6).split(2):
        model.load_state_dict(start)
        ends.append(client(model, images, 1, lr=0.001).final)
    mean = {name: sum(end[name] * torch.tensor(1 / 3) for end in ends) for name in start}
    seen = Observation(model, ((start, mean),), (1, 8, 8))
    idle = ~torch.stack([(end["1.weight"] != start["1.weight"]).any(1) for end in ends]).any(0)
    assert 0 < (seen.delta()["1.bias"][idle] == 0).double().mean() < 1 and seen.delta()["1.weight"][idle].any()
    assert seen_compression(seen, Knowledge()) is None


def test_biases_ahead_of_batch_norm_that_rounding_moved_are_no_entries_left_out():
    """Black pixels leave a third of the first layer where it was."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 10)).train()
    seen = client(model, digits(2, mean=0.0), 1)
    delta = seen.delta()
    assert 0 < (delta["1.bias"] == 0).double().mean() < 1 and (delta["1.weight"] == 0).double().mean() > 0.2
    assert seen_compression(seen, Knowledge()) is None


def test_changes_that_sixteen_bits_round_off_were_not_left_out():
    model = mlp(256).bfloat16()
    reason = run(client(model, digits(8).bfloat16(), lr=0.01)).warnings[0]
    assert "parameters came back in bfloat16, whose rounding hides the update: say --know significant_bits=8" in reason


def test_what_is_named_for_parameters_in_bfloat16_reads_them():
    images = digits(6)
    seen = client(mlp(256), images)
    final = {name: value.bfloat16().float() for name, value in seen.final.items()}
    seen = Observation(seen.model, ((seen.initial, final),), seen.input_shape)
    found = run(seen)
    assert not len(found.images) and "say --know significant_bits=8" in found.warnings[0]
    assert (nearest(images, run(seen, Knowledge(significant_bits=8))) < 0.5).all()  # digits are 2.5 to 4 apart


def test_what_means_of_clients_round_is_not_left_out():
    """Of inactive units the mean of equal parameters is off by a digit here and there."""
    observation = client(mlp(256), digits(12, mean=0.0), optimizer=torch.optim.Adam, lr=1e-3)
    delta = observation.delta()
    for value in delta.values():
        if value.shape[0] == 256:
            value[:64] = 1e-9 * (torch.rand(value[:64].shape, generator=torch.Generator().manual_seed(0)) < 0.2)
    initial = {name: value.double() for name, value in observation.initial.items()}
    final = {name: initial[name] + value for name, value in delta.items()}
    (reason,) = run(Observation(observation.model, ((initial, final),), (1, 8, 8))).warnings
    assert "Adam" in reason and "left out: say" not in reason


def test_an_update_of_signs_is_no_quantized_one(trained):
    """Nor is one step of Adam, which looks alike."""
    _, observation, delta = trained
    signs = {name: 0.01 * value.sign() for name, value in delta.items()}
    assert "quantiz" not in run(sent(observation, signs)).warnings[0]


def test_knowledge_of_a_defense_that_is_not_there_does_no_harm(trained):
    images, observation, _ = trained
    plain = run(observation)
    told = run(observation, Knowledge(kept_fraction=0.1, quantization_bits=4))
    assert torch.equal(plain.images, told.images)
    assert (nearest(images, told) < 1e-2).all()
