"""How well a federation does, for the tables of utility and of clients: the defender's side of every trade-off."""

from collections import defaultdict
from typing import Any

import torch
from flwr.app import ArrayRecord, MetricRecord

from clients.data.partition import FederatedData
from clients.defenses.differential_privacy.guarantee import Guarantee, worst
from clients.local_update import load_targets
from clients.losses import accuracy, training_loss
from simulator.adversary.reply import ClientReply
from simulator.results.ledger import Ledger
from simulator.results.privacy import privacy_columns
from simulator.scenario.scenario import Cell


class Utility:
    """The tables of utility and of clients of one cell."""

    def __init__(self, cell: Cell, data: FederatedData, model: torch.nn.Module, ledger: Ledger):
        """model: the network of the federation; its weights are overwritten."""
        self.cell, self.data, self.model, self.ledger = cell, data, model, ledger
        self.losses: dict[int, list[float]] = defaultdict(list)  # last ones of healthy clients, by round
        self.spent: dict[int, tuple[Guarantee, ...]] = {}  # by client, after its last reply

    def note(self, round: int, reply: ClientReply) -> None:
        """A client's row, and its part in that of the round."""
        columns = reply.columns
        self.ledger.add(self.cell.name, clients=[self._row(round, columns)])
        self.spent[reply.client] = reply.guarantees or self.spent.get(reply.client, ())
        if reply.healthy:
            self.losses[round].append(float(columns["last_loss"]))

    def measure(self, round: int, arrays: ArrayRecord) -> MetricRecord:
        """The round's row: the global model on the test split, and what its clients reported."""
        self.model.load_state_dict(arrays.to_torch_state_dict())
        config = self.cell.client_config(use_gpu=False)
        images, labels = self.data.test()
        with torch.no_grad():
            batches = self.data.normalization.inputs(images).to(next(self.model.parameters()).dtype).split(256)
            outputs = torch.cat([self.model.eval()(batch) for batch in batches])
            targets = load_targets(config, self.data.task, labels)
            loss, share = float(training_loss(config.training.loss, outputs, targets)), accuracy(outputs, labels)
        losses = self.losses[round]
        columns = {
            "test_accuracy": share,
            "test_loss": loss,
            "client_loss": sum(losses) / len(losses) if losses else None,
            "clients": len(losses),
        }
        if losses:  # else nobody has said what the round cost
            columns |= privacy_columns(worst(self.spent.values()))
        self.ledger.add(self.cell.name, utility=[self._row(round, columns)])
        return MetricRecord({"accuracy": share, "loss": loss})

    def _row(self, round: int, columns: dict[str, Any]) -> dict[str, Any]:
        scenario = self.cell.scenario
        return {"round": round, "defense": scenario.defense, "seed": scenario.seed, **columns, **self.cell.swept}
