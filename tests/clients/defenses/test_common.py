"""What holds of every registered defense, whatever it does."""

import dataclasses
import json
import math
import types
import typing

import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge
from clients.config import DefenseConfig
from clients.defenses import DEFENSES, DefenseContext, Encoding, TrainingSet
from clients.local_update import load_data, local_update, make_model
from clients.training import Batch
from tests.clients.defenses.parts import config, context, flat, make, update
from tests.conftest import under_test

QUICK = {name: {"iterations": 5} for name in ("kip", "rkip", "rkip_finite")}
GUARANTEES = {"dp_sgd", "local_dp", "central_dp"}
FACTORED = {"power_sgd"}  # what travels are factors, of which every entry of the update is made

every_defense = pytest.mark.parametrize("name", under_test(DEFENSES))


def defense(name):
    return make(name, **QUICK.get(name, {}))


def network(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, outputs)).eval()


def data(count=6, outputs=3):
    torch.manual_seed(1)
    images = torch.rand(count, 1, 4, 4) - 0.5
    return TrainingSet(images, torch.arange(count) % outputs if outputs > 1 else torch.randn(count, 1))


def batch(count=6):
    return Batch(data(count).inputs, ((1.0, data(count).targets),))


@every_defense
def test_a_zero_update_stays_finite_and_keeps_its_shapes(name):
    zero = {"w": torch.zeros(20, 10), "b": torch.zeros(20, dtype=torch.float64)}
    sent, reported = defense(name).protect_update(zero, context())
    assert {key: (value.shape, value.dtype) for key, value in sent.items()} == {
        key: (value.shape, value.dtype) for key, value in zero.items()
    }
    assert flat(sent).isfinite().all() and all(map(math.isfinite, reported.values()))


@every_defense
def test_an_update_that_diverged_is_not_made_to_look_sound(name):
    delta = update(w=(20, 10))
    delta["w"][3, 4] = math.nan
    assert defense(name).protect_update(delta, context())[0]["w"].isnan().any()


@every_defense
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("count", [1, 6])
def test_one_image_and_one_output_are_enough(name, count, outputs):
    private = data(count, outputs)
    kept, _ = defense(name).prepare_data(private, context(model=network(outputs), loss="mse"))
    assert 1 <= len(kept.inputs) <= count and len(kept.inputs) == len(kept.targets)
    assert kept.inputs.shape[1:] == private.inputs.shape[1:] and kept.inputs.isfinite().all()
    assert kept.targets.dtype == private.targets.dtype and kept.targets.shape[1:] == private.targets.shape[1:]
    stepped = defense(name).local_step(batch(count), torch.Generator().manual_seed(0))
    assert stepped.inputs.shape == (count, 1, 4, 4) and stepped.inputs.isfinite().all()
    assert sum(weight for weight, _ in stepped.targets) == pytest.approx(1.0)


@every_defense
def test_the_same_round_gives_the_same_bits(name):
    def outcome():
        made, where = defense(name), context(model=network())
        kept, _ = made.prepare_data(data(), where)
        stepped = made.local_step(batch(), torch.Generator().manual_seed(3))
        return kept.inputs, stepped.inputs, flat(made.protect_update(update(), where)[0])

    assert all(torch.equal(one, other) for one, other in zip(outcome(), outcome(), strict=True))


@every_defense
def test_nothing_of_the_caller_s_is_changed(name):
    made, model, private, delta = defense(name), network(), data(), update()
    images, before = private.inputs.clone(), {key: value.clone() for key, value in model.state_dict().items()}
    where = context(model=model)
    made.check(where)
    made.prepare_data(private, where)
    made.local_step(batch(), torch.Generator().manual_seed(0))
    made.protect_update(delta, where)
    made.privacy_spent(where, 4, 6)
    assert not model.training and all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(private.inputs, images) and torch.equal(flat(delta), flat(update()))
    json.dumps(where.memory)  # it has to travel between rounds as text


@every_defense
def test_options_are_checked_by_name(name):
    with pytest.raises(InputError, match="no option 'colour'"):
        make(name, colour=1)
    for option in dataclasses.fields(DEFENSES[name]):
        kinds = set(typing.get_args(option.type) if isinstance(option.type, types.UnionType) else [option.type])
        wrong = [{"no": "mapping"}, math.nan] + [kind(-1) for kind in kinds & {int, float}]
        for value in wrong:
            with pytest.raises(InputError, match=option.name):
                make(name, **{option.name: value})


@every_defense
def test_what_travels_is_what_is_said_to(name):
    encoding = defense(name).encode(Encoding(), context())
    assert 0 < encoding.fraction <= 1 and 1 <= encoding.bits <= 32 and 0 < encoding.bytes(1000) <= 8000
    sent = flat(defense(name).protect_update(update(), context())[0])
    assert name in FACTORED or int((sent != 0).sum()) <= math.ceil(encoding.fraction * len(sent))


@every_defense
def test_what_an_attacker_may_know_are_fields_of_knowledge(name):
    known = defense(name).known_to_adaptive_attacker()
    assert set(known) <= set(Knowledge.names())
    assert dataclasses.replace(Knowledge(), **known).given() == known


@every_defense
def test_epsilon_is_said_only_where_there_is_a_guarantee_and_grows(name):
    memory, made = {}, defense(name)
    spent = [made.privacy_spent(DefenseContext(config(rounds=2), i, 0, network(), memory), 4, 8) for i in (1, 2)]
    if name not in GUARANTEES:
        assert spent == [None, None]
    else:
        assert 0 < spent[0].epsilon < spent[1].epsilon < math.inf and 0 < spent[0].delta < 1


@every_defense
def test_a_client_of_one_image_runs_behind_it(name):
    settings = config(DefenseConfig.model_validate({"name": name, **QUICK.get(name, {})}).model_dump(), images=1)
    received = make_model(settings, load_data(settings)).state_dict()
    found = local_update(settings, received, 1, 0, run_mod=lambda mod, name, state: state)
    assert found.num_images == 1 and found.report.steps == 2
    assert {key: value.shape for key, value in found.state.items()} == {k: v.shape for k, v in received.items()}
    assert all(value.isfinite().all() for value in found.state.values())
    assert all(isinstance(value, int | float) and math.isfinite(value) for value in found.metrics.values())
