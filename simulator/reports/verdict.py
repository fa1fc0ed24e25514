"""The verdict: what a leakage table means, in sentences for somebody who has to decide, and what it does not say.

One function for the screen, the page and JSON. It needs the table alone. Where the true images are known, it counts
what was recovered of them. Where they are not, as in an audit of somebody else's federation, it counts what was found,
and says how much of the update that explains. Its caveats: what was not tried, what failed or gave up, what was
assumed.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import pandas as pd

from attacks import ATTACKS
from simulator.evaluation.truth import CANDIDATES
from simulator.reports.verdict_membership import (
    chance_lines,
    membership_headline,
    membership_lines,
    most_unbeaten,
    reconciled,
    tells,
    untold,
)
from simulator.reports.verdict_words import (
    LOOSER,
    at_worst,
    counted,
    listed,
    numbered,
    percent,
    said,
    sentence,
    told,
    viewer,
    whose,
)
from simulator.results.cells import EXPLAINED
from simulator.results.keys import ALL
from simulator.results.threat_models import THREAT_MODELS
from simulator.rundir.exposure_rows import (
    EXPOSED,
    are_candidates,
    exposure_rows,
    in_this_setting,
    worst_of,
)

GAVE_UP = "nothing returned: "
STATUSES = {"skipped": "not tried", "timeout": "out of time", "failed": "failed"}
BASELINES = ("mean_image", "random_public", "best_public")  # no attacks: what attacks have to beat
MOST = 6  # reasons of one kind


def caveats(rows: pd.DataFrame, level: str) -> tuple[str, ...]:
    """Sentences. rows: of `exposure_rows`, those without a result too."""
    good = rows[rows.status == "ok"]
    lines = [*_without_result(rows), *_gave_up(good), *_assumed(good), *_not_tried(rows)]
    if level == "nothing shown":
        lines.append(
            "what no attack took may still be there: another attack, more rounds or more knowledge may find it"
        )
    return tuple(sentence(line) for line in lines)


def _without_result(rows: pd.DataFrame) -> list[str]:
    lines = []
    for status, words in STATUSES.items():
        own = rows[rows.status == status]
        lines += [f"{_attacks(own)} {words} in {counted(n, 'case')}: {text}" for text, n in said(own)[:MOST]]
    return lines


def _gave_up(good: pd.DataFrame) -> list[str]:
    """Attacks that looked at an update and returned nothing."""
    own = good[good.detail.str.contains(GAVE_UP, regex=False, na=False) & (good.num_reconstructed == 0)]
    if own.empty:
        return []
    reasons = said(own.assign(detail=own.detail.str.extract(f"{GAVE_UP}([^;]*)", expand=False)))
    return [
        f"{_attacks(own)} gave up in {len(own)} of {counted(len(good), 'attack')}, which is a refusal and no safety: "
        + "; ".join(text for text, _ in reasons[:2])
    ]


def _assumed(good: pd.DataFrame) -> list[str]:
    """What attacks and scores remark of themselves, but for refusals."""
    shown = untold(good)  # among the details
    remarks = [(text, count) for text, count in said(good) if GAVE_UP not in text and text != shown]
    lines = [f"in {counted(count, 'row')}: {text}" for text, count in remarks[:MOST]]
    more = len(remarks) - MOST
    return [*lines, f"{counted(more, 'more remark')} in the column `detail`"] if more > 0 else lines


def _not_tried(rows: pd.DataFrame) -> list[str]:
    """Attacks and threat models that no row is of. An attack under a label of its own counts by the name in it."""
    labels = " ".join(map(str, rows.attack.unique()))
    attacks = [name for name in sorted(ATTACKS) if not (name in labels or name in BASELINES or ":" in name)]
    seen = " ".join(map(str, rows.threat_model.unique()))  # server_history is a history
    views = [model.name for model in THREAT_MODELS if model.name not in seen and "_" not in model.name]
    lines = [f"attack{'s' * (len(attacks) > 1)} {listed(attacks)}"] if attacks else []
    lines += [f"threat model{'s' * (len(views) > 1)} {listed(views)}"] if views else []
    return [f"not tried: {'; '.join(lines)}"] if lines else []


def _attacks(rows: pd.DataFrame) -> str:
    labels = [repr(label) for label in dict.fromkeys(rows.attack)]
    return f"attack{'s' * (len(labels) > 1)} {listed(labels)}" if labels else ""


Level = Literal["exposed", "partly exposed", "nothing shown", "no result"]
MOST_SETTINGS = 6  # of a sweep that are named


@dataclass(frozen=True)
class Verdict:
    """What a table means.

    level: "exposed" where an attack has at least half of the private images of some client, "partly exposed" where it
    has fewer, where it has images that it would not vouch for, or where the update tells members from others,
    "nothing shown" where no attack that ran showed any of this, and "no result" where none ran to its end, or where
    nothing was shown and an exception left some attack without any result.
    headline: one sentence. details: sentences, the most telling first. caveats: what was not tried, failed or gave
    up, and what was assumed.
    """

    level: Level
    headline: str
    details: tuple[str, ...]
    caveats: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """As plain values: strings, and lists of them."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def verdict(leakage: pd.DataFrame) -> Verdict:
    """The verdict on a leakage table, of a run, an audit or a benchmark; columns that it lacks count as empty."""
    rows = exposure_rows(leakage)
    good = rows[rows.status == "ok"]
    if good.empty:
        headline = "No attack gave a result: nothing is known of what leaks."
        return Verdict("no result", headline, (), caveats(rows, "no result"))
    worst, broken = worst_of(good), _broken(rows)
    level = level_of(worst, good)
    if level == "nothing shown" and broken:
        level = "no result"
    shown = (_rounds(worst, good), *_viewers(good), *_settings(good), *membership_lines(good), reconciled(good))
    kept = (_held(good), _up_to(good), *_doubtful(good))
    details = tuple(sentence(text) for text in (*shown, *chance_lines(good), *kept) if text)
    said_first = broken if level == "no result" else _headline(level, worst, good)
    headline = " ".join([*_candidates_only(good), sentence(said_first)])
    return Verdict(level, headline, details, caveats(rows, level))


def _broken(rows: pd.DataFrame) -> str:
    """Attacks without a result that an exception ended, and no refusal of theirs, as what is not known for that; ""
    where there is none."""
    without = rows[~rows.attack.isin(rows[rows.status == "ok"].attack)]
    lost = without[(without.status == "failed") & ~without.detail.str.startswith("InputError", na=False)]
    if lost.empty:
        return ""
    names = listed([repr(label) for label in dict.fromkeys(lost.attack)])
    why, _ = said(lost)[0]
    return f"Not known is what attack {names} would show, which failed: {why}; no other attack showed anything"


def level_of(worst: pd.Series, good: pd.DataFrame) -> Level:
    if worst.share >= EXPOSED and worst.sure:
        return "exposed"
    return "partly exposed" if worst.share > 0 or tells(good) else "nothing shown"


def _headline(level: Level, worst: pd.Series, good: pd.DataFrame) -> str:
    """Who is exposed worst, when, to whom, by what, knowing what, and how many images of how many."""
    if worst.share > 0:
        subject = "All clients together are" if worst.client == ALL else f"Client {worst.client} is"
        setting = in_this_setting(worst, good)
        return (
            f"{subject} exposed worst{setting}: in round {worst['round']} {viewer(worst.threat_model)} "
            f"{_images(worst)} by attack {worst.attack!r}, {told(worst.knowledge)}"
        )
    if level == "partly exposed":
        return membership_headline(good)
    labels = [repr(label) for label in dict.fromkeys(good.attack)]
    if unbeaten := most_unbeaten(good):
        return (
            f"No more than chance was shown to leak by {listed(labels)} ({unbeaten} at most), which does not mean that "
            "nothing leaks"
        )
    return f"Nothing was shown to leak by {listed(labels)}, which does not mean that nothing leaks"


def _candidates_only(good: pd.DataFrame) -> list[str]:
    """A sentence before all others, where images are given that are nobody's private set."""
    without = are_candidates(good)
    where = "" if without.all() else f" in {without.sum()} of {counted(len(good), 'row')}"
    return [sentence(f"{CANDIDATES}{where}")] if without.any() else []


def _images(row: pd.Series) -> str:
    """What an attack has of a client's images, as what somebody does."""
    if not row.scored:
        of = "" if pd.isna(row.num_inferred) else f" of {row.num_inferred:.0f} that the update shows"
        return f"finds {counted(row.best, 'image')}{of} ({_how_sure(row)})"
    owners = "" if row.client == ALL else "its "
    how = ""
    if row.measure in LOOSER and row.best > row.recovered:
        loosely, strictly = LOOSER[row.measure]
        how = f", {loosely} ({row.recovered:.0f} {strictly}),"
    return f"recovers {row.best:.0f} of {owners}{counted(row.num_private, 'private image')}{how}"


def _how_sure(row: pd.Series) -> str:
    """In words. Without the truth the attack's own test, and what the images explain, are all there is to judge by."""
    left = "" if pd.isna(row.relative_residual) else f"leave {row.relative_residual:.2g} of the update unexplained"
    if row.num_vouched > 0 and row.sure:
        return " and ".join(
            ["very likely right: they passed the attack's test against decoys", *([left] if left else [])]
        )
    if not left:
        return "how sure is not known: the true images are not"
    return f"{'very likely right' if row.relative_residual < EXPLAINED else 'doubtful'}: they {left}"


def _doubtful(good: pd.DataFrame) -> list[str]:
    """Of images that nobody compared with the truth and that explain little, which attacks returned some."""
    rows = good[~good.scored & (good.num_reconstructed > 0) & ~good.sure.astype(bool)]
    return [
        f"attack {attack!r} returned images that leave {of.relative_residual.min():.2g} of an update unexplained or "
        "more: they may be noise, and are not counted"
        for attack, of in rows.groupby("attack")
    ]


def _rounds(worst: pd.Series, good: pd.DataFrame) -> str:
    """In which rounds the client that is exposed worst loses images to that view of it."""
    same = (good.client == worst.client) & (good.threat_model == worst.threat_model)
    own = good[same & (good.setting == worst.setting)]
    attacked, lost = own["round"].nunique(), own[own.share > 0]["round"]
    if worst.share == 0 or attacked < 2:
        return ""
    return (
        f"{whose(worst.client)} {'lose' if worst.client == ALL else 'loses'} images to {viewer(worst.threat_model)} in "
        f"{numbered(lost, 'round')}, of {attacked} rounds attacked"
    )


def _viewers(good: pd.DataFrame) -> list[str]:
    """For each threat model how many clients lose images, and the most that any loses."""
    lines = []
    for threat_model, own in good.groupby("threat_model", sort=False):
        worst, clients = worst_of(own), own[own.client != ALL]
        if worst.share == 0:
            unbeaten = most_unbeaten(own)
            nothing = f"recovers no more than chance ({unbeaten} at most)" if unbeaten else "recovers no image"
            lines.append(f"{viewer(threat_model)} {nothing if own.scored.any() else 'has no sure image'}")
            continue
        lost, attacked = clients[clients.share > 0].client.nunique(), clients.client.nunique()
        of = at_worst(worst) if worst.scored else counted(worst.best, "image")
        where = f"{of} from {whose(worst.client)} in round {worst['round']} by {worst.attack!r}"
        count = f"has images of {lost} of {counted(attacked, 'client')}, at worst " if attacked else "has "
        lines.append(f"{viewer(threat_model)} {count}{where}")
    return lines


def _settings(good: pd.DataFrame) -> list[str]:
    """Of several defenses, or points of a sweep, those that were broken and those that were not."""
    several = good.defense.nunique() > 1
    shares = good.groupby(
        good.defense.replace("none", "no defense") if several else good.setting, sort=False
    ).share.max()
    if len(shares) < 2:
        return []
    order = shares.sort_values(ascending=False, kind="stable")
    broken, kept = ([name for name, share in order.items() if (share > 0) == wanted] for wanted in (True, False))
    lines = (
        [f"some attack has images at {_some([f'{name} ({percent(shares[name])})' for name in broken])}"]
        if broken
        else []
    )
    more = "more than chance has" if most_unbeaten(good[good.share == 0]) else "an image"
    return [*lines, f"no attack has {more} at {_some(kept)}"] if kept else lines


def _some(names: list[str]) -> str:
    more = len(names) - MOST_SETTINGS
    return "; ".join(names[:MOST_SETTINGS]) + (f"; and at {more} more" if more > 0 else "")


def _held(good: pd.DataFrame) -> str:
    """Images among the candidates that an attack would not vouch for."""
    doubted = (good.held - good.recovered).where(good.scored)
    if not (doubted > 0).any():
        if good.scored.any() or not (good.num_held > 0).any():
            return ""
        row = good.loc[good.num_held.idxmax()]
        more = counted(row.num_held, "further candidate")
        return f"attack {row.attack!r} has {more} of {whose(row.client)} that it would not vouch for"
    row = good.loc[doubted.idxmax()]
    return (
        f"attack {row.attack!r} has {row.held:.0f} of {row.num_private:.0f} images of {whose(row.client)} in round "
        f"{row['round']} among its candidates and returned {row.recovered:.0f}: the others it would not vouch for, "
        "which keeps them out of its result, not out of the attacker's hands"
    )


def _up_to(good: pd.DataFrame) -> str:
    """Images that are there but for an offset and a gain."""
    more = (good.recovered_affine - good.recovered).where(good.scored & (good.share > 0))
    if not (more > 0).any():
        return ""
    row = good.loc[more.idxmax()]
    return (
        f"up to brightness and contrast, {row.recovered_affine:.0f} of {row.num_private:.0f} images of "
        f"{whose(row.client)} are recovered in round {row['round']} by {row.attack!r}, of which {row.recovered:.0f} "
        "also have the true brightness: an eye knows them all"
    )
