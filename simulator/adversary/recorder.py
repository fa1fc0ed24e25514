"""The honest-but-curious server: a wrapper around any strategy that writes down what it sees and has it attacked."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from attacks.interface.observation import State
from attacks.interface.seeding import derive_seed
from clients.data.partition import FederatedData
from simulator.adversary.knowledge import grant
from simulator.errors import RunError
from simulator.evaluation.job import Job, lost
from simulator.results.ledger import Ledger
from simulator.results.storage import CellStore, Sight
from simulator.scenario.scenario import Cell

WEIGHT = "num-examples"  # of a client in the mean, as in FedAvg
HIDDEN = "secure aggregation: the server sees the sum of the round's updates only; that is attacked as client -1"


@dataclass
class CellRun:
    """What one cell of a run works with, and what its clients reported by round."""

    cell: Cell
    store: CellStore
    ledger: Ledger
    data: FederatedData
    submit: Callable[[Job], None]
    progress_dir: Path
    client_losses: dict[int, float] = field(default_factory=dict)
    clients_in: dict[int, int] = field(default_factory=dict)
    spent: dict[int, float] = field(default_factory=dict)  # largest ε that a client reported, by round


class Adversary(Strategy):
    """Outermost wrapper: it sees each checkpoint that is sent and each reply, before any aggregation.

    It also makes the federation reproducible: the schedule of clients comes from the seed, and replies are handed on
    in the order of partition ids, so that float sums do not depend on who finished first.
    """

    def __init__(self, inner: Strategy, run: CellRun, nodes: dict[int, int]):
        """nodes: partition id -> node id of the clients of this cell."""
        self.inner, self.run, self.nodes = inner, run, nodes
        self.partitions = {node: partition for partition, node in nodes.items()}
        self.hidden = run.cell.scenario.hides_clients
        self.chosen: list[int] = []
        self.initial_name = ""
        self.pairs: dict[tuple[int, str], list[tuple[str, str]]] = {}  # by client (-1: all) and who saw them
        self.met: set[int] = set()  # clients whose images are in a checkpoint of all

    def summary(self) -> None:
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round == 1:
            self.initial_name = self.run.store.save_global(0, arrays.to_torch_state_dict())
        messages = list(self.inner.configure_train(server_round, arrays, config, self._own_nodes(grid)))
        # strategies sample over random node ids with the global generator: choose again, reproducibly
        schedule = random.Random(f"{self.run.cell.scenario.seed}/{server_round}")
        self.chosen = sorted(schedule.sample(sorted(self.nodes), len(messages)))
        return [
            Message(content=message.content, message_type=message.metadata.message_type, dst_node_id=self.nodes[client])
            for message, client in zip(messages, self.chosen, strict=True)
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        by_client = {self.partitions[reply.metadata.src_node_id]: reply for reply in replies}
        healthy = self._sort_out(server_round, by_client)
        np.random.seed(derive_seed(self.run.cell.scenario.seed, "aggregation", server_round, -1) % 2**32)  # Flower's DP
        replies = [by_client[client] for client in healthy]
        summed = self._save_sum(server_round, replies) if self.hidden else None  # strategies may write into replies
        arrays, metrics = self.inner.aggregate_train(server_round, replies)
        self._look_at_round(server_round, healthy, arrays, summed)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.inner.configure_evaluate(server_round, arrays, config, self._own_nodes(grid))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)

    def _own_nodes(self, grid: Grid) -> Grid:
        return cast(Grid, CellGrid(grid, self.nodes))

    def _sort_out(self, round: int, by_client: dict[int, Message]) -> list[int]:
        """Store the checkpoints of healthy replies and give the others a row; stop when too many failed."""
        healthy, failures = [], {}
        for client in self.chosen:
            status, detail, state = read_reply(by_client.get(client), self.run.cell.scenario.federation.timeout)
            self._note_client(round, client, status, detail, by_client.get(client))
            if state is None:
                failures[client] = (status, detail)
                continue
            if not self.hidden:
                self.run.store.save_client(round, client, state)
            self._keep_distilled(round, client, by_client[client])
            healthy.append(client)
        adversary = self.run.cell.scenario.adversary
        if adversary.attacks_in(round):
            for client, (status, detail) in failures.items():
                for view in adversary.views(client):
                    self._note_failure(Sight(round, client, view), status, detail)
        limit = self.run.cell.scenario.federation.max_failures
        if not healthy or len(failures) > limit * len(self.chosen):
            reasons = "; ".join(f"client {client}: {detail}" for client, (_, detail) in list(failures.items())[:3])
            raise RunError(
                f"round {round}: {len(failures)} of {len(self.chosen)} clients failed, "
                f"more than federation.max_failures = {limit:g} allows ({reasons})"
            )
        return healthy

    def _save_sum(self, round: int, replies: list[Message]) -> str:
        """The file of all that secure aggregation shows the server, before it adds noise or takes a step of its own."""
        mean = aggregate_arrayrecords([reply.content for reply in replies], WEIGHT)
        return self.run.store.save_sum(round, mean.to_torch_state_dict())

    def _look_at_round(self, round: int, healthy: list[int], arrays: ArrayRecord | None, summed: str | None) -> None:
        """Record the round's observations and start their attacks. summed: the file of what the server sees of all."""
        final_name = None if arrays is None else self.run.store.save_global(round, arrays.to_torch_state_dict())
        seen = {(client, "server"): self.run.store.client_name(round, client) for client in healthy}
        seen |= {} if summed is None else {(-1, "server"): summed}
        seen |= {} if final_name is None else {(-1, "observer"): final_name}
        for key, name in seen.items():
            self.pairs.setdefault(key, []).append((self.initial_name, name))
        self.initial_name = final_name or self.initial_name
        if any(client < 0 for client, _ in seen):
            self.met.update(healthy)
        adversary = self.run.cell.scenario.adversary
        for client in [*healthy, -1] if adversary.attacks_in(round) else []:
            for view in adversary.views(client, self.hidden):
                if self.hidden and client >= 0:
                    self._note_failure(Sight(round, client, view), "skipped", HIDDEN)
                elif (client, adversary.source(view, client, self.hidden)) in seen:
                    self._attack(Sight(round, client, view), healthy)

    def _keep_distilled(self, round: int, client: int, reply: Message) -> None:
        """Distilled images travel beside the reply for the scorer; no observation holds them."""
        record = reply.content.config_records.get("distilled")
        if record is not None:
            pixels = torch.frombuffer(bytearray(cast(bytes, record["float32"])), dtype=torch.float32)
            self.run.store.save_distilled(round, client, pixels.reshape(cast(list[int], record["shape"])))

    def _attack(self, sight: Sight, healthy: list[int]) -> None:
        """Write down what a threat model sees of a client, or of all (-1), and start its attacks."""
        scenario, history = self.run.cell.scenario, sight.threat_model == "history"
        everyone = sorted(self.met) if history else healthy
        clients, pool = ([sight.client], healthy) if sight.client >= 0 else (everyone, everyone)
        pairs = self.pairs[sight.client, scenario.adversary.source(sight.threat_model, sight.client, self.hidden)]
        pairs = pairs if history else pairs[-1:]
        self.run.store.save_sight(sight, pairs, grant(scenario, self.run.data, clients))
        for job in self._jobs(sight, clients, pool):
            self.run.submit(job)

    def _jobs(self, sight: Sight, clients: list[int], healthy: list[int]) -> list[Job]:
        cell = self.run.cell
        return [
            Job(
                cell=cell.name,
                swept=cell.swept,
                scenario=cell.scenario,
                root=self.run.store.root,
                sight=sight,
                attack=attack,
                clients=tuple(clients),
                round_clients=tuple(healthy),
                progress_path=self.run.progress_dir / f"{cell.name or 'run'}_{sight.name}_{attack.label}",
            )
            for attack in cell.scenario.attacks
        ]

    def _note_failure(self, sight: Sight, status: str, detail: str) -> None:
        for job in self._jobs(sight, [sight.client], []):
            result = lost(job, detail, status)
            result.row["num_private"] = self.run.data.client_sizes[sight.client]
            self.run.ledger.add_result(self.run.cell.name, result)

    def _note_client(self, round: int, client: int, status: str, detail: str, reply: Message | None) -> None:
        cell = self.run.cell
        row = {"round": round, "client": client, "defense": cell.scenario.defense, "seed": cell.scenario.seed}
        row |= {"status": status, "detail": detail, **cell.swept}
        if reply is not None and reply.has_content():
            metrics, where = reply.content.metric_records["metrics"], reply.content.config_records["where"]
            for name in ("num-examples", "steps", "first-loss", "last-loss", "seconds"):
                row[name.replace("-", "_")] = metrics[name]
            row |= {name.replace("-", "_"): where[name] for name in ("worker", "pid", "gpu-ids", "device")}
            said = reply.content.config_records["defenses"]
            row |= {name: said[name] for name in ("epsilon", "bytes") if name in said}
            if "epsilon" in row:
                self.run.spent[round] = max(self.run.spent.get(round, 0.0), float(str(row["epsilon"])))
            if status == "ok":
                self.run.client_losses[round] = self.run.client_losses.get(round, 0.0) + float(
                    str(metrics["last-loss"])
                )
                self.run.clients_in[round] = self.run.clients_in.get(round, 0) + 1
        self.run.ledger.add("clients", cell.name, (cell.name, round, client), row)


def read_reply(reply: Message | None, timeout: float) -> tuple[str, str, State | None]:
    """(status, reason, checkpoint or None) of a client's reply. Flower accepts NaN silently: it is refused here."""
    if reply is None:
        return "timeout", f"no reply within federation.timeout = {timeout:g} s", None
    if reply.has_error():
        return "failed", " ".join((reply.error.reason or "").split())[:300], None
    state = reply.content.array_records["arrays"].to_torch_state_dict()
    bad = [name for name, value in state.items() if value.is_floating_point() and not torch.isfinite(value).all()]
    if bad:
        return "failed", f"the client returned NaN or Inf in {bad[0]!r}: its training diverged", None
    return "ok", "", state


class CellGrid:
    """A grid that shows a strategy the nodes of one cell only, in the order of their partitions."""

    def __init__(self, grid: Grid, nodes: dict[int, int]):
        self._grid, self._nodes = grid, nodes

    def get_node_ids(self) -> list[int]:
        return [self._nodes[partition] for partition in sorted(self._nodes)]

    def __getattr__(self, name: str) -> object:
        return getattr(self._grid, name)
