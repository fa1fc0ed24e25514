import re

import pytest
import torch
from torch import nn

from attacks import InputError
from clients.chain import DefenseChain, build_defense
from clients.config import DataConfig, DefenseConfig, PartitionConfig
from clients.data.partition import split_data
from clients.defenses import DEFENSES
from clients.local_update import local_update, make_model
from tests.clients.defenses.parts import config, flat


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
        ({"name": "clipping", "norm": 0.0}, "norm is 0.0, it has to be positive"),
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
    with pytest.raises(InputError, match=re.escape(says)):
        build_defense(DefenseConfig.model_validate(defense))


PLUGIN = """
from dataclasses import dataclass
from clients.defenses.base import Defense
@dataclass(frozen=True)
class Mine(Defense):
    name = "mine"
    def BODY
"""


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("protect_update(self, delta, context): return delta", "has to return (tensors of the names"),
        ("protect_update(self, delta, context): return None, {}", "has to return (tensors of the names"),
        ("protect_update(self, delta, context): return {n: v[0] for n, v in delta.items()}, {}", "has to return (ten"),
        ("prepare_data(self, data, context): return data", "has to return (a TrainingSet, metrics)"),
        ("encode(self, encoding, context): return 3", "has to return an Encoding"),
        ("server_half(self): return None", "has to return a ServerHalf"),
    ],
)
def test_a_defense_of_the_user_s_that_returns_something_else_is_named_by_its_place(tmp_path, body, says):
    (tmp_path / "mine.py").write_text(PLUGIN.replace("BODY", body))
    received = make_model(config(), split_data(DataConfig(), PartitionConfig(images=8), 2, 0)).state_dict()
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        local_update(config(f"{tmp_path}/mine.py:Mine"), received, 1, 0)
    assert str(caught.value).startswith(f"Mine.{body.partition('(')[0]} ({tmp_path}/mine.py:7) ")


def test_every_name_of_the_benchmark_is_registered():
    wanted = "dp_sgd local_dp central_dp secure_aggregation clipping top_k random_k quantization noise prune_easiest"
    assert {*wanted.split(), "augmentation", "mixup"} <= set(DEFENSES)


def test_of_two_guarantees_both_are_reported_under_their_labels():
    private = config({"name": "dp_sgd", "noise_multiplier": 1.0, "label": "mine"}, {"name": "central_dp"})
    chain = DefenseChain.of(private, 1, 0, nn.Linear(4, 2), {})
    assert [(one.mechanism, one.unit, one.against) for one in chain.privacy_spent(4, 8)] == [
        ("mine", "record", "both"),
        ("central_dp", "client", "observer"),
    ]
    assert DefenseChain.of(config("clipping"), 1, 0, nn.Linear(4, 2), {}).privacy_spent(4, 8) == ()
    assert DefenseChain.of(config(), 1, 0, nn.Linear(4, 2), {}).privacy_spent(4, 8) == ()
