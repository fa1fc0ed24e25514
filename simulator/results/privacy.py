"""Guarantees of differential privacy as columns of a table.

The columns show the first guarantee of the chain, in the order in which its defenses apply, that is for the eyes of the
row; `guarantees` has all of them. No figure is made of two unlike ones.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clients.defenses.differential_privacy.guarantee import Adversary, Guarantee, from_json, to_json, worst

if TYPE_CHECKING:  # no worker of a run has to wait for pandas
    import pandas as pd

SHOWN = ["epsilon", "delta", "privacy_unit", "privacy_against", "adjacency", "nominal_epsilon"]


def privacy_columns(guarantees: Sequence[Guarantee], against: Adversary | None = None) -> dict[str, Any]:
    """The columns of a row; none of them where there is no guarantee at all.

    against: whose eyes the row is about; only what holds against it is shown. None: a row about no adversary.
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
    """What `detail` says of guarantees: why none is shown, or all of them where there are several."""
    all_of_them = ", ".join(map(str, guarantees))
    if guarantees and not any(one.holds_against(against) for one in guarantees):
        return [f"no guarantee against the {against} ({all_of_them})"]
    return [f"guarantees: {all_of_them}"] if len(guarantees) > 1 else []


def worst_columns(rows: "pd.DataFrame") -> dict[str, Any]:
    """The columns of rows of a leakage table as one row: that of the largest ε, and all guarantees at their worst.

    Where one of the rows has no guarantee against its adversary, all of them together have none.
    """
    if "guarantees" not in rows or (told := rows[rows.guarantees.notna()]).empty:  # older runs lack it
        return {}
    columns: dict[str, Any] = {"guarantees": to_json(worst(map(from_json, told.guarantees)))}
    if told.epsilon.isna().any():
        return columns
    return columns | told.loc[told.epsilon.idxmax(), SHOWN].to_dict()
