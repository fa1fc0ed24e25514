"""How much a cell will do if no client fails: attacks, and pairs of checkpoints."""

from collections.abc import Iterator

from simulator.adversary.threat_models import View
from simulator.scenario.scenario import Cell


def expected_attacks(cell: Cell) -> int:
    """How many attacks a cell will run if no client fails."""
    attacks = cell.scenario.attacks_by
    return sum(count * len(attacks(view.adversary)) for view, _, count in _expected_observations(cell))


def expected_pairs(cell: Cell) -> int:
    """How many pairs of checkpoints all observations of a cell will hold together, at most and if no client fails."""
    return sum(count * pairs for _, pairs, count in _expected_observations(cell))


def _expected_observations(cell: Cell) -> Iterator[tuple[View, int, int]]:
    """(whose eyes, pairs of checkpoints in each, how many of them), of every round and view."""
    federation, adversary = cell.scenario.federation, cell.scenario.adversary
    clients = max(1, int(federation.clients * federation.fraction))
    views = [view for view in cell.scenario.views if view.hidden_by is None]
    for round in range(1, federation.rounds + 1):
        if adversary.attacks_in(round):
            for view in views:
                yield view, round if view.all_rounds else 1, clients if view.shows(0) else 1
