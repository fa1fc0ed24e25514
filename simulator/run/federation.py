"""The server's half of a run: for every cell a federation with the adversary around its strategy, then the tables."""

import shutil
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from clients.config import ClientConfig
from clients.data.partition import FederatedData
from clients.environment import code_version
from clients.local_update import centered, load_targets, make_model, num_outputs
from clients.losses import accuracy, training_loss
from simulator.adversary.recorder import Adversary, CellRun
from simulator.errors import CellsFailed, RunError
from simulator.evaluation.dispatch import Dispatcher, attack_gpu_share, make_dispatcher
from simulator.evaluation.job import lost
from simulator.results.ledger import Ledger
from simulator.results.storage import CellStore
from simulator.run.plan import RunPlan, cell_data
from simulator.run.pretraining import pretrain
from simulator.run.progress import Display
from simulator.run.strategies import defended_strategy
from simulator.scenario.scenario import Cell

NODE_WAIT = 120.0  # seconds that nodes have to register with the server


def run_federation(grid: Grid, plan: RunPlan, display: Display) -> None:
    """Run every cell that is not done yet inside this one simulation, and write the tables.

    The directory has to be `claimed`. A cell that has to stop keeps none of the others from running: CellsFailed names
    those that did, at the end.
    """
    torch.set_num_threads(plan.scenario.engine.threads)
    ledger = Ledger(plan.run_dir)
    todo = [cell for cell in plan.cells if cell.name not in ledger.done]
    dispatcher = make_dispatcher(plan.scenario.engine.attack_workers, attack_gpu_share())
    progress_dir = plan.run_dir / ".progress"
    progress_dir.mkdir(exist_ok=True)
    collector = Collector(dispatcher, ledger, display, progress_dir)
    display.start(
        rounds=sum(cell.scenario.federation.rounds for cell in todo), attacks=sum(map(expected_attacks, todo))
    )
    failed: dict[str, RunError] = {}
    try:
        nodes = identify_nodes(grid, plan.clients)
        for cell in todo:
            try:
                run_cell(grid, plan, cell, nodes, collector, progress_dir)
            except RunError as error:
                failed[cell.name] = error
        while dispatcher.pending:
            collector.collect(timeout=0.5)
    finally:  # whatever stopped the run, what was found is kept
        collector.give_up()
        dispatcher.close()
        display.stop()
        ledger.write_tables()
        shutil.rmtree(progress_dir, ignore_errors=True)  # a worker may be writing there this very moment
    if failed:
        raise CellsFailed(describe_failures(failed, len(plan.cells)))


def describe_failures(failed: dict[str, RunError], cells: int) -> str:
    """One line about the cells that had to stop, with the reason of the first; without a sweep, the reason alone."""
    name, error = next(iter(failed.items()))
    if not name:
        return str(error)
    return f"{len(failed)} of {cells} cells failed: {'; '.join(failed)} (the first: {error}); the others are kept"


class Collector:
    """Brings finished attacks into the ledger, and marks a cell done when its last one is in."""

    def __init__(self, dispatcher: Dispatcher, ledger: Ledger, display: Display, progress_dir: Path):
        self.dispatcher, self.ledger, self.display, self.progress_dir = dispatcher, ledger, display, progress_dir
        self.trained: set[str] = set()

    def finish_training(self, cell: str) -> None:
        self.trained.add(cell)
        self._mark_done()

    def collect(self, timeout: float) -> None:
        for job, result in self.dispatcher.collect(timeout):
            self.ledger.add_result(job.cell, result)
            self.display.attack_done(result.row)
        self.display.attacks_running({path.name: read_share(path) for path in self.progress_dir.iterdir()})
        self._mark_done()

    def give_up(self) -> None:
        """Rows for the attacks that a stopped run leaves behind; their observations are on disk and can be attacked."""
        self.collect(timeout=0)
        for job in self.dispatcher.pending:
            self.ledger.add_result(job.cell, lost(job, "the run stopped before this attack finished"))

    def _mark_done(self) -> None:
        waiting = {job.cell for job in self.dispatcher.pending}
        for cell in self.trained - waiting - self.ledger.done:
            self.ledger.mark_done(cell)


def run_cell(
    grid: Grid, plan: RunPlan, cell: Cell, nodes: dict[int, int], collector: Collector, progress_dir: Path
) -> None:
    """One federation from its initial checkpoint to its last round."""
    scenario = cell.scenario
    config = cell.client_config(use_gpu=scenario.engine.gpus != 0)
    data = cell_data(scenario)
    model = make_model(config, data)
    if scenario.model.pretrain is not None:
        pretrain(model, config, data, plan.run_dir, collector.display.pretraining)
    store = CellStore(plan.cell_root(cell))
    store.create(scenario.model, data.shape, num_outputs(config, data.task), scenario.seed)
    if "public_images" in scenario.adversary.knowledge:
        store.save_public_images(centered(data.public()[0], data.pixel_mean))

    run = CellRun(cell, store, collector.ledger, data, collector.dispatcher.submit, progress_dir)
    chosen = {partition: nodes[partition] for partition in range(scenario.federation.clients)}
    strategy = Adversary(defended_strategy(scenario), run, chosen)

    def utility(round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        loss, share = evaluate_utility(model, cell, data)
        row = {
            "round": round,
            "defense": scenario.defense,
            "seed": scenario.seed,
            "test_accuracy": share,
            "test_loss": loss,
            "client_loss": run.client_losses[round] / run.clients_in[round] if round in run.clients_in else None,
            "clients": run.clients_in.get(round, 0),
            "epsilon": run.spent.get(round),
            **cell.swept,
        }
        collector.ledger.add("utility", cell.name, (cell.name, round), row)
        if round > 0:
            collector.display.round_done(cell.name, round, share)
        collector.collect(timeout=0)
        return MetricRecord({"accuracy": share, "loss": loss})

    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=scenario.federation.rounds,
        timeout=scenario.federation.timeout,
        train_config=ConfigRecord({"client-json": for_clients(config).model_dump_json()}),
        evaluate_fn=utility,
    )
    collector.finish_training(cell.name)


def for_clients(config: ClientConfig) -> ClientConfig:
    """Without where the federation starts from: clients get its weights with every round."""
    return config.model_copy(update={"model": config.model.model_copy(update={"checkpoint": None, "pretrain": None})})


def evaluate_utility(model: torch.nn.Module, cell: Cell, data: FederatedData) -> tuple[float, float]:
    """(mean loss, accuracy) on the test split."""
    config = cell.client_config(use_gpu=False)
    images, labels = data.test()
    with torch.no_grad():
        batches = centered(images, data.pixel_mean).to(next(model.parameters()).dtype).split(256)
        outputs = torch.cat([model.eval()(batch) for batch in batches])
        loss = training_loss(config.training.loss, outputs, load_targets(config, data.task, labels))
    return float(loss), accuracy(outputs, labels)


def identify_nodes(grid: Grid, clients: int) -> dict[int, int]:
    """partition id -> node id, which is random. Waits until all have registered; checks that they run our code."""
    found = wait_for_nodes(grid, clients, NODE_WAIT)
    if found < clients:
        raise RunError(f"{found} of {clients} nodes registered within {NODE_WAIT:g} s: start more SuperNodes")
    ids = list(grid.get_node_ids())
    messages = [Message(content=RecordDict(), message_type="query", dst_node_id=node) for node in ids]
    nodes = {}
    for reply in grid.send_and_receive(messages, timeout=NODE_WAIT):
        if reply.has_error():
            raise RunError(f"a client cannot start: {reply.error.reason}"[:500])
        identity = reply.content.config_records["identity"]
        if identity["code"] != code_version():
            raise RunError("clients and server run different versions of fedspill: install the same on both sides")
        nodes[int(str(identity["partition-id"]))] = reply.metadata.src_node_id
    missing = set(range(clients)) - set(nodes)
    if missing:
        raise RunError(f"no node has partition id {min(missing)}: number the nodes 0 to {clients - 1}")
    return nodes


def wait_for_nodes(grid: Grid, wanted: int, seconds: float) -> int:
    """How many nodes have registered, as soon as it is `wanted` or when the time is up: a ServerApp may start first."""
    deadline = time.monotonic() + seconds
    while (found := len(list(grid.get_node_ids()))) < wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def expected_attacks(cell: Cell) -> int:
    """How many attacks a cell will run if no client fails."""
    return len(expected_pairs(cell)) * len(cell.scenario.attacks)


def expected_pairs(cell: Cell) -> list[int]:
    """How many pairs of checkpoints each observation will hold, at most and if no client fails."""
    federation, adversary = cell.scenario.federation, cell.scenario.adversary
    clients = max(1, int(federation.clients * federation.fraction))
    hidden = cell.scenario.hides_clients
    views = ([] if hidden else adversary.views(0) * clients) + adversary.views(-1, hidden)
    rounds = [round for round in range(1, federation.rounds + 1) if adversary.attacks_in(round)]
    return [round if view == "history" else 1 for round in rounds for view in views]


def read_share(path: Path) -> float:
    """What a running attack says it has done, 0 to 1."""
    try:
        return float(path.read_text() or 0)
    except (OSError, ValueError):  # the attack has just finished, or is writing this very moment
        return 0.0
