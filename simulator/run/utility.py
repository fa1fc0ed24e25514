"""How well a federation does, for the tables of utility and of clients: the defender's side of every trade-off."""

from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord, MetricRecord

from clients.local_update import centered, load_targets
from clients.losses import accuracy, training_loss
from clients.partition import FederatedData
from simulator.adversary.participation import ClientReply
from simulator.results.ledger import Ledger
from simulator.scenario.scenario import Cell


@dataclass
class RoundReports:
    """What the clients of one round reported: last losses of those that are in, and ε where they account for it."""

    losses: list[float] = field(default_factory=list)
    epsilons: list[float] = field(default_factory=list)


class Utility:
    """The tables of utility and of clients of one cell."""

    def __init__(self, cell: Cell, data: FederatedData, model: torch.nn.Module, ledger: Ledger):
        """model: the network of the federation; its weights are overwritten."""
        self.cell, self.data, self.model, self.ledger = cell, data, model, ledger
        self.reports: dict[int, RoundReports] = {}

    def note(self, round: int, reply: ClientReply) -> None:
        """A client's row, and its part in that of the round."""
        columns, scenario = reply.columns, self.cell.scenario
        row = {"round": round, "defense": scenario.defense, "seed": scenario.seed, **columns, **self.cell.swept}
        self.ledger.add("clients", self.cell.name, (self.cell.name, round, reply.client), row)
        reports = self.reports.setdefault(round, RoundReports())
        if "epsilon" in columns:
            reports.epsilons.append(float(columns["epsilon"]))
        if reply.healthy:
            reports.losses.append(float(columns["last_loss"]))

    def measure(self, round: int, arrays: ArrayRecord) -> MetricRecord:
        """The round's row: the global model on the test split, and what its clients reported."""
        self.model.load_state_dict(arrays.to_torch_state_dict())
        loss, share = self._evaluate()
        reports, scenario = self.reports.get(round, RoundReports()), self.cell.scenario
        row = {
            "round": round,
            "defense": scenario.defense,
            "seed": scenario.seed,
            "test_accuracy": share,
            "test_loss": loss,
            "client_loss": sum(reports.losses) / len(reports.losses) if reports.losses else None,
            "clients": len(reports.losses),
            "epsilon": max(reports.epsilons, default=None),
            **self.cell.swept,
        }
        self.ledger.add("utility", self.cell.name, (self.cell.name, round), row)
        return MetricRecord({"accuracy": share, "loss": loss})

    def _evaluate(self) -> tuple[float, float]:
        """(mean loss, accuracy) on the test split."""
        config = self.cell.client_config(use_gpu=False)
        images, labels = self.data.test()
        with torch.no_grad():
            batches = centered(images, self.data.pixel_mean).to(next(self.model.parameters()).dtype).split(256)
            outputs = torch.cat([self.model.eval()(batch) for batch in batches])
            loss = training_loss(config.training.loss, outputs, load_targets(config, self.data.task, labels))
        return float(loss), accuracy(outputs, labels)
