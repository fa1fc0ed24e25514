"""What every registered attack has to keep to, whatever it does: one suite over `ATTACKS`, with tiny budgets."""

import math
import os
import re
from dataclasses import fields, replace
from functools import partial
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from attacks import ATTACKS, InputError, Knowledge, Observation, get_attack
from attacks.base import option_names
from attacks.gradient_membership import gradient_scores
from attacks.interface.knowledge import count_candidates
from attacks.kernel.empirical import kernel_drift
from attacks.kernel.regime import OnImages
from attacks.membership import MembershipTest
from attacks.span.thresholds import MAP_INVERSION, Descent
from attacks.update.private_set import UNKNOWN_MEAN
from tests.attacks.conftest import MEAN, client, digits, generator, mlp, nearest, untouched
from tests.attacks.user_networks import (
    Autocast,
    BatchNormalized,
    ByKeyword,
    ChannelsLast,
    Converting,
    Convolved,
    Heads,
    Keeping,
    Perceptron,
    Pooled,
    Quickstart,
    Recurrent,
    Residual,
    Swish,
    Typed,
    VisionTransformer,
    frozen_body,
    made_of_others,
    mnist_example,
    mobile,
    nested,
    parametrized,
    saved_on_cpu,
    with_adapters,
)

TOLD = Knowledge(num_private=3, pixel_mean=(MEAN,), learning_rate=0.05, steps=2, public_images=digits(20, start=100))
BUDGET = {"iterations": 4, "starts": 10, "steps": 5, "settle": 5, "polish": 5, "rounds": 1}

YOURS = os.environ.get("FEDSPILL_ATTACK")  # package.module:Class of one to be tested alone
every_attack = pytest.mark.parametrize("name", [YOURS] if YOURS else sorted(ATTACKS))


def tiny(name):
    return get_attack(name, **{option: value for option, value in BUDGET.items() if option in option_names(name)})


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)).eval()


def plain(outputs=10):
    return mlp(48, outputs=outputs)


def observed(model, count=3):
    return client(model, digits(count), 2)


def run(name, observation, knowledge=TOLD, seed=0):
    return tiny(name).run(observation, knowledge, generator(seed))


def refusal(call, *given):
    """What a call is refused with, or nothing."""
    try:
        call(*given)
    except InputError as error:
        return str(error)
    return ""


def check_form(found, shape=(1, 8, 8)):
    assert found.images.shape[1:] == shape and found.images.dtype == torch.float32
    assert found.images.device.type == "cpu" and found.images.isfinite().all()
    assert found.residual.shape == (len(found.images),) and (found.residual.diff() >= 0).all()
    assert found.duals is None or found.duals.shape[1] == len(found.images)
    assert len(found.pixel_mean) in (0, shape[0]) and found.seconds > 0
    if found.pixel_mean and len(found.images):
        assert found.pixels().min() >= 0 and found.pixels().max() <= 1


@every_attack
@pytest.mark.parametrize(("outputs", "count"), [(10, 3), (10, 1), (1, 3), (1, 1)])
def test_images_have_the_form_that_is_promised(name, outputs, count):
    check_form(run(name, observed(plain(outputs), count), replace(TOLD, num_private=count)))


@every_attack
def test_what_is_not_told_is_inferred_or_assumed(name):
    found = run(name, observed(plain()), replace(TOLD, num_private=None, pixel_mean=None))
    check_form(found)
    assert found.num_inferred in (None, 3) and found.pixel_mean == pytest.approx((MEAN,), abs=1e-3)


@every_attack
def test_a_mean_that_is_not_known_is_not_added(name):
    images = torch.rand((3, 1, 8, 8), generator=generator()) - 0.4  # no pixel is black in all of them
    found = run(name, client(plain(), images, 2), replace(TOLD, pixel_mean=None))
    assert found.pixel_mean == () and torch.equal(found.pixels(), found.images)
    assert found.warnings.count(UNKNOWN_MEAN) == 1


@every_attack
def test_the_generator_decides_everything_and_no_global_one_is_touched(name):
    observation = observed(plain())
    torch.manual_seed(1)
    before, first = torch.get_rng_state(), run(name, observation)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = run(name, observation)
    for field in ("images", "residual", "duals"):
        torch.testing.assert_close(getattr(first, field), getattr(second, field), rtol=0, atol=0, equal_nan=True)


@every_attack
def test_an_update_of_zero_is_refused_or_says_nothing(name):
    model = plain()
    state = model.state_dict()
    attack, observation = tiny(name), Observation(model, ((state, state),), (1, 8, 8))
    attack.check(observation, TOLD)  # no update is looked at
    try:
        check_form(attack.run(observation, TOLD, generator()))
    except InputError as error:
        assert "is zero" in str(error)


@every_attack
def test_a_number_that_is_none_is_refused(name):
    observation = observed(plain())
    final = {key: value.clone() for key, value in observation.final.items()}
    final["3.weight"][0, 0] = float("nan")
    with pytest.raises(InputError, match=r"'3\.weight' of the checkpoint returned holds NaN"):
        run(name, Observation(observation.model, ((observation.initial, final),), (1, 8, 8)))


@every_attack
def test_options_are_checked(name):
    with pytest.raises(InputError, match="has no option 'iteratons'"):
        get_attack(name, iteratons=5)
    hints = get_type_hints(ATTACKS[name])
    for option in fields(ATTACKS[name]):
        kinds = get_args(hints[option.name]) or (hints[option.name],)
        if bool in kinds:
            continue
        wrong = "nonsense" if str in kinds or any(isinstance(kind, str) for kind in kinds) else -1
        with pytest.raises(InputError, match=option.name):
            get_attack(name, **{option.name: wrong})


@every_attack
@pytest.mark.parametrize("make", [plain, convolutional])
def test_the_caller_s_network_stays_as_it_is(name, make):
    observation, attack = observed(make()), tiny(name)
    with untouched(observation.model):
        refused = refusal(attack.check, observation, TOLD)
        assert refusal(attack.run, observation, TOLD, generator()) == refused
    assert not refused or (name == "span" and make is convolutional) or name == YOURS


OF_USERS = {
    "quickstart": Quickstart, "perceptron": Perceptron, "log-softmax": lambda: Perceptron(log=True),
    "channels last": ChannelsLast, "in place": Residual, "batch norm": BatchNormalized,
    "transformer": VisionTransformer, "transformer of Hugging Face": lambda: VisionTransformer(named=True),
    "adapters": with_adapters,
    "two heads": lambda: Heads(lambda first, other: first), "two outputs": lambda: Heads(lambda *both: both),
    "named outputs": lambda: Heads(lambda first, other: {"logits": first, "age": other}),
    "MNIST example": mnist_example, "MobileNetV2": mobile, "fastai": nested,
    "float32 alone": Typed, "converted": Converting, "autocast": Autocast,
    "own function": lambda: Convolved(lambda layer, x: Swish.apply(layer(x))), "keeping": Keeping,
    "recurrent": Recurrent, "gated": lambda: Recurrent(nn.GRU), "by keyword": ByKeyword,
    "data parallel": lambda: nn.DataParallel(Perceptron()),
    "compiled": lambda: torch.compile(Perceptron(), backend="eager"),
    "weight norm": lambda: made_of_others(nn.utils.parametrizations.weight_norm, 1),
    "spectral norm": lambda: made_of_others(nn.utils.parametrizations.spectral_norm, 3),
    "spectral norm by hooks": lambda: made_of_others(nn.utils.spectral_norm, 3),
    "weight norm by hooks": lambda: made_of_others(nn.utils.weight_norm, 1),
    "bias made of another": lambda: made_of_others(parametrized("bias"), 3),
    "PReLU made of another": lambda: made_of_others(lambda layer: parametrized("weight")(nn.PReLU()), 2),
    "two views": lambda: Pooled(lambda x: torch.cat([x, x.flip(3)])),
    "a constant": lambda: Pooled(lambda x: x @ torch.eye(8)),  # in float32, whatever x is
    "no_grad": frozen_body, "detached": lambda: frozen_body(lambda layer, x: layer(x).detach()),
    "by data": lambda: frozen_body(lambda layer, x: layer(x).data),
    "in NumPy": lambda: frozen_body(lambda layer, x: torch.from_numpy(layer(x).detach().numpy())),
    "checkpointed": lambda: Convolved(partial(checkpoint, use_reentrant=False)),
    "checkpointed, reentrant": lambda: Convolved(partial(checkpoint, use_reentrant=True)),
    "saved on the CPU": lambda: Convolved(saved_on_cpu),
}  # fmt: skip
NOT_BY_SPAN = {  # what it cannot see through
    "fastai": "has neither, but BatchNorm2d '0.0' ahead of its first linear layer (use 'ntk')",
    "recurrent": "has neither, but LSTM 'rows' ahead of its first linear layer (use 'ntk')",
    "gated": "has neither, but GRU 'rows' ahead of its first linear layer (use 'ntk')",
    "by keyword": "needs positions that are learned and added to patches",
    "bias made of another": "makes the bias of '3' of others, as weight_norm and other parametrizations do",
    "weight norm": "makes the weight of '1' of others, as weight_norm and other parametrizations do",
    "weight norm by hooks": "makes the weight of '1' of others, as weight_norm and other parametrizations do",
    "spectral norm": "makes the weight of '3' of others, as weight_norm and other parametrizations do",
    "spectral norm by hooks": "makes the weight of '3' of others, as weight_norm and other parametrizations do",
}
BY_GRADIENTS = ("gradient_matching", "kkt", "ntk", "span")
CUT_OFF = "cuts off, as NumPy does: give a network without that, its frozen layers under requires_grad_(False)"
HOOKED = "saves tensors by hooks, as torch.utils.checkpoint and save_on_cpu do"
NOT_BY_GRADIENTS = {
    "in NumPy": CUT_OFF,
    "checkpointed": HOOKED,
    "saved on the CPU": HOOKED,
    "checkpointed, reentrant": "computes layers again by torch.utils.checkpoint, at parameters of its own",
}
OUTSIDE = "computes outside of torch, as NumPy does"
FUNCTIONAL = {  # what torch.func does not differentiate
    "checkpointed": HOOKED,
    "saved on the CPU": HOOKED,
    "checkpointed, reentrant": "without setup_context, as torch.utils.checkpoint(use_reentrant=True) has",
    "own function": "has an autograd.Function without setup_context",
}
of_every_user = pytest.mark.parametrize("network", OF_USERS)


def of_user(make, moved=False):
    """(what is seen of a client with a user's network, its images, what is told). moved: whether the checkpoints lie in
    memory as the network does not have them."""
    torch.manual_seed(0)
    model, shape = make(), (3, 32, 32) if make is Quickstart else (1, 8, 8)
    images = torch.rand((3, *shape), generator=generator())
    observation = client(model, images.clone(), 1)
    if moved:
        other = torch.contiguous_format if make is ChannelsLast else torch.channels_last
        state = {k: v.contiguous(memory_format=other) if v.dim() == 4 else v for k, v in observation.final.items()}
        observation = replace(observation, pairs=((observation.initial, state),))
    public = torch.rand((20, *shape), generator=generator(1))
    return observation, images, replace(TOLD, pixel_mean=(0.0,) * shape[0], steps=1, public_images=public)


@pytest.fixture
def short_inversion(monkeypatch):
    monkeypatch.setattr(MAP_INVERSION, "pilot", Descent(4, 0.05))
    monkeypatch.setattr(MAP_INVERSION, "descent", Descent(4, 0.05))


@every_attack
@of_every_user
@pytest.mark.usefixtures("short_inversion")
def test_networks_as_people_write_them_are_attacked_or_refused(name, network):
    observation, images, told = of_user(OF_USERS[network], moved=True)
    public = told.public_images.clone()
    with untouched(observation.model):
        said = refusal(lambda: check_form(tiny(name).run(observation, told, generator()), tuple(images.shape[1:])))
    if name == "span" and network in NOT_BY_SPAN:
        assert NOT_BY_SPAN[network] in said
    elif name in BY_GRADIENTS and name != "span" and network in NOT_BY_GRADIENTS:  # span asks the last layer
        assert NOT_BY_GRADIENTS[network] in said
    elif name == "best_public" and network in {*FUNCTIONAL, "in NumPy"}:
        assert FUNCTIONAL.get(network, OUTSIDE) in said
    else:
        assert not said or name == YOURS
    assert torch.equal(told.public_images, public)


@pytest.mark.parametrize("name", BY_GRADIENTS)
@pytest.mark.parametrize("network", ["no_grad", "detached", "by data"])
@pytest.mark.usefixtures("short_inversion")
def test_a_body_without_gradients_is_attacked_as_one_that_is_frozen(name, network):
    observation, _, told = of_user(OF_USERS[network])
    frozen = replace(observation, model=frozen_body(lambda layer, x: layer(x)))
    observation.model.requires_grad_()  # as where nobody told the optimizer
    found, expected = run(name, observation, told), run(name, frozen, told)
    assert len(expected.images)
    torch.testing.assert_close(found.images, expected.images, rtol=0, atol=0)


def as_files_of_peft(state, names):
    """What PEFT saves: trained tensors alone, without the name of the adapter."""
    return {name.replace(".default", ""): state[name] for name in names}


def test_files_of_adapters_tell_what_whole_checkpoints_do():
    observation, images, told = of_user(with_adapters)
    adapters = tuple(as_files_of_peft(state, observation.trainable) for state in observation.pairs[0])
    assert "blocks.0.mlp.0.lora_A.weight" in adapters[0] and len(adapters[0]) < len(observation.initial)
    observation.model.load_state_dict(observation.initial)  # the frozen layers, as the user's function makes them
    alone = replace(observation, pairs=(adapters,))
    candidates, labels = torch.cat([images, told.public_images]), torch.arange(23) % 10
    whole, part = (gradient_scores(one, candidates, labels) for one in (observation, alone))
    torch.testing.assert_close(part, whole, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "network", ["perceptron", "float32 alone", "converted", "data parallel", "compiled", "keeping"]
)
def test_span_finds_the_images_whatever_stands_around_two_layers(network):
    observation, images, told = of_user(OF_USERS[network])
    found = get_attack("span", starts=50, steps=200).run(observation, told, generator())
    assert len(found.images) == 3 and nearest(images, found).max() < 0.01


@pytest.mark.usefixtures("short_inversion")
def test_features_behind_a_view_are_found():
    observation, _, told = of_user(Quickstart)
    found = get_attack("span", starts=50, steps=100, settle=50, polish=50, rounds=1).run(observation, told, generator())
    assert len(found.features) == 3 and "their features were found" in " ".join(found.warnings)


@every_attack
def test_what_a_network_does_in_place_changes_no_result(name):
    clients = [of_user(make)[::2] for make in (Residual, lambda: Residual(in_place=False))]
    refused = [refusal(tiny(name).check, *one) for one in clients]
    assert refused == ["", ""] or (name == YOURS and refused[0] == refused[1])
    if not refused[0]:
        found = [run(name, *one) for one in clients]
        torch.testing.assert_close(found[0].images, found[1].images)
        torch.testing.assert_close(found[0].residual, found[1].residual)


READERS = {
    "membership": lambda seen, images, told: MembershipTest.of(seen, told, images).residual(images),
    "drift": lambda seen, images, told: torch.tensor(kernel_drift(seen, images)),
    "kernel regime": lambda seen, images, told: torch.tensor(
        list(vars(OnImages.of(seen, images, generator(), complete=True, points=(1.0,))).values())
    ),
}


NOT_READ = {(reader, network): why for reader in ("drift", "kernel regime") for network, why in FUNCTIONAL.items()} | {
    ("kernel regime", "in NumPy"): OUTSIDE,
    ("kernel regime", "weight norm"): "an operation that torch has no forward derivative of",
    ("kernel regime", "weight norm by hooks"): "an operation that torch has no forward derivative of",
}


@of_every_user
@pytest.mark.parametrize("reader", READERS)
def test_networks_as_people_write_them_are_read(reader, network):
    observation, images, told = of_user(OF_USERS[network], moved=True)
    own, values = images[:2].clone(), []
    with untouched(observation.model):
        said = refusal(lambda: values.append(READERS[reader](observation, own, told)))
    assert torch.equal(own, images[:2])
    if (reader, network) in NOT_READ:
        assert NOT_READ[reader, network] in said
    else:
        assert not said and values[0].isfinite().all()


@pytest.mark.parametrize("network", ["checkpointed", "checkpointed, reentrant", "saved on the CPU", "no_grad"])
def test_members_are_told_through_what_gradients_do_not_pass_as_without_it(network):
    observation, images, told = of_user(OF_USERS[network])
    plainly = replace(observation, model=Convolved(lambda layer, x: layer(x)))
    plainly.model.conv.requires_grad_(observation.model.conv.weight.requires_grad)
    found, expected = (MembershipTest.of(seen, told, images).residual(images) for seen in (observation, plainly))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("reader", READERS)
def test_what_a_network_does_in_place_changes_no_reading(reader):
    values = [READERS[reader](*of_user(make)) for make in (Residual, lambda: Residual(in_place=False))]
    torch.testing.assert_close(*values, rtol=1e-4, atol=1e-6)


NETWORKS = {"plain": plain, "convolutional": convolutional, "one layer": lambda: mlp(depth=0)}
WRONG = {
    "all is told": {},
    "nothing is told": dict.fromkeys(("num_private", "pixel_mean", "learning_rate", "steps", "public_images")),
    "the number is not told": {"num_private": None},
    "three channels": {"pixel_mean": (0.5, 0.5, 0.5)},
    "classes beyond the outputs": {"labels": (0, 1, 12)},
    "labels for other images": {"labels": (0, 1)},
    "images beyond the number": {"batches": ((0, 7),)},
    "another optimizer": {"optimizer": "adam"},
    "public images of another shape": {"public_images": torch.zeros(4, 1, 5, 5)},
}


@every_attack
@pytest.mark.parametrize("network", NETWORKS)
def test_a_check_and_a_run_refuse_the_same_in_the_same_words(name, network):
    observation = observed(NETWORKS[network]())
    for changes in WRONG.values():
        knowledge, attack = replace(TOLD, **changes), tiny(name)
        checked = refusal(attack.check, observation, knowledge)
        assert refusal(attack.run, observation, knowledge, generator()) == checked, changes


@pytest.mark.parametrize(
    ("name", "options", "told", "wanted"),
    [
        ("ntk", {"candidates": 1e30}, {"num_private": None}, "candidates is 1e+30; at most 10,000 candidates of 1×"),
        ("ntk", {}, {"num_private": 900_000}, "num_private is 900,000 and candidates is 2; at most 10,000"),
        ("ntk", {"num_candidates": 10**9}, {}, "num_candidates is 1,000,000,000; at most"),
        ("kkt", {"candidates": 1e6}, {"num_private": None}, "candidates is 1e+06; at most"),
        ("gradient_matching", {}, {"num_private": 900_000}, "num_private is 900,000;"),
    ],
)
def test_more_candidates_than_memory_takes_are_refused_before_it_is_asked_for(name, options, told, wanted):
    with pytest.raises(InputError, match=re.escape(wanted)):
        get_attack(name, **options).check(observed(plain()), replace(TOLD, **told))


@pytest.mark.parametrize(
    ("name", "option", "most"), [("span", "starts", 10_000), ("gradient_matching", "max_unrolled", 1000)]
)
def test_an_option_that_asks_for_gigabytes(name, option, most):
    with pytest.raises(InputError, match=f"{option} is 1000000000, it has to be above 0 and at most {most}"):
        get_attack(name, **{option: 10**9})


@pytest.mark.parametrize("field", ["num_private", "steps", "batch_size"])
def test_knowledge_that_asks_for_gigabytes(field):
    with pytest.raises(InputError, match=f"knowledge {field} is 1000000000, it has to be at most 1000000"):
        Knowledge(**{field: 10**9})


@every_attack
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_public_images_that_are_no_images(name, value):
    images = torch.zeros(2, *observed(plain()).input_shape)
    images[1, 0, 0, 0] = value
    with pytest.raises(InputError, match="knowledge public_images holds NaN or Inf"):
        get_attack(name).check(observed(plain()), replace(TOLD, public_images=images))


def test_few_large_candidates_take_as_much_as_many_small_ones():
    assert count_candidates("ntk", (1, 8, 8), Knowledge(num_private=5_000), 2.0) == 10_000
    assert count_candidates("ntk", (3, 224, 224), Knowledge(num_private=600), 2.5) == 1_500
    with pytest.raises(InputError, match="at most 1,783 candidates of 3×224×224"):
        count_candidates("ntk", (3, 224, 224), Knowledge(num_private=900), 2.0)
