"""BatchNorm in a client: whose statistics normalize, what moves, and what defenses make of it."""

import json
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
import torch
from torch import nn

from attacks import InputError
from clients.chain import ChainedDefense
from clients.client_app import run_flower_mod
from clients.config import ClientConfig, DataConfig, DefenseConfig, ModelConfig, PartitionConfig, TrainingConfig
from clients.defenses import DEFENSES, FlowerMod
from clients.local_update import load_data, local_update, make_model
from clients.training import train
from tests.clients.defenses.parts import context, make

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
NEED_FLOWER_OR_REFUSE = {"local_dp", "central_dp", "dp_sgd"}
SLOW = {"kip", "rkip", "rkip_finite"}
KEPT = {"name": "personal_layers", "patterns": ["*running_*", "*_tracked"]}


def normalized_inputs(count=6):
    """BatchNorm on three inputs, then a sum: a network of which all can be written down."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    return model, torch.randn(count, 1, 1, 3, generator=generator, dtype=torch.float64), torch.zeros(count, 1)


def trained(model, images, targets, **training):
    config = TrainingConfig(loss="mse", learning_rate=0.1, **training)
    return train(model, images, targets.to(images.dtype), config, torch.Generator().manual_seed(0))


def federated(*defenses, model=None, **training):
    """A client of digits with a narrow ResNet-18."""
    return ClientConfig(
        seed=0,
        clients=2,
        data=DataConfig(public=30, test=30),
        partition=PartitionConfig(images=6),
        model=ModelConfig(**({"name": "resnet18", "channels": 2, "stem": "cifar"} | (model or {}))),
        training=TrainingConfig(**({"steps": 2, "batch_size": 3} | training)),
        defenses=[DefenseConfig.model_validate(defense) for defense in defenses],
    )


def received(config):
    return make_model(config, load_data(config)).state_dict()


def statistics(state):
    return {name: value for name, value in state.items() if name.endswith(STATISTICS)}


def test_by_default_a_step_normalizes_with_the_batch_and_averages_its_statistics():
    model, images, targets = normalized_inputs()
    x = images.flatten(1)
    normal = (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()
    weight, bias = model[2].weight.detach().clone(), model[2].bias.detach().clone()
    residual = normal @ weight.T + bias
    trained(model, images, targets, steps=1)
    torch.testing.assert_close(model[2].weight, weight - 0.1 * residual.T @ normal / 6)
    torch.testing.assert_close(model[1].running_mean, 0.1 * x.mean(0))
    torch.testing.assert_close(model[1].running_var, 0.9 + 0.1 * x.var(0, unbiased=True))
    assert model[1].num_batches_tracked == 1 and not model.training and not model[1].training


def test_a_batch_of_one_image_uses_the_running_statistics_where_it_has_no_variance():
    """torch refuses such a batch; five images in batches of two still take three steps an epoch."""
    single, images, targets = normalized_inputs(1)
    frozen, _, _ = normalized_inputs(1)
    frozen.load_state_dict(single.state_dict())
    trained(single, images, targets, steps=1)
    trained(frozen, images, targets, steps=1, batch_norm="eval")
    assert all(torch.equal(value, frozen.state_dict()[name]) for name, value in single.state_dict().items())
    model, images, targets = normalized_inputs(5)
    report = trained(model, images, targets, epochs=1, batch_size=2)
    assert report.steps == 3 and model[1].num_batches_tracked == 2


def test_a_map_of_several_pixels_has_a_variance_of_its_own():
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(4, 1)).double()
    images = torch.arange(4.0, dtype=torch.float64).view(1, 1, 2, 2)
    trained(model, images, torch.zeros(1, 1), steps=1)
    assert float(model[0].running_mean) == pytest.approx(0.15)
    assert float(model[0].running_var) == pytest.approx(0.9 + 0.1 * 5 / 3)


def test_a_defense_that_looks_at_the_network_in_evaluation_mode_moves_nothing():
    config = federated("soteria")
    assert local_update(config, received(config), 1, 0).state["layer4.0.bn1.num_batches_tracked"] == 2


def test_mixed_precision_moves_statistics_in_float32():
    """One step: the second one starts from other parameters."""
    configs = federated(steps=1), federated(steps=1, autocast="bfloat16")
    plain, mixed = (local_update(one, received(one), 1, 0).state for one in configs)
    assert mixed["bn1.running_mean"].dtype == torch.float32
    torch.testing.assert_close(mixed["bn1.running_var"], plain["bn1.running_var"], rtol=0.02, atol=1e-3)


def test_linearized_training_needs_evaluation_mode():
    model, images, targets = normalized_inputs()
    with pytest.raises(InputError, match=r"set training\.batch_norm to eval"):
        trained(model, images, targets, steps=1, dynamics="linearized")
    trained(model, images, targets, steps=1, dynamics="linearized", batch_norm="eval")
    assert model[1].num_batches_tracked == 0


@pytest.mark.parametrize("name", sorted(set(DEFENSES) - NEED_FLOWER_OR_REFUSE - SLOW))
def test_no_defense_changes_the_statistics_that_are_returned(name):
    config, start = federated(), received(federated())
    link = ChainedDefense(make(name), replace(context(model=make_model(config, load_data(config))), received=start))
    state = {name: value + 0.5 if value.is_floating_point() else value + 7 for name, value in start.items()}
    sent, _ = link.protect(start, state, None)
    assert all(torch.equal(value, state[name]) for name, value in statistics(sent).items())


def test_a_flower_mod_sees_parameters_alone():
    """Clipped to a tenth of its norm, an update is a tenth of itself: no counter of batches is in the norm."""
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    config = federated()
    start, model = received(config), make_model(config, load_data(config))
    parameters = {name: start[name] for name, _ in model.named_parameters()}
    moved = {name: value + 0.01 for name, value in parameters.items()}
    norm = 0.01 * sum(value.numel() for value in moved.values()) ** 0.5
    patch = pytest.MonkeyPatch()
    with patch.context() as within:
        for field in ("_task_id", "_run_id", "_node_id"):  # of this process: a message names its sender
            within.setattr(TaskIdentity, field, 1)
        settings = ConfigRecord({"clipping_norm": 0.1 * norm})
        content = RecordDict({"arrays": ArrayRecord(start), "config": settings})
        message = Message(content=content, dst_node_id=1, message_type="train")
        run = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        mod = FlowerMod("flwr.clientapp.mod:fixedclipping_mod")
        sent = run_flower_mod(mod, moved, message, run)
    assert set(sent) == set(parameters)
    for name, value in sent.items():
        torch.testing.assert_close(value - parameters[name], torch.full_like(value, 0.001), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("patterns", "factors"), [(["*bn?.*", "*downsample.1.*"], True), (["*running_*"], False)])
def test_normalization_or_its_statistics_can_stay_with_the_client(patterns, factors):
    """FedBN keeps the factors too, SiloBN the statistics alone. What stays goes on where it was."""
    config, memory = federated({"name": "personal_layers", "patterns": patterns}), {}
    start = received(config)
    first = local_update(config, start, 1, 0, memory=memory).state
    assert torch.equal(first["bn1.running_var"], start["bn1.running_var"])
    assert torch.equal(first["bn1.weight"], start["bn1.weight"]) == factors
    second = local_update(config, start, 2, 0, memory=json.loads(json.dumps(memory))).state
    trained = local_update(federated(), start, 1, 0).state
    kept = {name for name in start if any(fnmatchcase(name, pattern) for pattern in patterns)}
    by_hand = local_update(federated(), start | {name: trained[name] for name in kept}, 2, 0).state
    for name, value in second.items():
        torch.testing.assert_close(value, (start if name in kept else by_hand)[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["local_dp", "central_dp"])
def test_a_guarantee_that_leaves_out_what_is_returned_is_refused(name):
    model = make_model(federated(), load_data(federated()))
    for others, mode, allowed in [([], "train", False), ([], "eval", True), ([KEPT], "train", True)]:
        where = context(name, *others, model=model, batch_norm=mode)
        if allowed:
            make(name).check(where)
        else:
            with pytest.raises(InputError, match=r"'bn1\.running_mean'.* set training\.batch_norm to eval"):
                make(name).check(where)


def test_dp_sgd_needs_an_image_to_be_normalized_by_itself():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
    with pytest.raises(InputError, match="BatchNorm in training mode mixes"):
        make("dp_sgd").check(context({**KEPT}, model=model))
    with pytest.raises(InputError, match="cannot handle model 'Sequential': BatchNorm"):
        make("dp_sgd").check(context(model=model, batch_norm="eval"))
    model[1].requires_grad_(False)
    make("dp_sgd").check(context(model=model, batch_norm="eval"))
