"""Run the server's half of a simulation: for every cell a federation with the adversary around its strategy, then the
tables. `Utility` has the tables of utility and of clients, the defender's side of every trade-off.
"""

import contextlib
import gc
import re
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from attacks.interface.errors import one_line
from clients.client_app import LIMIT
from clients.data.partition import FederatedData
from clients.defenses.guarantee import Guarantee, worst
from clients.local_update import code_version, load_data, load_targets, make_model, num_outputs
from clients.time_limit import unhurried
from clients.training import accuracy, training_loss
from simulator.adversary.curious_server import CuriousServer
from simulator.adversary.recorder import CellRecorder
from simulator.adversary.reply import ClientReply, Participation
from simulator.adversary.statistics import StatisticsApart, buffers_of
from simulator.evaluation.dispatch import BackgroundDispatcher, Dispatcher
from simulator.evaluation.job import Job, JobResult, empty_result
from simulator.results.disk import write_atomically
from simulator.results.ledger import Ledger
from simulator.results.observation_writer import Retention
from simulator.results.privacy import privacy_columns
from simulator.results.storage import CellStore
from simulator.run.cluster import start_ray
from simulator.run.display import Display
from simulator.run.plan import AHEAD, RunPlan, attacks_again, expected_attacks
from simulator.run.pretraining import pretrain
from simulator.run.strategies import defended_strategy
from simulator.run_errors import CellsFailed, DiskError, RunError, one_line_error
from simulator.scenario.scenario import Cell
from simulator.scenario.sections import EngineConfig


class Utility:
    """The tables of utility and of clients of one cell."""

    def __init__(self, cell: Cell, data: FederatedData, model: torch.nn.Module, ledger: Ledger):
        """model: the network of the federation; its weights are overwritten."""
        self.cell, self.data, self.model, self.ledger = cell, data, model, ledger
        self.losses: dict[int, list[float]] = defaultdict(list)  # last ones of healthy clients, by round
        self.spent: dict[int, tuple[Guarantee, ...]] = {}  # by client, after its last reply

    def note(self, round: int, reply: ClientReply) -> None:
        """Add a client's row, and its part in that of the round."""
        columns = reply.columns
        self.ledger.add(self.cell.name, clients=[self._row(round, columns)])
        self.spent[reply.client] = reply.guarantees or self.spent.get(reply.client, ())
        if reply.healthy:
            self.losses[round].append(float(columns["last_loss"]))

    def measure(self, round: int, arrays: ArrayRecord) -> MetricRecord:
        """Add the round's row: the global model on the test split, and what its clients reported."""
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
        if losses:  # else nobody has reported what the round cost
            columns |= privacy_columns(worst(self.spent.values()))
        self.ledger.add(self.cell.name, utility=[self._row(round, columns)])
        return MetricRecord({"accuracy": share, "loss": loss})

    def _row(self, round: int, columns: dict[str, Any]) -> dict[str, Any]:
        scenario = self.cell.scenario
        return {"round": round, "defense": scenario.defense, "seed": scenario.seed, **columns, **self.cell.swept}


Patience = Callable[[int, float], float]
"""Returns the seconds that the server waits for a round, from the number of clients and the seconds of each, which are
processor seconds in a simulation."""

STACK = "traceback.txt"  # in the run directory: of an exception in the user's code
NODE_WAIT = 120.0  # seconds without another registered node, on an idle machine
ANSWER_WAIT = 300.0  # seconds without another answer: more than twice the time of a worker to come up
LOOK = 0.1  # seconds between two looks at who has answered


def run_federation(
    grid: Grid,
    plan: RunPlan,
    display: Display,
    patience: Patience = lambda clients, seconds: seconds,
    beside: tuple[float, int] = (0.0, 0),
) -> None:
    """Run every cell that is not done yet inside this one simulation, and the attacks of the others that ran out of
    time; write the tables. The directory has to be `claimed`.

    patience: default for clients that all work at the same time, each on a machine of its own. beside: the share of a
    GPU of each client on the Ray that attacks run on, and how many of them train at a time.
    A cell that has to stop does not keep the others from running: at the end, CellsFailed names those that stopped.
    """
    torch.set_num_threads(plan.scenario.engine.threads)
    ledger = Ledger(plan.run_dir, swept=plan.cells[0].swept)
    todo = [cell for cell in plan.cells if cell.name not in ledger.done]
    for line in ledger.problems:
        display.note(line)
    again = attacks_again(plan, ledger.out_of_time)
    expected = sum(map(expected_attacks, todo)) + len(again)
    display.start(sum(cell.scenario.federation.rounds for cell in todo), expected)
    failed: dict[str, RunError] = {}
    try:
        # first: in `flwr run`, Flower starts Ray beside this thread
        nodes = identify_nodes(grid, plan.clients)
        with contextlib.closing(AttackQueue(plan.scenario.engine, ledger, display, beside)) as queue:
            for job in again:
                queue.dispatcher.submit(job)
            for cell in todo:
                try:
                    run_cell(grid, nodes, plan, cell, queue, patience)
                except DiskError:  # no other cell could be written either
                    raise
                except RunError as error:
                    failed[cell.name] = error
                except (Exception, SystemExit) as error:  # a model, a data set or a strategy of the user's own
                    write_atomically(plan.run_dir / STACK, traceback.format_exc())
                    failed[cell.name] = RunError(f"{one_line_error(error)} (the stack is in {plan.run_dir / STACK})")
            while queue.dispatcher.pending:
                queue.collect(timeout=0.5)
    finally:  # whatever stopped the run, what was found is kept
        try:
            ledger.write_tables()
        finally:
            display.stop()
    if failed:
        first = next(iter(failed.values()))
        if "" in failed:  # without a sweep, the reason says all
            raise CellsFailed(str(first))
        which = f"{len(failed)} of {len(plan.cells)} settings failed: {'; '.join(failed)}"
        raise CellsFailed(f"{which} (the first: {first}); the others are kept")


class AttackQueue:
    """Sends attacks, brings finished ones into the ledger, and marks a cell done when its last one is in."""

    def __init__(self, engine: EngineConfig, ledger: Ledger, display: Display, beside: tuple[float, int] = (0.0, 0)):
        """beside: as of `run_federation`."""
        start_ray(engine)  # there is one already but in a deployment
        self.dispatcher = BackgroundDispatcher(Dispatcher(engine.attack_workers, beside=beside))
        self.ledger, self.display = ledger, display
        self.trained: dict[str, Mapping[str, str]] = {}  # the checksums of what was written, by cell
        self.retentions: dict[str, Retention] = {}  # by cell

    def note(self, job: Job, result: JobResult) -> None:
        """Add the rows of a job that is over, or was not started at all."""
        of = job.of if result.leakage[0].get("status") == "ok" else ""
        self.ledger.put(job.settings.cell, job.columns, of, **result._asdict())

    def submit(self, job: Job) -> None:
        """Send an attack, unless an interrupted run has made it on the same checkpoints."""
        if (row := self.ledger.take_up(job.settings.cell, job.columns, job.of)) is None:
            return self.dispatcher.submit(job)
        self.retentions[job.settings.cell].end(job.name)
        return self.display.attack_done(row, job.subject)

    def finish_training(self, cell: str, files: Mapping[str, str] = {}) -> None:
        """Note that the training of a cell is over. files: the checksums of the files that were written of it."""
        self.trained[cell] = files
        self._mark_done()

    def collect(self, timeout: float) -> None:
        """Bring in what has finished, waiting at most `timeout` seconds for the first."""
        for job, result in self.dispatcher.collect(timeout):
            self.note(job, result)
            if job.settings.cell in self.retentions:
                self.retentions[job.settings.cell].end(job.name)
            self.display.attack_done(result.leakage[0], job.subject)
        self.display.attacks_running(self.dispatcher.shares())
        self._mark_done()

    def catch_up(self, checkpoints: int) -> None:
        """Wait until at most so many checkpoints stay on the disk only because attacks will read them.

        Clients may train faster than their updates are attacked, and waiting checkpoints must not fill the disk. Rounds
        are not counted: an attack that takes hours holds two checkpoints, and the federation goes on.
        """
        while self.dispatcher.pending and sum(one.waiting for one in self.retentions.values()) > checkpoints:
            self.collect(timeout=0.5)

    def close(self) -> None:
        """Add rows for the attacks that a stopped run leaves behind; their observations are on disk."""
        try:
            self.collect(timeout=0)
            for job in self.dispatcher.pending:
                if job.settings.cell not in self.ledger.done:  # else it has a row of its first try
                    self.note(job, empty_result(job, "the run stopped before this attack finished"))
        finally:
            self.dispatcher.close()

    def _mark_done(self) -> None:
        waiting = {job.settings.cell for job in self.dispatcher.pending}
        for cell in self.trained.keys() - waiting - self.ledger.done:
            self.ledger.mark_done(cell, self.trained[cell])


def run_cell(
    grid: Grid,
    nodes: dict[int, int],
    plan: RunPlan,
    cell: Cell,
    queue: AttackQueue,
    patience: Patience,
) -> None:
    """Run one federation from its initial checkpoint to its last round. nodes: partition id -> node id."""
    scenario = cell.scenario
    config = cell.client_config(use_gpu=scenario.engine.gpus != 0)
    data = load_data(config)
    model = make_model(config, data)
    if scenario.model.pretrain is not None:
        pretrain(model, config, data, plan.run_dir, queue.display.pretraining)
    utility = Utility(cell, data, model, queue.ledger)
    participation = Participation(scenario, {i: nodes[i] for i in range(scenario.federation.clients)})
    store = make_store(plan, cell, data)
    recorder = CellRecorder(cell, store, data, queue.submit, queue.note)
    queue.retentions[cell.name] = recorder.retention
    aggregation = StatisticsApart(defended_strategy(scenario), buffers_of(model))
    strategy = CuriousServer(aggregation, participation, recorder, utility.note)

    def after_round(round: int, arrays: ArrayRecord) -> MetricRecord:
        """Evaluate, and fetch finished attacks: Flower gives this thread no other moment."""
        metrics = utility.measure(round, arrays)
        if round > 0:
            queue.display.round_done(cell, round, float(str(metrics["accuracy"])))
        queue.collect(timeout=0)
        queue.catch_up(AHEAD * (scenario.replies_a_round + 1))
        gc.collect()  # Flower's messages hold each other, and 100 MB of checkpoints in each round of ten clients
        return metrics

    federation = scenario.federation
    for_clients = config.model_copy(update={"model": config.model.without_initial_weights()})
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=federation.rounds,
        timeout=patience(federation.clients, federation.timeout),
        train_config=ConfigRecord({"client-json": for_clients.model_dump_json(), LIMIT: federation.timeout}),
        evaluate_fn=after_round,
    )
    queue.finish_training(cell.name, store.files)


def make_store(plan: RunPlan, cell: Cell, data: FederatedData) -> CellStore:
    """Make the cell's folders, with the files that attacks need beside checkpoints."""
    scenario, store = cell.scenario, CellStore(plan.run_dir, cell.name)
    outputs = num_outputs(cell.client_config(use_gpu=False), data.task)
    store.create(scenario.model, data.shape, outputs, scenario.seed)
    if "public_images" in scenario.adversary.knowledge:
        store.save_public_images(data.normalization.inputs(data.public()[0]))
    return store


def identify_nodes(grid: Grid, clients: int) -> dict[int, int]:
    """Return partition id -> node id, which is random. Wait until all have registered; check that they run our code."""
    found = wait_for_nodes(grid, clients, NODE_WAIT)
    if found < clients:
        raise RunError(f"{found} of {clients} nodes registered, none for {NODE_WAIT:g} s: start more SuperNodes")
    ids = list(grid.get_node_ids())
    messages = [Message(content=RecordDict(), message_type="query", dst_node_id=node) for node in ids]
    nodes: dict[int, int] = {}
    unfit: list[RunError] = []
    code = code_version()
    for reply in replies_to(messages, grid, ANSWER_WAIT):
        try:
            nodes[partition_of(reply, code)] = reply.metadata.src_node_id
        except RunError as error:  # raised if no other node is that client
            unfit.append(error)
    missing = set(range(clients)) - set(nodes)
    if missing and unfit:
        raise unfit[0]
    if len(nodes) < min(len(ids), clients):
        raise RunError(f"{len(nodes)} of {len(ids)} nodes answered, none for {ANSWER_WAIT:g} s: do they still run?")
    if missing:
        raise RunError(f"no node has partition id {min(missing)}: number the nodes 0 to {clients - 1}")
    return nodes


def replies_to(messages: Sequence[Message], grid: Grid, seconds: float) -> Iterator[Message]:
    """Yield each reply as it comes, until all are there or none has come for so many seconds of an idle machine: a
    thousand nodes share a few workers, and answer one by one."""
    missing, last = set(grid.push_messages(messages)), time.monotonic()
    while missing and time.monotonic() - last < unhurried(seconds):
        for reply in grid.pull_messages(missing):
            missing.discard(reply.metadata.reply_to_message_id)
            last = time.monotonic()
            yield reply
        time.sleep(LOOK if missing else 0)


def partition_of(reply: Message, code: str) -> int:
    """Return which client a node says that it is. code: our version. Raise RunError if it cannot be a client."""
    if reply.has_error():
        raise RunError(f"a client cannot start: {one_line(reply.error.reason or 'no reason given')}")
    identity = reply.content.config_records.get("identity", ConfigRecord())
    if identity.get("code") != code:
        raise RunError("clients and server run different versions of fedspill: install the same on both sides")
    said = str(identity.get("partition-id"))
    if re.fullmatch(r"[0-9]{1,9}", said) is None:
        raise RunError(f"a node says partition-id = {one_line(said, most=40)!r}: number the nodes from 0")
    return int(said)


def wait_for_nodes(grid: Grid, wanted: int, seconds: float) -> int:
    """Return the number of registered nodes as soon as it is `wanted`, or when none has come for so many seconds of an
    idle machine: a ServerApp may start first."""
    found, last = 0, time.monotonic()
    while (now := len(list(grid.get_node_ids()))) < wanted and time.monotonic() - last < unhurried(seconds):
        if now > found:
            found, last = now, time.monotonic()
        time.sleep(LOOK)
    return now
