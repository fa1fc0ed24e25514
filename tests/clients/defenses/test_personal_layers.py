import json

import pytest
import torch

from attacks import InputError
from clients.defenses import Encoding
from clients.local_update import load_data, local_update, make_model
from tests.clients.defenses.parts import config, context, make


def rounds(settings):
    """(what is received in two rounds, what one client returns, its memory as it travels)."""
    first = make_model(settings, load_data(settings)).state_dict()
    second = {name: value + 0.01 for name, value in first.items()}
    memory, returned = {}, []
    for number, received in ((1, first), (2, second)):
        returned.append(local_update(settings, received, number, 0, memory=memory).state)
        memory = json.loads(json.dumps(memory))
    return (first, second), returned


def test_a_personal_head_is_never_sent_and_goes_on_where_it_was():
    received, returned = rounds(config("personal_layers"))
    for got, sent in zip(received, returned, strict=True):
        assert all(torch.equal(sent[name], got[name]) == name.startswith("5.") for name in got)
    plain = config()
    first = local_update(plain, received[0], 1, 0).state
    own = {name: (first if name.startswith("5.") else received[1])[name] for name in received[1]}
    by_hand = local_update(plain, own, 2, 0).state  # a client that was sent its own head
    for name in ("1.weight", "3.weight"):
        torch.testing.assert_close(returned[1][name], by_hand[name], rtol=0, atol=1e-7)


def test_patterns_name_what_is_kept_and_it_costs_no_bytes():
    settings = config({"name": "personal_layers", "patterns": ["1.*"]})
    received, returned = rounds(settings)
    assert torch.equal(returned[1]["1.weight"], received[1]["1.weight"])
    assert not torch.equal(returned[1]["5.weight"], received[1]["5.weight"])
    model = make_model(settings, load_data(settings))
    entries = sum(value.numel() for value in model.parameters())
    sent = make("personal_layers", patterns=["1.*"]).encode(Encoding(), context(model=model)).bytes(entries)
    assert sent == 4 * (entries - 32 * 65)


def test_patterns_that_fit_nothing_or_everything_are_refused():
    model = make_model(config(), load_data(config()))
    with pytest.raises(InputError, match=r"'7.weight' matches nothing that is trained"):
        make("personal_layers", patterns=["7.weight"]).check(context(model=model))
    with pytest.raises(InputError, match="keeps every parameter"):
        make("personal_layers", patterns=["*"]).check(context(model=model))
