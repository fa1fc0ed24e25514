"""How much a cell will do if no client fails: attacks, and pairs of checkpoints; and what it will do again."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from simulator.adversary.threat_models import View
from simulator.evaluation.job import Job, Setting
from simulator.results.keys import ObservationKey
from simulator.results.storage import CellStore
from simulator.run.plan import RunPlan
from simulator.scenario.scenario import Cell


def expected_attacks(cell: Cell) -> int:
    """How many attacks a cell will run if no client fails."""
    attacks = cell.scenario.attacks_by
    return sum(seen * len(rounds) * len(attacks(view.adversary)) for view, seen, rounds in _expected_views(cell))


def expected_pairs(cell: Cell) -> int:
    """How many pairs of checkpoints all observations of a cell will hold together, at most and if no client fails."""
    views = _expected_views(cell)
    return sum(seen * (sum(rounds) if view.all_rounds else len(rounds)) for view, seen, rounds in views)


def _expected_views(cell: Cell) -> Iterator[tuple[View, int, Sequence[int]]]:
    """(whose eyes, how much they see in a round, the rounds in which they look)."""
    federation, when = cell.scenario.federation, cell.scenario.adversary.when
    every = range(1, federation.rounds + 1)
    rounds = every if when == "every" else [round for round in sorted(set(when)) if round in every]
    for view in cell.scenario.views:
        if view.hidden_by is None:
            yield view, federation.clients_a_round if view.shows(0) else 1, rounds


def attacks_again(plan: RunPlan, out_of_time: Iterable[tuple[str, dict[str, Any]]]) -> list[Job]:
    """The jobs of attacks that ran out of time, as far as what they attacked is there: nothing is of a client that was
    late itself, nor where `output.keep` has removed it. out_of_time: of the run's ledger."""
    cells, jobs = {cell.name: cell for cell in plan.cells}, []
    for name, row in out_of_time:
        try:
            cell, key, label = cells[name], ObservationKey.of(row), row["attack"]
        except (LookupError, TypeError, ValueError):  # of a journal that no run wrote
            continue
        store, attacks = CellStore(plan.run_dir, name), cell.scenario.adversary.attacks
        seen = store.observation_path(key).exists() and store.recorded(key).files
        if seen and all(store.checkpoint_path(file).exists() for file in seen):
            jobs += [Job(Setting.of(cell), store.root, key, attack) for attack in attacks if attack.label == label]
    return jobs
