"""Write guarantees of differential privacy into the columns of a table.

The columns show one guarantee: the first of the chain, in the order in which its defenses apply, that holds against the
adversary of the row. The column `guarantees` has all of them. Guarantees of different kinds are never combined.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clients.defenses.guarantee import Adversary, Guarantee, from_json, to_json, worst

if TYPE_CHECKING:  # no worker of a run has to wait for pandas
    import pandas as pd

SHOWN = ["epsilon", "delta", "privacy_unit", "privacy_against", "adjacency", "nominal_epsilon"]


def privacy_columns(guarantees: Sequence[Guarantee], against: Adversary | None = None) -> dict[str, Any]:
    """Return the columns of a row; none if there is no guarantee at all.

    against: the adversary of the row; only a guarantee that holds against it is shown. None: a row about no adversary.
    """
    if not guarantees:
        return {}
    columns: dict[str, Any] = {"guarantees": to_json(guarantees)}
    holding = [one for one in guarantees if against is None or one.holds_against(against)]
    if not holding:
        return columns
    one = holding[0]
    values = (one.epsilon, one.delta, one.unit, one.against, one.adjacency, one.nominal_epsilon)
    return columns | dict(zip(SHOWN, values, strict=True))


def privacy_notes(guarantees: Sequence[Guarantee], against: Adversary) -> list[str]:
    """Return the remark for `detail`: why no guarantee is shown, or all of them if there are several."""
    all_of_them = ", ".join(map(str, guarantees))
    if guarantees and not any(one.holds_against(against) for one in guarantees):
        return [f"no guarantee against the {against} ({all_of_them})"]
    return [f"guarantees: {all_of_them}"] if len(guarantees) > 1 else []


def worst_columns(replies: "pd.DataFrame", against: Adversary) -> dict[str, Any]:
    """Return the columns of the most exposed client of all rounds so far.

    replies: rows of the clients table, of all rounds so far. If one has no guarantee, all of them together have none.
    """
    if "guarantees" not in replies or replies.empty or replies.guarantees.isna().any():
        return {}
    return privacy_columns(worst(map(from_json, replies.guarantees.unique())), against)
