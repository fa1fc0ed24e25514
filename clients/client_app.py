"""The Flower ClientApp: messages in, messages out; the work is in `clients.local_update`."""

import contextlib
import json
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from attacks.interface.errors import InputError, one_line
from attacks.interface.observation import State
from attacks.interface.plugins import load_object, require_allowed, users_frames
from attacks.interface.torch_tools import derive_seed
from clients.config import ClientConfig
from clients.defenses import FlowerMod
from clients.defenses.guarantee import to_json
from clients.local_update import ClientUpdate, code_version, local_update, whereabouts
from clients.time_limit import LAST_RESORT, OutOfTime, last_resort, time_limit

app = ClientApp()
MEMORY = "defenses"  # in the node's state: what defenses keep between rounds, of one cell
CLIENT_APP_RAISED = 2  # Flower's own code for a ClientApp that raises
LIMIT = "timeout"  # in the configuration of a round: processor seconds that a client may take
LONGEST_CAUSE = 200  # letters, so that file and line behind it are not cut off
OUT_OF_TIME = 1000  # code of the error in the place of a reply that took longer; Flower's own codes end below


def loaded() -> None:
    """Do nothing: calling this imports the module, so that the first client of a worker does not pay for it."""


@app.query()
def identify(message: Message, context: Context) -> Message:
    """Report the partition id (node ids are random) and the version of this client's code."""
    record = ConfigRecord({"partition-id": int(context.node_config["partition-id"]), "code": code_version()})
    return Message(content=RecordDict({"identity": record}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the private images and return the checkpoint, or an error of one line if training fails or takes longer
    than the server waits: a client that hangs would be missing in every later round, too."""
    seconds = message.content.config_records["config"].get(LIMIT)
    try:
        with contextlib.ExitStack() as limits:
            if isinstance(seconds, int | float):
                once_more = limits.enter_context(last_resort(seconds + LAST_RESORT))
                limits.enter_context(time_limit(seconds, heartbeat=once_more))
            return Message(content=trained(message, context), reply_to=message)
    except OutOfTime:
        return Message(Error(OUT_OF_TIME, "out of time"), reply_to=message)
    except InputError as error:  # it says where by itself
        return Message(Error(CLIENT_APP_RAISED, str(error)), reply_to=message)
    except (Exception, SystemExit) as error:  # code of the user's own: its exit would take the worker with it
        frame = (users_frames(error) or traceback.extract_tb(error.__traceback__))[-1]
        what = f"{type(error).__name__}: {error}".removesuffix(": ")
        reason = f"{one_line(what, most=LONGEST_CAUSE)} ({Path(frame.filename).name}, line {frame.lineno})"
        return Message(Error(CLIENT_APP_RAISED, reason), reply_to=message)


def trained(message: Message, context: Context) -> RecordDict:
    """Train, and return the records of the reply."""
    settings = message.content.config_records["config"]
    config = ClientConfig.model_validate_json(str(settings["client-json"]))
    client, round = int(context.node_config["partition-id"]), int(str(settings["server-round"]))
    kept = context.state.config_records.get(MEMORY, ConfigRecord())
    memory = json.loads(str(kept.get(config.cell, "{}")))

    def run_mod(mod: FlowerMod, defense: str, state: State) -> State:
        np.random.seed(derive_seed(config.seed, f"defense/{defense}", round, client) % 2**32)  # Flower's noise
        return run_flower_mod(mod, state, message, context)

    update = local_update(
        config,
        message.content.array_records["arrays"].to_torch_state_dict(),
        round,
        client,
        proximal=float(str(settings.get("proximal-mu", 0.0))),
        memory=memory,
        run_mod=run_mod,
    )
    # of this cell alone: the state travels with every message, and cells run one after another
    context.state.config_records[MEMORY] = ConfigRecord({config.cell: json.dumps(memory)})
    return reply_records(update, client)


def reply_records(update: ClientUpdate, client: int) -> RecordDict:
    """Return the records of an update: arrays, metrics, reports of the defenses, and where the client ran."""
    metrics: dict[str, int | float | list[int] | list[float]] = {
        "num-examples": update.num_images,
        "partition-id": client,
        "first-loss": update.report.first_loss,
        "last-loss": update.report.last_loss,
        "train_loss": update.report.first_loss,  # the name and meaning that QFedAvg asks for: before local training
        "steps": update.report.steps,
        "seconds": update.report.seconds,
    }
    reported: dict[str, Any] = {name: float(value) for name, value in update.metrics.items()}
    records: dict[str, Any] = {
        "arrays": ArrayRecord(update.state),
        "metrics": MetricRecord(metrics),
        "where": ConfigRecord({**whereabouts(), "device": update.device}),
        "defenses": ConfigRecord(reported),  # strategies average every metric: these are none of theirs
        "privacy": ConfigRecord({"guarantees": to_json(update.guarantees)}),
    }
    if update.distilled is not None:
        shape, pixels = list(update.distilled.shape), update.distilled.numpy().tobytes()
        records["distilled"] = ConfigRecord({"shape": shape, "float32": pixels})
    return RecordDict(records)


def run_flower_mod(mod: FlowerMod, state: State, message: Message, context: Context) -> State:
    """Apply a mod to a reply with `state`, some entries of the checkpoint in `message`: it sees these alone in both."""
    received = message.content.array_records["arrays"]
    message.content["arrays"] = ArrayRecord({name: received[name] for name in state})
    content = RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 1})})
    reply = Message(content=content, reply_to=message)
    reply = load_mod(mod)(message, context, lambda message, context: reply)
    if reply.has_error():
        raise RuntimeError(f"defense {mod.path}: {reply.error.reason}")
    return reply.content.array_records["arrays"].to_torch_state_dict()


def load_mod(mod: FlowerMod) -> Any:
    """Load the Flower mod at an import path; raise InputError if there is none, or it may not run."""
    require_allowed(mod.path)
    found = load_object(mod.path, "defense")
    try:
        made = found(**mod.options) if isinstance(found, type) else found
    except Exception as error:  # the module is the user's
        raise InputError(f"defense {mod.path!r} cannot be made: {one_line(error)}") from None
    if not callable(made):
        raise InputError(f"defense {mod.path!r} is a {type(made).__name__}, no Flower mod: name a function or a class")
    return made
