"""Rank the rows of a leakage table by what they expose. `worst_first` is the one order of reports and notebooks."""

import json
from typing import Any

import pandas as pd

from attacks.calibration import beats_chance
from simulator.evaluation.truth import CANDIDATES
from simulator.results.cell_texts import likely_right, num_found
from simulator.results.keys import ALL
from simulator.results.schema import LEAKAGE, SAMPLES
from simulator.scenario.sweep import setting_words

PARTICIPANTS = ("pixel_mean", "pixel_std", "pixel_range")  # knowledge of whoever takes part
COUNTS = {column.name: column.counts for column in LEAKAGE.columns.values() if column.counts is not None}
MEASURES = sorted(COUNTS, key=lambda name: COUNTS[name].rank)
HELPERS = (  # columns that are neither of the schema nor swept
    *("cell", "panel", "who", "scored", "best", "measure", "of", "share", "sure", "chance", "explained", "guessed"),
    *("tells_members", "tells_candidates", "setting"),
)
BLIND = ("mean_image", "random_public")  # baselines that return the same whatever was sent: nobody loses images to them
HISTORIES = ("history", "server_history")  # threat models that keep all rounds
EXPOSED = 0.5  # share of a client's private images
TELLS, TELLS_SURELY = 0.6, 0.9  # AUC from which on members are told from others


def exposure_rows(leakage: pd.DataFrame) -> pd.DataFrame:
    """Return the rows about private images, with every declared column, and these beside them.

    scored: whether the truth is known. best, measure: the largest count of private images, and its column. share:
    `best` over the private images (`of`), 0 if chance explains as many; without the truth, over the images that the
    update shows or that were told, the fewer, but not fewer than `best`. chance: if `share` is 0, the largest count
    that chance explains. explained: by what, the `floor`, the `classes` or `others`, who lose as many. sure: whether
    the images are vouched for. guessed: whether `of` is the attack's count, and a guess. tells_members: whether the AUC
    is above chance. tells_candidates: whether more candidates are told to be members than chance explains. setting: the
    point of a sweep or the defense, in words.
    """
    return _judged(about_private(leakage))


def ranked_means(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table of means, as benchmark.csv, in the order of `ranked`, with `share`, judged as
    `exposure_rows` judges one update."""
    shares = {name: table[f"{name}_fraction"] for name in MEASURES if f"{name}_fraction" in table}
    rows = table[[name for name in table if name in LEAKAGE.columns]].assign(num_private=1.0, **shares)
    order = ranked(_judged(rows))
    return table.iloc[order.index].assign(share=order.share.where(order.scored).to_numpy())


def about_private(leakage: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a leakage table about private images; all rows if it has no targets."""
    return leakage[leakage.target.isna() | (leakage.target == "private")] if "target" in leakage else leakage


def _judged(leakage: pd.DataFrame) -> pd.DataFrame:
    rows = leakage.reindex(columns=[*LEAKAGE.columns, *(name for name in leakage if name not in LEAKAGE.columns)])
    rows = rows.reset_index(drop=True)
    rows[LEAKAGE.numeric] = rows[LEAKAGE.numeric].apply(pd.to_numeric).astype("float64")
    rows["detail"] = rows.detail.astype("string")
    rows = rows.assign(scored=rows.recovered.notna(), setting=_setting(rows))
    explained = pd.DataFrame({name: _explained(rows, name) for name in MEASURES}, index=rows.index)
    plain = rows[MEASURES].fillna(0.0)
    counts = plain.where(explained == "", 0.0)
    likely = likely_right(rows)
    found = num_found(rows).where(likely, 0.0)
    best = counts.max(axis=1).where(rows.scored, found)
    fewer = rows[["num_private", "num_inferred"]].min(axis=1)  # a client may have trained on a part of its images
    of = rows.num_private.where(rows.scored, fewer.where(fewer >= best, rows.num_inferred.fillna(rows.num_private)))
    share = (best / of.where(of > 0)).clip(upper=1.0).fillna(0.0)
    low = rows.membership_auc_low.fillna(rows.membership_auc)
    measure, most = (found.idxmax(axis=1) if len(rows) else pd.Series(dtype="object") for found in (counts, plain))
    chance = plain.max(axis=1).where(rows.scored & (share == 0), 0.0)
    reasons = pd.Series([explained.at[row, name] for row, name in most.items()], index=rows.index, dtype="object")
    # one for each update
    tests = rows.loc[rows.membership_p.notna(), ["setting", "round", "client", "threat_model"]]
    return rows.copy().assign(  # the copy joins columns, of which pandas says that too many stand apart
        best=best, measure=measure, of=of, share=share,
        sure=(measure != "held").where(rows.scored, likely), chance=chance, explained=reasons,
        guessed=~rows.scored & (of != rows.num_private) & rows.num_inferred_guessed.eq(1),
        tells_members=(rows.membership_auc >= TELLS) & (low > 0.5),
        tells_candidates=beats_chance(rows.membership_p, len(tests.drop_duplicates())),
    )  # fmt: skip


def are_told(rows: pd.DataFrame) -> pd.Series:
    """Return for each row whether something is known of it: a result of the attack, or else what an update tells
    without one, of members or classes."""
    aside = rows.reindex(columns=["membership_told", "membership_auc", "class_counts"]).notna().any(axis=1)
    return (rows.status == "ok") | aside


def are_candidates(rows: pd.DataFrame) -> pd.Series:
    """Return for each row whether its images are candidates, nobody's private set, so that it has no scores."""
    details = rows.detail.astype("string") if "detail" in rows else pd.Series("", index=rows.index)
    return details.str.contains(CANDIDATES, regex=False, na=False).astype(bool)


def worst_first(leakage: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a leakage table in the order of `ranked`."""
    return leakage.iloc[ranked(_judged(leakage)).index]


def ranked(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort the rows of `exposure_rows`: those that expose most first, those without a result last.

    They are sorted by share of images, then by features. Among equals, these come first, in this order: without the
    truth, images that passed the attack's own test, and else those that an attack with such a test held back; more
    images recovered as they are; no defense; one round rather than all, if there are images; a single client; fewer
    grants; more images; the earlier round, if there are images; without the truth, images that explain more of the
    update; then more leakage, a higher AUC and the earlier round.
    """
    exposed = rows.share > 0
    order = pd.DataFrame({
        "failed": rows.status != "ok", "share": -rows.share, "features": -rows.num_features.fillna(0.0),
        "untested": ~(rows.num_vouched > 0) & ~rows.scored,
        "nothing_held": exposed | rows.scored | ~((rows.num_vouched == 0) & (rows.num_held > 0)),
        "vouched": -(rows.recovered / rows.num_private).fillna(0.0), "defended": rows.defense != "none",
        "remembered": exposed & rows.threat_model.isin(HISTORIES),
        "union": rows.client == ALL,
        "grants": rows.knowledge.map(_grants), "images": -rows.best.where(exposed, 0.0),
        "since": rows["round"].where(exposed, 0),
        "unexplained": rows.relative_residual.where(~rows.scored),
        "leakage": -rows.leakage.fillna(0.0), "auc": -rows.membership_auc.fillna(0.0), "round": rows["round"],
        "client": rows.client,
    }, index=rows.index)  # fmt: skip
    return rows.loc[order.sort_values(list(order), kind="stable").index]


def worst_of(rows: pd.DataFrame) -> pd.Series:
    return ranked(rows).iloc[0]


def swept_keys(rows: pd.DataFrame) -> list[str]:
    """Name the settings of a sweep other than the seed and the defenses, which are columns of every table."""
    return [name for name in rows if name not in {*HELPERS, *LEAKAGE.columns, *SAMPLES.columns}]


def settings_of(rows: pd.DataFrame) -> list[str]:
    """Name the columns in which rows of one round, client, threat model and attack differ: defense, seed, sweep."""
    return [name for name in ("defense", "seed", *swept_keys(rows)) if rows[name].nunique(dropna=False) > 1]


def in_this_setting(row: pd.Series, rows: pd.DataFrame) -> str:
    """Return a bracket with the setting of a row, if there is more than one setting."""
    return f" (at {row.setting})" if rows.setting.nunique() > 1 else ""


def _grants(knowledge: Any) -> int:
    """Count the fields of the column `knowledge` beyond those that every participant knows."""
    return len(json.loads(knowledge).keys() - set(PARTICIPANTS)) if isinstance(knowledge, str) and knowledge else 0


def _setting(rows: pd.DataFrame) -> pd.Series:
    """Return the setting of every row in words: `no defense, seed=1`; empty if there is one setting."""
    names = settings_of(rows)
    if rows.empty or not names:
        return pd.Series("", index=rows.index, dtype="object")
    return rows[names].apply(setting_words, axis=1)


def _explained(rows: pd.DataFrame, name: str) -> pd.Series:
    """Return what explains a count, in every row: "" if it is more than chance. Older runs have no p-values."""
    count, fraction = rows[name].fillna(0.0), "recovered" if name == "held" else name
    p = rows[f"null_{name}_p"]

    def beaten_by(column: str) -> pd.Series:
        known = rows[column] if column in rows else pd.Series(float("nan"), index=rows.index)
        return count <= known.fillna(0.0) * rows.num_private

    told_from_others = beats_chance(p).where(p.notna(), ~beaten_by(f"null_{fraction}_fraction"))
    told_by_class = beats_chance(p).where(p.notna(), ~beaten_by(f"class_floor_{fraction}_fraction"))
    found = pd.Series("", index=rows.index, dtype="object").mask(~told_from_others, "others")
    found = found.mask(rows.class_floor_leakage.notna() & ~told_by_class, "classes")
    return found.mask(beaten_by(f"floor_{fraction}_fraction") | rows.attack.isin(BLIND), "floor")
