"""Make a run that can start from a scenario: every input is checked before anything is written.

Count what a cell will do if no client fails, and find the attacks that it will try again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacks import InputError, Observation
from clients.defenses import DefenseContext
from clients.local_update import load_data, load_targets, make_model
from clients.training import check_dynamics
from simulator.adversary.grant import defense_facts, grant
from simulator.evaluation.attack_run import AttackRun
from simulator.evaluation.job import Job, JobSettings
from simulator.results.keys import ObservationKey
from simulator.results.storage import CellStore
from simulator.results.threat_models import View
from simulator.run.pretraining import Pretraining
from simulator.scenario.scenario import Cell, Scenario
from simulator.scenario.sections import StrategyConfig

AHEAD = 4  # rounds that training may be ahead of the attacks, counted in waiting checkpoints


@dataclass(frozen=True)
class RunPlan:
    """A scenario that has passed every check, with its cells and where it will be written.

    parameters: the number that each cell's network trains.
    """

    scenario: Scenario
    cells: tuple[Cell, ...]
    run_dir: Path
    parameters: tuple[int, ...]

    @property
    def clients(self) -> int:
        """Nodes the simulation needs: the most that any cell asks for."""
        return max(cell.scenario.federation.clients for cell in self.cells)


def make_plan(scenario: Scenario, out: Path | None = None) -> RunPlan:
    """Check everything that can be checked before a run; raise InputError for the first fault."""
    cells = tuple(scenario.cells())
    alike = [repr(cell.scenario.model_copy(update={"seed": 0})) for cell in cells]
    first = dict(zip(reversed(alike), reversed(cells), strict=True))
    parameters = {settings: check_cell(cell) for settings, cell in first.items()}
    for cell in cells:  # only the partition depends on the seed
        load_data(cell.client_config(use_gpu=False))
    run_dir = out or Path(scenario.output.root) / f"{scenario.name}-{scenario.digest}"
    run_dir = run_dir.resolve()  # workers write there from folders of their own
    return RunPlan(scenario, cells, run_dir, tuple(parameters[settings] for settings in alike))


def check_cell(cell: Cell) -> int:
    """Build what the cell will build, and return the number of trained parameters. Raise InputError for a misfit."""
    scenario = cell.scenario
    config = cell.client_config(use_gpu=False)
    data = load_data(config)
    model = make_model(config, data)
    load_targets(config, data.task, data.public()[1])
    check_dynamics(model, scenario.training)
    if scenario.model.pretrain is not None:
        check_dynamics(Pretraining.of(config, data).network(), scenario.model.pretrain)
    # whatever aggregates as Flower does by itself has no options that can be wrong
    if scenario.federation.strategy != StrategyConfig() or any(one.server_half().strategy for one in scenario.chain):
        from simulator.run.strategies import defended_strategy  # Flower: 0.2 s, which plain averaging does without

        defended_strategy(scenario)
    for defense in scenario.chain:
        if (mod := defense.flower_mod()) is not None:
            from clients.client_app import load_mod  # likewise

            load_mod(mod)
        defense.check(DefenseContext(config, round=1, client=0, model=model))
        defense.invariances()  # asked for again where attacks are scored: a fault in it would be theirs
    state = model.state_dict()
    observation = Observation(model, ((state, state),), data.shape)
    for view in {view.adversary: view for view in scenario.views}.values():
        facts = defense_facts(cell, data, view, [0])
        knowledge = grant(scenario, data, [0], facts)
        for attack in scenario.attacks_by(view.adversary):
            if attack.optional:
                continue
            try:
                attack.make().check(observation, AttackRun.of(attack, scenario, facts).knowledge(knowledge))
            except InputError as error:
                raise InputError(error.in_scenario or str(error)) from error
    rounds, when = scenario.federation.rounds, scenario.adversary.when
    if when != "every" and (late := [round for round in when if round > rounds]):
        raise InputError(f"adversary.when names round {late[0]}, federation.rounds is {rounds}")
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def expected_attacks(cell: Cell) -> int:
    """Return the number of attacks of a cell if no client fails."""
    attacks = cell.scenario.attacks_by
    return sum(seen * len(attacks(view.adversary)) for view, seen, _ in expected_views(cell))


def expected_views(cell: Cell) -> Iterator[tuple[View, int, int]]:
    """Yield each view with the number of its observations, and of their pairs of checkpoints, if no client fails."""
    federation, when = cell.scenario.federation, cell.scenario.adversary.when
    every = range(1, federation.rounds + 1)
    rounds = every if when == "every" else [round for round in sorted(set(when)) if round in every]
    for view in cell.scenario.views:
        if view.hidden_by is None:
            seen = federation.clients_a_round if view.shows(0) else 1
            yield view, seen * len(rounds), seen * (sum(rounds) if view.all_rounds else len(rounds))


def attacks_again(plan: RunPlan, out_of_time: Iterable[tuple[str, dict[str, Any]]]) -> list[Job]:
    """Return the jobs of attacks that ran out of time, if their checkpoints are there: a late client left none, and
    `output.keep` may have removed them. out_of_time: of the run's ledger."""
    cells, jobs = {cell.name: cell for cell in plan.cells}, []
    for name, row in out_of_time:
        try:
            cell, key, label = cells[name], ObservationKey.of(row), row["attack"]
        except (LookupError, TypeError, ValueError):  # no run wrote this journal
            continue
        store, attacks = CellStore(plan.run_dir, name), cell.scenario.adversary.attacks
        seen = store.observation_path(key).exists() and store.recorded(key).files
        if seen and all(store.checkpoint_path(file).exists() for file in seen):
            jobs += [Job(JobSettings.of(cell), store.root, key, attack) for attack in attacks if attack.label == label]
    return jobs
