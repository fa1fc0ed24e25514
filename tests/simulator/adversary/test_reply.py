"""A client is somebody else's program: whatever it sends becomes a row, and nothing reaches the strategy unread."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from clients.client_app import OUT_OF_TIME
from simulator.adversary.reply import ClientReply

STATE = {"w": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(4)}
METRICS = {"num-examples": 8, "steps": 4, "first-loss": 2.0, "last-loss": 1.0, "seconds": 0.5, "train_loss": 2.0}
WHERE = {"worker": "ray-worker", "pid": 17, "gpu-ids": "", "device": "cpu"}


def good() -> RecordDict:
    return RecordDict(
        {
            "arrays": ArrayRecord({name: value.clone() for name, value in STATE.items()}),
            "metrics": MetricRecord(dict(METRICS)),
            "where": ConfigRecord(dict(WHERE)),
            "defenses": ConfigRecord({"bytes": 28.0}),
            "privacy": ConfigRecord({"guarantees": "[]"}),
        }
    )


@pytest.fixture
def read(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):  # of this process: a message names its sender
        monkeypatch.setattr(TaskIdentity, name, 1)

    def reply(content: RecordDict | None = None, error: Error | None = None) -> ClientReply:
        asked = Message(content=RecordDict(), message_type="train", dst_node_id=7)
        message = Message(error, reply_to=asked) if error else Message(content=content, reply_to=asked)
        return ClientReply.of(3, message, dict(ArrayRecord(STATE)), timeout=9.0)

    return reply


def test_a_good_reply_has_its_numbers_and_its_checkpoint(read):
    reply = read(good())
    assert (reply.status, reply.detail, reply.columns["num_examples"], reply.columns["pid"]) == ("ok", "", 8, 17)
    assert reply.state is not None and torch.equal(reply.state["w"], STATE["w"])
    assert reply.message is not None and set(reply.message.content) == {"arrays", "metrics"}


def test_silence_and_errors_have_a_reason(read):
    assert ClientReply.of(3, None, {}, 9.0).detail == "no reply within federation.timeout = 9 s"
    assert read(error=Error(OUT_OF_TIME, "")).columns["status"] == "timeout"
    reply = read(error=Error(2, "\x1b]0;PWNED\x07boom\x1b[31m\n[/bold]" + "x" * 10_000))
    assert reply.status == "failed" and reply.detail.startswith("boom [/bold]xxx") and len(reply.detail) == 300


def _arrays(change):
    def apply(content):
        arrays = dict(content.array_records["arrays"])
        change(arrays)
        content["arrays"] = ArrayRecord(arrays)

    return apply


def _metric(name, value):
    return lambda content: content["metrics"].update({name: value})


def _epsilon(text):
    """That a client is given a guarantee of so much."""
    said = {"mechanism": "m", "epsilon": 0.5, "delta": 1e-5, "unit": "client", "against": "both"}
    text = json.dumps([said | {"adjacency": "add_remove"}]).replace("0.5", text)
    return lambda content: content["privacy"].update(guarantees=text)


def _without(record):
    return lambda content: content.pop(record)


HUGE = Array(np.full((2, 3), 1e25, np.float32))  # 6e50 is above what float32 holds, 3.4e38
NAN, SHORT = Array(np.full((2, 3), np.nan, np.float32)), Array("float32", (2, 3), "numpy.ndarray", b"12")
WRONG = {
    "no arrays": (_without("arrays"), "has no record 'arrays'"),
    "no metrics": (_without("metrics"), "has no record 'metrics'"),
    "no whereabouts": (_without("where"), "says worker = 'None'"),
    "a missing array": (_arrays(lambda arrays: arrays.pop("w")), "lacks the array 'w', which was sent"),
    "one array more": (_arrays(lambda arrays: arrays.update(x=NAN)), "has the array 'x', which was not sent"),
    "another shape": (_arrays(lambda a: a.update(w=Array(np.zeros((3, 2), np.float32)))), "sent was"),
    "another type": (_arrays(lambda a: a.update(w=Array(np.zeros((2, 3), np.int64)))), "has 'w' of int64"),
    "NaN": (_arrays(lambda arrays: arrays.update(w=NAN)), "holds NaN or Inf in 'w': its training diverged"),
    "huge numbers": (_arrays(lambda arrays: arrays.update(w=HUGE)), r"holds numbers up to 1e\+25 in 'w'"),
    "bytes of another size": (_arrays(lambda arrays: arrays.update(w=SHORT)), "cannot be read"),
    "a weight that is no number": (_metric("num-examples", float("nan")), "says num-examples = nan"),
    "an endless weight": (_metric("num-examples", 1e300), "says num-examples = 1e"),
    "no weight": (_metric("num-examples", 0), "says num-examples = 0"),
    "a negative weight": (_metric("num-examples", -3), "says num-examples = -3"),
    "half an image": (_metric("num-examples", 3.5), "says num-examples = 3.5: no number of images"),
    "half a step": (_metric("steps", 0.5), "says steps = 0.5: no number of steps"),
    "endless steps": (_metric("steps", float("inf")), "says steps = inf: no number of steps"),
    "more steps than a table holds": (_metric("steps", 2**63), "says steps = 9223372036854775808"),
    "a loss of 400 digits": (_metric("first-loss", 10**400), "says first-loss = '1000.*: no number"),
    "a guarantee below nothing": (_epsilon("-1.0"), "is no guarantee"),
    "a guarantee of nothing": (_epsilon("NaN"), "is no guarantee"),
    "a guarantee in words": (_epsilon('"low"'), "cannot be read"),
    "guarantees without end": (lambda content: content["privacy"].update(guarantees="[" * 100_000), "cannot be read"),
    "a list for a number": (_metric("steps", [1, 2]), r"says steps = '\[1, 2\]'"),
    "a text for a process": (lambda content: content["where"].update(pid="me"), "says pid = 'me'"),
    "guarantees that are none": (lambda content: content["privacy"].update(guarantees="{"), "cannot be read"),
    "guarantees of another kind": (lambda content: content["privacy"].update(guarantees='[{"a": 1}]'), "be read"),
    "distilled images of no shape": (
        lambda content: content.update(distilled=ConfigRecord({"float32": b"1234"})),
        "cannot be read: KeyError",
    ),
    "distilled images of another size": (
        lambda content: content.update(distilled=ConfigRecord({"float32": b"1234", "shape": [1, 1, 8, 8]})),
        "cannot be read: RuntimeError",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_reply_is_said_in_its_row(read, name):
    spoil, reason = WRONG[name]
    content = good()
    spoil(content)
    reply = read(content)
    assert (reply.client, reply.status, reply.healthy, reply.state) == (3, "failed", False, None)
    assert reply.message is None, "a strategy would take it as it is"
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(reply.columns["detail"])


def test_metrics_that_cannot_be_averaged_do_not_reach_the_strategy(read):
    content = good()
    content["metrics"].update({"own": [1.0, 2.0], "mine": 3, "huge": 10**400})
    reply = read(content)
    assert reply.message is not None
    assert set(reply.message.content.metric_records["metrics"]) == {*METRICS, "mine"}
