"""What every defense does to data, steps and updates, against closed forms and hand-made cases."""

import math
import re

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from attacks import InputError
from clients.config import ClientConfig, DataConfig, DefenseConfig, ModelConfig, PartitionConfig, TrainingConfig
from clients.defenses import DEFENSES, Batch, Encoding, Setting, TrainingSet
from clients.defenses.dp_sgd import LARGEST_ORDER, smallest_epsilon
from clients.defenses.prune_easiest import duals
from clients.local_update import local_update, make_model
from clients.partition import split_data
from clients.training import train


def make(name, **options):
    return DefenseConfig.model_validate({"name": name, **options}).make()


def config(*defenses, rounds=1, **training):
    return ClientConfig(
        seed=0,
        clients=2,
        data=DataConfig(),
        partition=PartitionConfig(images=8),
        model=ModelConfig(width=32),
        training=TrainingConfig(**({"epochs": 2, "batch_size": 4} | training)),
        defenses=[DefenseConfig.model_validate(defense) for defense in defenses],
        rounds=rounds,
    )


def setting(*defenses, model=None, memory=None, round=1, **training):
    return Setting(config(*defenses, **training), round, 0, model or nn.Linear(4, 2), {} if memory is None else memory)


def update(seed=0, **shapes):
    generator = torch.Generator().manual_seed(seed)
    shapes = shapes or {"w": (200, 100), "b": (200,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def flat(delta):
    return torch.cat([value.flatten() for value in delta.values()]).double()


def test_every_name_of_the_benchmark_is_registered():
    wanted = "dp_sgd local_dp central_dp secure_aggregation clipping top_k random_k quantization noise prune_easiest"
    assert {*wanted.split(), "augmentation", "mixup"} <= set(DEFENSES)


@pytest.mark.parametrize(("bound", "factor"), [(5.0, 0.5), (20.0, 1.0)])
def test_clipping_scales_to_the_norm_and_leaves_shorter_updates_alone(bound, factor):
    delta = {"w": torch.tensor([[6.0, 0.0]]), "b": torch.tensor([8.0])}  # of norm 10
    clipped, _ = make("clipping", norm=bound).protect_update(delta, setting())
    assert flat(clipped).tolist() == [6 * factor, 0, 8 * factor]


def test_noise_has_the_norm_that_was_asked_for_and_is_the_round_s_own():
    delta = update()
    noised, said = make("noise", scale=0.1).protect_update(delta, setting())
    added = flat(noised) - flat(delta)
    assert float(added.norm() / flat(delta).norm()) == pytest.approx(0.1, rel=0.02)
    assert float(added.std()) == pytest.approx(said["noise_std"], rel=0.02)
    again, _ = make("noise", scale=0.1).protect_update(delta, setting())
    later, _ = make("noise", scale=0.1).protect_update(delta, setting(round=2))
    assert torch.equal(noised["w"], again["w"]) and not torch.equal(noised["w"], later["w"])


def test_top_k_keeps_the_largest_entries_of_all_tensors_together():
    delta = update()
    kept = flat(make("top_k", fraction=0.1).protect_update(delta, setting())[0]).numpy()
    size = np.abs(flat(delta).numpy())
    largest = np.sort(np.argsort(size)[-2020:])
    assert np.array_equal(np.flatnonzero(kept), largest)
    assert np.array_equal(kept[largest], flat(delta).numpy()[largest])


def test_random_k_is_right_in_expectation_and_draws_anew_in_every_round():
    delta = {"w": torch.ones(100, 100)}
    rounds = [flat(make("random_k", fraction=0.25).protect_update(delta, setting(round=i))[0]) for i in range(1, 41)]
    assert all(int((kept != 0).sum()) == 2500 for kept in rounds)
    mean = torch.stack(rounds).mean(0)  # of 40 draws of 4 with probability 1/4: deviation √(3/40)
    assert float(mean.mean()) == pytest.approx(1.0) and float(mean.std()) == pytest.approx(math.sqrt(3 / 40), rel=0.05)


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_quantization_rounds_to_levels_between_the_extremes(bits):
    delta = update(w=(64, 64))
    quantized = make("quantization", bits=bits).protect_update(delta, setting())[0]["w"]
    step = (delta["w"].max() - delta["w"].min()) / (2**bits - 1)
    assert len(quantized.unique()) <= 2**bits
    assert (quantized - delta["w"]).abs().max() <= step / 2 * 1.0001
    assert quantized.min() == delta["w"].min() and torch.isclose(quantized.max(), delta["w"].max())


def test_stochastic_quantization_is_right_in_expectation():
    delta = {"w": torch.tensor([[0.0, 1.0, 0.3]]).repeat(20_000, 1)}
    quantized = make("quantization", bits=1, stochastic=True).protect_update(delta, setting())[0]["w"]
    assert set(quantized.unique().tolist()) == {0.0, 1.0}
    assert quantized.mean(0).tolist() == pytest.approx([0.0, 1.0, 0.3], abs=0.012)  # 3.7 deviations of √(.21/20000)


def test_what_travels():
    def encoded(*names):
        encoding = Encoding()
        for name in names:
            encoding = make(name).encode(encoding)
        return encoding.bytes(1000)

    assert encoded() == 4000 and encoded("clipping") == 4000
    assert encoded("top_k") == 100 * 8  # a value and a position each
    assert encoded("random_k") == 100 * 4  # positions follow from a seed
    assert encoded("quantization") == 1000
    assert encoded("top_k", "quantization") == 100 * 5
    assert encoded("top_k", "noise") == 4000  # noise fills the zeros


def test_augmentation_moves_pixels_and_loses_none():
    images = torch.rand(16, 1, 8, 8)
    moved = make("augmentation", shift=2, flip=True).local_step(
        Batch(images, ((1.0, torch.zeros(16)),)), torch.Generator().manual_seed(0)
    )
    for image, other in zip(images, moved.inputs, strict=True):
        turns = [image.roll((i, j), (1, 2)) for i in range(-2, 3) for j in range(-2, 3)]
        assert any(torch.equal(other, turn) or torch.equal(other, turn.flip(2)) for turn in turns)
    still = make("augmentation", shift=0).local_step(moved, torch.Generator())
    assert torch.equal(still.inputs, moved.inputs)


def test_mixup_mixes_images_and_losses_alike():
    images, targets = torch.eye(6).reshape(6, 1, 2, 3), torch.arange(6)
    mixed = make("mixup").local_step(Batch(images, ((1.0, targets),)), torch.Generator().manual_seed(1))
    (own, first), (other, second) = mixed.targets
    assert own + other == pytest.approx(1.0) and 0 < own < 1 and torch.equal(first, targets)
    expected = own * images + other * images[second]  # the target tells which image was mixed in
    torch.testing.assert_close(mixed.inputs, expected)


def test_mixup_weights_follow_the_beta_distribution():
    batch = Batch(torch.zeros(2, 1, 1, 1), ((1.0, torch.zeros(2)),))
    generator = torch.Generator().manual_seed(0)
    weights = [make("mixup", alpha=2.0).local_step(batch, generator).targets[0][0] for _ in range(4000)]
    assert np.mean(weights) == pytest.approx(0.5, abs=0.015)
    assert np.var(weights) == pytest.approx(1 / 20, rel=0.08)  # 1 / (4 (2α + 1))


def test_pruned_images_are_those_with_the_largest_duals_of_kernel_regression():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 1, bias=False))
    images, targets = torch.randn(6, 1, 4, 4), torch.randn(6, 1)
    features = images.flatten(1).double()  # the tangent kernel of a linear model is the Gram matrix
    residual = targets.double() - features @ model[1].weight.double().T
    alpha = torch.linalg.solve(features @ features.T, residual)
    torch.testing.assert_close(duals(model, TrainingSet(images, targets)), alpha.detach(), rtol=1e-3, atol=1e-5)
    kept, said = make("prune_easiest", fraction=0.5).prepare_data(TrainingSet(images, targets), setting(model=model))
    smallest = alpha[:, 0].abs().argsort()[:3].sort().values
    assert torch.equal(kept.inputs, images[smallest]) and said == {"pruned": 3}


def linear_data():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    return model, torch.randn(8, 1, 2, 2), torch.arange(8) % 3


@pytest.mark.parametrize("proximal", [0.0, 1.5])
def test_dp_sgd_without_noise_and_with_a_wide_bound_is_sgd(proximal):
    model, images, targets = linear_data()
    plain, private = (nn.Sequential(nn.Flatten(), nn.Linear(4, 3)) for _ in range(2))
    for copy in (plain, private):
        copy.load_state_dict(model.state_dict())
    training = TrainingConfig(steps=5, learning_rate=0.5)
    train(plain, images, targets, training, torch.Generator().manual_seed(0), proximal)
    defense = make("dp_sgd", noise_multiplier=1e-9, max_grad_norm=100.0)
    chain = [(defense, setting(model=private, steps=5, epochs=None, batch_size=None))]
    train(private, images, targets, training, torch.Generator().manual_seed(0), proximal, chain)
    torch.testing.assert_close(private[1].weight, plain[1].weight, rtol=1e-4, atol=1e-5)


def test_dp_sgd_draws_its_noise_on_the_cpu_as_opacus_does_there():
    from opacus.optimizers import DPOptimizer

    from clients.defenses.dp_optimizer import SeededDPOptimizer

    def step(kind, device):
        parameters = [nn.Parameter(torch.zeros(shape, device=device)) for shape in ((3, 4), (5,))]
        generator = torch.Generator().manual_seed(3)
        inner = torch.optim.SGD(parameters, lr=1.0)
        options = {"noise_multiplier": 1.3, "max_grad_norm": 0.7, "expected_batch_size": 2, "generator": generator}
        optimizer = kind(inner, **options)
        for parameter in parameters:
            parameter.grad_sample = torch.ones((2, *parameter.shape), device=device)
        optimizer.step()
        return parameters, generator.get_state()

    (theirs, drawn), (ours, _) = step(DPOptimizer, "cpu"), step(SeededDPOptimizer, "cpu")
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    elsewhere, used = step(SeededDPOptimizer, "meta")  # a device that draws nothing itself
    assert torch.equal(used, drawn) and all(parameter.grad.device.type == "meta" for parameter in elsewhere)


def test_dp_sgd_clips_the_gradient_of_each_image():
    model, images, targets = linear_data()
    before = torch.cat([value.detach().flatten() for value in model.state_dict().values()])
    total = torch.zeros_like(before)
    for i in range(8):
        loss = nn.functional.cross_entropy(model(images[i : i + 1]), targets[i : i + 1])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        total += gradient * min(1.0, 0.1 / float(gradient.norm()))
    defense = make("dp_sgd", noise_multiplier=1e-9, max_grad_norm=0.1)
    chain = [(defense, setting(model=model, steps=1, epochs=None, batch_size=None))]
    train(model, images, targets, TrainingConfig(steps=1, learning_rate=1.0), torch.Generator(), defenses=chain)
    after = torch.cat([value.detach().flatten() for value in model.state_dict().values()])
    torch.testing.assert_close(before - after, total / 8, rtol=1e-4, atol=1e-6)


def test_epsilon_is_that_of_opacus_and_adds_up_over_rounds():
    from opacus.accountants import RDPAccountant

    defense, memory = make("dp_sgd", noise_multiplier=1.3), {}
    spent = [defense.spent(setting(memory=memory, round=i, batch_size=4), steps=4, count=8)["epsilon"] for i in (1, 2)]
    accountant = RDPAccountant()
    expected = []
    for _ in range(2):
        for _ in range(4):
            accountant.step(noise_multiplier=1.3, sample_rate=0.5)
        expected.append(accountant.get_epsilon(1e-5))
    assert spent == pytest.approx(expected) and spent[1] > spent[0]
    assert memory["history"] == [(1.3, 0.5, 8)]  # alike steps are one entry, as in an accountant


def test_a_target_epsilon_is_spent_over_all_rounds():
    defense, memory = make("dp_sgd", epsilon=8.0), {}
    where = [Setting(config(rounds=3, epochs=2, batch_size=4), i, 0, nn.Linear(4, 2), memory) for i in (1, 2, 3)]
    spent = [defense.spent(place, steps=4, count=8)["epsilon"] for place in where]
    assert spent == sorted(spent) and 7.8 < spent[-1] <= 8.0


def test_the_smallest_epsilon_is_what_opacus_says_of_overwhelming_noise():
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    assert max(accountant.DEFAULT_ALPHAS) == LARGEST_ORDER
    accountant.history = [(1e4, 0.5, 1)]
    with pytest.warns(UserWarning, match="largest alpha"):
        told = accountant.get_epsilon(1e-5)
    assert smallest_epsilon(1e-5) == pytest.approx(told + 0.01, abs=1e-3)


def test_an_empty_poisson_batch_takes_a_step_of_noise():
    model, images, targets = linear_data()
    before = model[1].weight.detach().clone()
    defense = make("dp_sgd", noise_multiplier=1.0)
    chain = [(defense, setting(model=model, steps=40, epochs=None, batch_size=1))]
    report = train(
        model, images, targets, TrainingConfig(steps=40, batch_size=1), torch.Generator().manual_seed(0), defenses=chain
    )
    assert report.steps == 40 and torch.isfinite(model[1].weight).all() and not torch.equal(model[1].weight, before)


def test_models_that_dp_sgd_cannot_handle_are_refused_with_opacus_advice():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
    with pytest.raises(InputError, match="cannot handle model 'Sequential': BatchNorm"):
        make("dp_sgd").check(setting(model=model))


def test_local_dp_has_the_noise_of_the_gaussian_mechanism():
    defense = make("local_dp", clipping_norm=0.5, epsilon=2.0, delta=1e-5)
    assert defense.noise_std == pytest.approx(2 * 0.5 * math.sqrt(2 * math.log(1.25e5)) / 2.0)
    memory = {}
    assert [defense.spent(setting(memory=memory), 1, 1)["epsilon"] for _ in range(3)] == [2.0, 4.0, 6.0]


def test_a_chain_applies_in_the_order_given():
    received = make_model(config(), split_data(DataConfig(), PartitionConfig(images=8), 2, 0)).state_dict()

    def returned(*defenses):
        found = local_update(config(*defenses), received, 1, 0)
        return flat({name: found.state[name] - received[name] for name in received}), found.metrics

    clip, sparsify = {"name": "clipping", "norm": 0.01}, {"name": "top_k", "fraction": 0.1}
    clipped_first, metrics = returned(clip, sparsify)
    clipped_last, _ = returned(sparsify, clip)
    assert float(clipped_last.norm()) == pytest.approx(0.01, rel=1e-3)
    assert float(clipped_first.norm()) < 0.0099
    entries = sum(value.numel() for value in received.values())
    assert metrics["bytes"] == round(0.1 * entries * 8)


def test_without_defenses_a_client_returns_what_it_trained():
    received = make_model(config(), split_data(DataConfig(), PartitionConfig(images=8), 2, 0)).state_dict()
    plain, clipped = (
        local_update(config(*defenses), received, 1, 0) for defenses in ((), ({"name": "clipping", "norm": 1e6},))
    )
    assert plain.distilled is None and plain.num_images == 8
    for name in received:
        torch.testing.assert_close(plain.state[name], clipped.state[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("defense", "says"),
    [
        ("cliping", "did you mean 'clipping'?"),
        ({"name": "clipping", "bound": 1}, "no option 'bound'"),
        ({"name": "clipping", "norm": 0.0}, "norm is 0, it has to be positive"),
        ({"name": "clipping", "norm": "one"}, "option 'norm' is 'one'"),
        ({"name": "top_k", "fraction": 1.5}, "at most 1"),
        ({"name": "quantization", "bits": 0}, "has to be 1 to 16"),
        ({"name": "dp_sgd", "noise_multiplier": -1.0}, "noise_multiplier is -1"),
        ({"name": "dp_sgd", "epsilon": 1e6}, "at most 1000"),
        (
            {"name": "dp_sgd", "epsilon": 1e-3},
            "at delta 1e-05 opacus' accountant tells nothing below 0.11",
        ),
        ({"name": "dp_sgd", "epsilon": 1.0, "noise_multiplier": 1.0}, "exclude each other"),
        ({"name": "local_dp", "delta": 2.0}, "delta is 2"),
        ({"name": "prune_easiest", "fraction": 1.0}, "below 1"),
    ],
)
def test_bad_options_are_named(defense, says):
    with pytest.raises((InputError, ValidationError), match=re.escape(says)):
        DefenseConfig.model_validate(defense)


def test_mixup_and_dp_sgd_exclude_each_other():
    with pytest.raises(InputError, match="exclude each other"):
        make("mixup").check(setting("mixup", "dp_sgd"))


@pytest.mark.parametrize("method", ["kip", "rkip", "rkip_finite"])
def test_a_client_trains_on_its_distilled_set_and_keeps_it(method):
    received = make_model(config(), split_data(DataConfig(), PartitionConfig(images=8), 2, 0)).state_dict()
    memory = {}
    found = [
        local_update(config({"name": method, "size": 4, "iterations": 60}), received, i, 0, memory=memory)
        for i in (1, 2)
    ]
    own = split_data(DataConfig(), PartitionConfig(images=8), 2, 0).client(0)[0]
    first = found[0].distilled
    assert first.shape == (4, 1, 8, 8) and first.min() >= 0 and first.max() <= 1
    assert torch.equal(first, found[1].distilled)  # a new one every round would give away more
    assert torch.cdist(first.flatten(1), own.flatten(1)).min() > 0.1
    assert found[0].metrics["distilled"] == 4 and found[0].num_images == 8


def test_a_distilled_set_larger_than_the_data_is_refused():
    with pytest.raises(InputError, match="size is 9, client 0 has 8 images only"):
        make("kip", size=9).check(setting())
    make("kip", size=8).check(setting())
