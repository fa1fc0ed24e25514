"""The verdict on membership, and on counts that chance or a guess at the classes explains.

Membership: whether an update tells who was in it. With the truth, how well private images are told from others (AUC).
Without it, how many of the user's candidates are told to be members, at a calibrated false-positive rate.
"""

import pandas as pd

from attacks.calibration import beats_chance
from attacks.interface.errors import counted
from simulator.reports.verdict_words import LOOSER, percent, trainer, whose
from simulator.results.columns import leakage_floors
from simulator.rundir.exposure_rows import MEASURES, TELLS_SURELY, in_this_setting, settings_of

NOTABLE = 0.05  # of leakage above both floors, from which on it is explained at all
WHY = {  # what explains a count
    "floor": "no more than an attacker has who knows nothing",
    "classes": "what a guess at the classes gives: other images of these classes are hit as often",
    "others": "no more than the same images have of other people's",
}


def most_unbeaten(good: pd.DataFrame) -> str:
    """Return the largest count that is no more than chance, as "1 of 8 images"; "" if all counts are 0."""
    if not (good.chance > 0).any():
        return ""
    row = good.loc[good.chance.idxmax()]
    return f"{row.chance:.0f} of {counted(row.num_private, 'image')}"


def chance_lines(good: pd.DataFrame) -> list[str]:
    """Return a sentence for every explanation of counts, on the largest, and one on leakage."""
    lines = []
    for explained, own in good[good.chance > 0].groupby("explained", sort=False):
        row = own.loc[own.chance.idxmax()]
        name = next(name for name in MEASURES if row[name] == row.chance)
        how = f" {LOOSER[name][0]}" if name in LOOSER and row.chance > row.recovered else ""
        lines.append(
            f"attack {row.attack!r} has {row.chance:.0f} of {counted(row.num_private, 'image')} of {whose(row.client)} "
            f"in round {row['round']}{how}: {WHY[str(explained)]}, and not counted"
        )
    return [*lines, *_leakage(good)]


def _leakage(good: pd.DataFrame) -> list[str]:
    """Say where a guess at the classes explains leakage: public images of the same classes leak more than half of it
    beyond the floor, and other images of these classes are told as well."""
    floor = leakage_floors(good)
    beyond = good.leakage - floor
    by_chance = good.null_p.notna() & ~beats_chance(good.null_p)
    rows = good[(beyond > NOTABLE) & by_chance & (good.class_floor_leakage - floor > beyond / 2)]
    if rows.empty:
        return []
    row = rows.loc[rows.leakage.idxmax()]
    return [
        f"leakage of {row.leakage:.2f} ({row.attack!r}, {whose(row.client)}, round {row['round']}) is what a guess at "
        f"the classes gives: public images of the same classes leak {row.class_floor_leakage:.2f}, and other images of "
        f"these classes are told as well (p = {row.null_p:.2f})"
    ]


def tells(good: pd.DataFrame) -> bool:
    """Return whether any update tells members from others. good: rows of `exposure_rows` with a result."""
    return bool(good.tells_members.any() or good.tells_candidates.any())


def none_recovered(good: pd.DataFrame) -> str:
    """Say that there is no image, of the rows that were compared with a truth where not all of them were."""
    if good.empty:
        return "No attack gave an image"
    compared = int(good.scored.sum())
    if not compared:
        return "No image is sure"
    where = "" if good.scored.all() else f" in the {counted(compared, 'row')} that had a truth to be compared with"
    return f"No image was recovered{where}"


def membership_headline(good: pd.DataFrame, tested: pd.DataFrame) -> str:
    """Return the headline if members are told and no image is. tested: also rows that tell members without a result."""
    unbeaten = most_unbeaten(good)
    nothing = none_recovered(good)
    if unbeaten:
        nothing = f"No more images were recovered than chance has ({unbeaten} at most)"
    if tested.tells_candidates.any():
        row = _most_told(tested)
        where = f"{in_this_setting(row, tested)}: by the update of {whose(row.client)} in round {row['round']}"
        return f"{nothing}, but membership leaks{where}, {_told(row)}"
    row = _most_telling(tested)
    return (
        f"{nothing}, but membership leaks{in_this_setting(row, tested)}: whoever holds a candidate "
        f"image can tell whether {trainer(row.client)} trained on it in round {row['round']} "
        f"(AUC {row.membership_auc:.2f} where 0.5 is a guess)"
    )


def membership_lines(tested: pd.DataFrame) -> list[str]:
    return [line for line in (_scored(tested), _candidates(tested)) if line]


def untold(good: pd.DataFrame) -> str:
    """Return the first remark on why no row says anything of membership; "" if some row does."""
    if good.membership_auc.notna().any() or good.membership_told.notna().any():
        return ""
    remarks = (remark for detail in good.detail.fillna("") for remark in detail.split("; "))
    return next((remark for remark in remarks if remark.startswith("membership: ")), "")


def _candidates(good: pd.DataFrame) -> str:
    """Say how many candidates are told to be members, by the update that tells most."""
    tested = good[good.membership_told.notna()]
    if tested.empty:
        return ""
    row = _most_told(tested)
    if not row.tells_candidates:
        count, of = int(row.membership_told), row.membership_candidates
        stand = f"{count} of {counted(of, 'candidate')} stand{'s' * (count == 1)} out"
        return (
            f"Membership: {stand}, {_alarms(row)}, by the update of {whose(row.client)} in round {row['round']}: which "
            "took part was not shown, nor that any did not, as noise, or a wrong --mean or --std, hides members"
        )
    names = [*settings_of(good), "round", "client", "threat_model"]
    told, updates = (len(rows[names].drop_duplicates()) for rows in (tested[tested.tells_candidates], tested))
    return (
        f"Membership: {_told(row)}, by the update of {whose(row.client)} in round {row['round']}; {told} of {updates} "
        "updates tell members from others; which candidates they are stands in membership/"
    )


def _told(row: pd.Series) -> str:
    """Say "22 of 100 candidates took part, at 1 false alarm in 100 (1 of them by chance)"."""
    return f"{row.membership_told:.0f} of {counted(row.membership_candidates, 'candidate')} took part, {_alarms(row)}"


def _alarms(row: pd.Series) -> str:
    chance = row.membership_fpr * row.membership_candidates
    return f"at 1 false alarm in {1 / row.membership_fpr:,.0f} ({chance:.2g} of them by chance)"


def _most_told(good: pd.DataFrame) -> pd.Series:
    """Return the row that is least likely by chance; of equals a client's before that of all together."""
    order = good[good.membership_told.notna()].sort_values(
        ["tells_candidates", "membership_told", "membership_p", "client"], ascending=[False, False, True, False],
        kind="stable",
    )  # fmt: skip
    return order.iloc[0]


def _most_telling(good: pd.DataFrame) -> pd.Series:
    return good.loc[good.membership_auc.where(good.tells_members).idxmax()]


def _scored(good: pd.DataFrame) -> str:
    if not good.membership_auc.notna().any():
        return ""
    if not good.tells_members.any():
        if good.tells_candidates.any():  # members are told: of few images even an AUC of 1 may be chance
            return ""
        row = good.loc[good.membership_auc.idxmax()]
        low, high = row.membership_auc_low, row.membership_auc_high
        within = "" if pd.isna(low) or pd.isna(high) else f", 95 % interval {low:.2f} to {high:.2f}"
        return (
            "Membership: that an update tells private images from others was not shown "
            f"(AUC at most {row.membership_auc:.2f}{within})"
        )
    row = _most_telling(good)
    rates = {"membership_tpr": "1,000", "membership_tpr_1pct": "100"}
    rate = next((name for name in rates if pd.notna(row[name])), None)
    found = f"; at one false alarm in {rates[rate]} it finds {percent(row[rate])} of the private images" if rate else ""
    return (
        f"Membership: who has a candidate image can tell whether {trainer(row.client)} trained on it, with an AUC of "
        f"{row.membership_auc:.2f} in round {row['round']} (0.5 is a guess, 1 is certain){found}"
    )


def reconciled(good: pd.DataFrame) -> str:
    """Explain updates that give no image away and still tell who was in them."""
    by_update = good.groupby([*settings_of(good), "round", "client", "threat_model"], dropna=False)
    mute = good[(by_update.share.transform("max") == 0) & (good.membership_auc >= TELLS_SURELY) & good.tells_members]
    if mute.empty:
        return ""
    row = mute.sort_values(["leakage", "membership_auc"], ascending=[True, False]).iloc[0]
    leakage = "" if pd.isna(row.leakage) else f"leakage {row.leakage:.2f} beside "
    return (
        f"{leakage}a membership AUC of {row.membership_auc:.2f} ({whose(row.client)}, round {row['round']}) is no "
        "contradiction: no attack that ran could draw an image out of that update, yet it tells whoever has an image "
        "already whether it was trained on"
    )
