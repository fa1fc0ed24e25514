"""The rows of a leakage table, ranked by what they expose: what the verdict and the screen call the worst."""

import json
from typing import Any, NamedTuple

import pandas as pd

from simulator.reports.verdict_words import PARTICIPANTS
from simulator.results.columns import COUNT, NUMBER
from simulator.results.keys import ALL
from simulator.results.schema import LEAKAGE

MEASURES = ("recovered", "recovered_group", "recovered_affine", "held")  # of equally many images, the first counts
DERIVED = ("scored", "best", "measure", "share", "sure", "tells_members", "tells_candidates", "setting")
FLOORS = ("floor_{}_fraction", "null_{}_fraction")
EXPOSED = 0.5  # share of a client's private images
# Shares of an update that images may leave unexplained and be very likely right all the same. A search that has no test
# of its own and leaves a third of it may have found noise. Images that passed a test against decoys may leave more:
# exact ones do the longer the training was (0.15 measured), where all were strays they left 0.83 (docs/benchmarks.md).
TESTED = 0.5
EXPLAINED = 0.1


class Telling(NamedTuple):
    """From which AUC on members are told from others: at all, and surely."""

    least: float = 0.6
    sure: float = 0.9


TELLING = Telling()
CHANCE = 0.05  # that any update of a table seems to tell candidates, where none of them took part


def exposure_rows(leakage: pd.DataFrame) -> pd.DataFrame:
    """The rows about private images, with every declared column, and these beside them.

    scored: whether the truth is known. best, measure: most private images by any way of counting, and which way. share:
    `best` over the private images, 0 where an attacker who knows nothing has as many; without the truth, of the images
    that the update shows. sure: whether the images are vouched for. tells_members: whether the AUC is above chance,
    tells_candidates: whether more candidates are told to be members than chance explains. setting: in words, which
    point of a sweep or which defense it is.
    """
    rows = leakage.reindex(columns=[*LEAKAGE.columns, *(name for name in leakage if name not in LEAKAGE.columns)])
    rows = rows[rows.target.isna() | (rows.target == "private")].reset_index(drop=True)
    numbers = [column.name for column in LEAKAGE.columns.values() if column.dtype in (COUNT, NUMBER)]
    rows[numbers] = rows[numbers].apply(pd.to_numeric).astype("float64")
    rows["detail"] = rows.detail.astype("string")
    rows = rows.assign(scored=rows.recovered.notna(), setting=_setting(rows))
    counts = pd.DataFrame({name: rows[name].where(_above_floor(rows, name), 0.0) for name in MEASURES}).fillna(0.0)
    likely = likely_right(rows)
    found = rows[["num_reconstructed", "num_inferred"]].min(axis=1).where(likely, 0.0)
    best = counts.max(axis=1).where(rows.scored, found)
    of = rows.num_private.where(rows.scored, rows.num_inferred)
    share = (best / of.where(of > 0)).clip(upper=1.0).fillna(0.0)
    low = rows.membership_auc_low.fillna(rows.membership_auc)
    measure = counts.idxmax(axis=1) if len(rows) else pd.Series(dtype="object")
    return rows.assign(
        best=best, measure=measure, share=share,
        sure=(measure != "held").where(rows.scored, likely),
        tells_members=(rows.membership_auc >= TELLING.least) & (low > 0.5),
        tells_candidates=_tells_candidates(rows),
    )  # fmt: skip


def likely_right(rows: pd.DataFrame) -> pd.Series:
    """Whether images that nobody compared with the truth are very likely right: they passed the attack's own test
    against decoys and explain half of the update, or explain nearly all of it."""
    tested = rows.num_vouched if "num_vouched" in rows else pd.Series(float("nan"), index=rows.index)
    passed = (pd.to_numeric(tested).astype("float64") > 0) & ~(rows.relative_residual >= TESTED)
    return passed | (rows.relative_residual < EXPLAINED)


def ranked(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of `exposure_rows`, those that expose most first, those without a result last.

    By share of images, without the truth then by how well they explain the update; of equals the one that needed less
    comes first (no defense, a single client, fewer grants), then by leakage, AUC and the earlier round.
    """
    order = pd.DataFrame({
        "failed": rows.status != "ok", "share": -rows.share, "untested": ~(rows.num_vouched > 0) & ~rows.scored,
        "unexplained": rows.relative_residual.where(~rows.scored),
        "vouched": -(rows.recovered / rows.num_private).fillna(0.0), "defended": rows.defense != "none",
        "union": rows.client == ALL, "grants": rows.knowledge.map(_grants), "leakage": -rows.leakage.fillna(0.0),
        "auc": -rows.membership_auc.fillna(0.0), "round": rows["round"], "client": rows.client,
    }, index=rows.index)  # fmt: skip
    return rows.loc[order.sort_values(list(order), kind="stable").index]


def worst_of(rows: pd.DataFrame) -> pd.Series:
    """The row that exposes most."""
    return ranked(rows).iloc[0]


def settings_of(rows: pd.DataFrame) -> list[str]:
    """Columns in which rows of one round, client, threat model and attack differ: defense, seed, keys of a sweep."""
    swept = [name for name in rows if name not in LEAKAGE.columns and name not in (*DERIVED, "defenses", "cell")]
    return [name for name in ("defense", "seed", *swept) if rows[name].nunique(dropna=False) > 1]


def in_this_setting(row: pd.Series, rows: pd.DataFrame) -> str:
    """A bracket with the setting of a row, where there is more than one setting."""
    return f" (at {row.setting})" if rows.setting.nunique() > 1 else ""


def _grants(knowledge: Any) -> int:
    """How many fields the column `knowledge` grants beyond those that every participant knows."""
    return len(json.loads(knowledge).keys() - PARTICIPANTS) if isinstance(knowledge, str) and knowledge else 0


def _setting(rows: pd.DataFrame) -> pd.Series:
    """Of every row, in words: `no defense, seed=1`; empty where all rows are of one setting."""
    names = settings_of(rows)
    words = {"none": "no defense"}

    def text(row: pd.Series) -> str:
        parts = [words.get(row[name], str(row[name])) if name == "defense" else f"{name}={row[name]}" for name in names]
        return ", ".join(parts)

    return rows.apply(text, axis=1) if len(rows) and names else pd.Series("", index=rows.index, dtype="object")


def _tells_candidates(rows: pd.DataFrame) -> pd.Series:
    """Where `membership_p` is small for as many tests as the table has: one for each update that was looked at."""
    tested = rows[rows.membership_p.notna()]
    names = ["setting", "round", "client", "threat_model"]
    return rows.membership_p * max(1, len(tested[names].drop_duplicates())) <= CHANCE


def _above_floor(rows: pd.DataFrame, name: str) -> pd.Series:
    """Where a count is above that of the floor, and of the same images against others."""
    count, fraction = rows[name], "recovered" if name == "held" else name
    above = count > 0
    for pattern in FLOORS:
        floor = pattern.format(fraction)
        if floor in rows:
            above &= count > (rows[floor].fillna(0.0) * rows.num_private)
    return above
