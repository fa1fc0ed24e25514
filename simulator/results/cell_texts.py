"""Make the text of a cell in a printed table that is more than the value: the `text` of columns."""

from typing import TYPE_CHECKING

from simulator.results.columns import Column, is_missing, leakage_floor

if TYPE_CHECKING:
    import pandas as pd

# Shares of an update that very likely right images may leave unexplained. A search without a test of its own that
# leaves more may have found noise. Images that passed a test against decoys may leave more: exact ones left 0.15 after
# long training, strays 0.83 (docs/records/audit.md, docs/records/rounds.md). A few of many leave what the others
# explain, 6 exact ones of 16 left 0.53: so they have to explain no more than their share of what all have to.
TESTED = 0.5
EXPLAINED = 0.05
DETERMINED = 1.0  # numbers of the update for each pixel, below which images of nobody explain it as well
JUDGED = "num_reconstructed num_inferred num_private num_vouched relative_residual determined".split()


def likely_right(rows: "pd.DataFrame") -> "pd.Series":
    """Return whether images without a truth are very likely right: they passed the attack's own test and explain
    half of the update, where all were found, or explain nearly all of an update that determines them."""
    share = (num_found(rows) / _there(rows)).clip(upper=1.0).fillna(1.0)
    explained = 1 - rows["relative_residual"] ** 2
    passed = (rows["num_vouched"] > 0) & ~(explained <= (1 - TESTED**2) * share)
    return passed | ((rows["relative_residual"] < EXPLAINED) & ~(rows["determined"] < DETERMINED))


def num_found(rows: "pd.DataFrame") -> "pd.Series":
    """Return how many images without a truth can be right: no more than the update shows or, if that is not known, than
    the attack was told. An attack that searches from more starts than there are images returns more."""
    return rows["num_reconstructed"].clip(upper=_there(rows).fillna(float("inf")))


def _there(rows: "pd.DataFrame") -> "pd.Series":
    return rows["num_inferred"].fillna(rows["num_private"])


def client(row: "pd.Series", column: Column) -> str:
    return "all" if row["client"] < 0 else str(row["client"])


def recovered(row: "pd.Series", column: Column) -> str:
    """Return how many of how many, without the truth how many were found or held, and without a result the status."""
    import pandas as pd  # a third of a second of every worker of a run

    if row["status"] != "ok":
        return str(row["status"])
    if not is_missing(row["recovered"]):
        return f"{row['recovered']} of {row['num_private']}"
    rows = row.to_frame().T.reindex(columns=JUDGED).apply(pd.to_numeric).astype("float64")
    found = num_found(rows).where(likely_right(rows), 0.0).iloc[0]
    returned, held = row["num_reconstructed"], row.get("num_held")
    if not is_missing(returned) and not returned and not is_missing(held) and held:
        return f"{held:.0f} held"
    return f"{found:.0f} found" if found else f"{row['num_reconstructed']} doubtful"


def members(row: "pd.Series", column: Column) -> str:
    """Return how many of the candidates of an audit."""
    told = row["membership_told"]
    return "" if is_missing(told) else f"{told:.0f} of {row['membership_candidates']:.0f}"


def beside_floor(row: "pd.Series", column: Column) -> str:
    """Return the value with its floor in parentheses."""
    shown, floor = column.plain(row), leakage_floor(row)
    return shown if not shown or is_missing(floor) else f"{shown} ({floor:.{column.digits}f})"


def interval(row: "pd.Series", column: Column) -> str:
    """Return the value with both ends of its interval: 0.50 .38–.62."""

    def end(value: float) -> str:
        return f"{value:.2f}".removeprefix("0") if value < 0.995 else "1"

    low, high = row.get(f"{column.name}_low"), row.get(f"{column.name}_high")
    return column.plain(row) + ("" if is_missing(low) else f" {end(low)}–{end(high)}")


def setting(row: "pd.Series", column: Column) -> str:
    return "none costs so little" if is_missing(row["setting"]) else str(row["setting"])


def epsilon(row: "pd.Series", column: Column) -> str:
    """Return the value with the first letter of its unit, record or client."""
    shown, unit = column.plain(row), row.get("privacy_unit")
    return shown if not shown or is_missing(unit) else f"{shown} {str(unit)[:1]}"


def thousands(row: "pd.Series", column: Column) -> str:
    value = row[column.name]
    return "" if is_missing(value) else f"{value / 1000:.0f}"
