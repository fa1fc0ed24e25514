"""The Flower ClientApp: messages in, messages out; the work is in `clients.client`."""

import traceback
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from clients.client import code_version, local_update, whereabouts
from clients.config import ClientConfig

app = ClientApp()
CLIENT_APP_RAISED = 2  # Flower's own code for a ClientApp that raises


@app.query()
def identify(message: Message, context: Context) -> Message:
    """Tell the partition id (node ids are random) and which code this client runs."""
    record = ConfigRecord({"partition-id": int(context.node_config["partition-id"]), "code": code_version()})
    return Message(content=RecordDict({"identity": record}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the private images and return the checkpoint, or an error of one line where training fails."""
    try:
        return Message(content=trained(message, context), reply_to=message)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"
        return Message(Error(CLIENT_APP_RAISED, reason), reply_to=message)


def trained(message: Message, context: Context) -> RecordDict:
    """The records of a reply: arrays, metrics, and where the client ran."""
    settings = message.content.config_records["config"]
    config = ClientConfig.model_validate_json(str(settings["client-json"]))
    client = int(context.node_config["partition-id"])
    update = local_update(
        config,
        message.content.array_records["arrays"].to_torch_state_dict(),
        int(str(settings["server-round"])),
        client,
        float(str(settings.get("proximal-mu", 0.0))),
    )
    metrics: dict[str, int | float | list[int] | list[float]] = {
        "num-examples": update.num_images,
        "partition-id": client,
        "first-loss": update.report.first_loss,
        "last-loss": update.report.last_loss,
        "train_loss": update.report.first_loss,  # the name and meaning that QFedAvg asks for: before local training
        "steps": update.report.steps,
        "seconds": update.report.seconds,
    }
    return RecordDict(
        {
            "arrays": ArrayRecord(update.state),
            "metrics": MetricRecord(metrics),
            "where": ConfigRecord({**whereabouts(), "device": update.device}),
        }
    )
