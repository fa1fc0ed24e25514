"""How much a cell will do if no client fails: attacks, and pairs of checkpoints."""

from collections.abc import Iterator, Sequence

from simulator.adversary.threat_models import View
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
