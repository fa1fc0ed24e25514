"""State in sentences what a leakage table means, for somebody who has to decide, and what it does not mean.

The screen, the page and JSON show the same statements, made from the table alone. With the true images, a verdict
counts those that were recovered. Without them, as in an audit of somebody else's federation, it counts images that were
found, and says how much of the update they explain.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from attacks import ATTACKS
from attacks.interface.errors import counted
from simulator.evaluation.truth import CANDIDATES
from simulator.reports.verdict_membership import (
    chance_lines,
    membership_headline,
    membership_lines,
    most_unbeaten,
    none_recovered,
    reconciled,
    tells,
    untold,
)
from simulator.reports.verdict_words import (
    REFUSED,
    at_worst,
    classes_line,
    features_line,
    listed,
    loosely_counted,
    percent,
    remedies,
    rounds,
    said,
    sentence,
    told,
    viewer,
    whose,
)
from simulator.results.cell_texts import DETERMINED, likely_right
from simulator.results.keys import ALL
from simulator.results.threat_models import THREAT_MODELS
from simulator.rundir.exposure_rows import EXPOSED, are_candidates, are_told, exposure_rows, in_this_setting, worst_of

GAVE_UP = "nothing returned: "
NOTHING_KNOWN = "No attack gave a result: nothing is known of what leaks."
OURS = "attacks."  # how the modules of our attacks begin
BASELINES = ("mean_image", "random_public", "best_public")  # no attacks: what attacks have to beat
AS_FED = (
    "images are found as the network was fed them: of a client that augments or mixes its images views and blends, "
    "several of one image, and of one that corrects its steps by others' gradients (SCAFFOLD) images of others, too"
)
OF_FEW = "; images of nobody explain an update as well that has fewer numbers than they have pixels"
NO_NULL = (
    ", though blurs of anybody's may pass for low-contrast images, and there are too few images of others to tell how "
    "many do: more public ones would"
)
MOST = 6  # reasons of one kind that are named
MOST_SETTINGS = 6  # settings of a sweep that are named
TELLS_CLASSES = 0.5  # counts of classes are shown if their error is at most this share of a guess's
MOSTLY = 0.5  # of the images recovered up to brightness: if fewer are recovered as they are, the mean may be wrong

Level = Literal["exposed", "partly exposed", "nothing shown", "no result"]
Kind = Literal["stopped", "shown", "tried", "broke", "next", "caveats"]
TITLES: dict[Kind, str] = {
    "stopped": "Not finished",
    "shown": "What was shown",
    "tried": "Tried without result",
    "broke": "What broke",
    "next": "What to do next",
    "caveats": "What this does not say",
}


@dataclass(frozen=True)
class Verdict:
    """The meaning of a table.

    level: "exposed" if an attack has at least half of the private images of some client; "partly exposed" if it has
    fewer, images that it held back or features alone, or if the update tells members from others or counts of
    classes; "nothing shown" if no attack that ran showed any of this; "no result" if none ran to its end, or if nothing
    was shown and an exception left some attack without any result.
    headline: what is worst, and what the attack was told.
    statements: by kind, in the order of `TITLES`; of each kind the most telling first.
    """

    level: Level
    headline: str
    statements: Mapping[Kind, list[str]]

    def of(self, *kinds: Kind) -> list[str]:
        return [text for kind in kinds for text in self.statements.get(kind, [])]

    def as_json(self) -> dict[str, Any]:
        """Return plain values: strings, and a list of them for each kind."""
        return {"level": self.level, "headline": self.headline} | {kind: self.of(kind) for kind in TITLES}


def verdict(leakage: pd.DataFrame, stopped: str = "") -> Verdict:
    """Return the verdict on a leakage table; columns that it lacks count as empty. stopped: the sentence of a run that
    did not finish."""
    rows = exposure_rows(leakage)
    good = rows[rows.status == "ok"]
    tested = rows[are_told(rows)]
    level = _level(rows, good, tested)
    found: dict[Kind, list[str]] = {
        "stopped": [stopped],
        "shown": _shown(good, tested),
        "tried": _tried(rows, good, tested, level),
        "broke": _broke(rows),
        "next": remedies(_exposed(good, tested)),
        "caveats": _caveats(rows, good, tested, level),
    }
    statements = {kind: [sentence(text) for text in found[kind] if text] for kind in TITLES}
    without = are_candidates(good)  # images that are nobody's private set
    where = "" if without.all() else f" in {without.sum()} of {counted(len(good), 'row')}"
    first = [f"{CANDIDATES}{where}"] if without.any() else []
    first += [_of_others(good)] if level == "nothing shown" else []
    held = _candidates(good) if level == "nothing shown" else ""
    texts = (*first, _headline(level, rows, good, tested), held, _defended(rows))
    headline = " ".join(sentence(text) for text in texts if text)
    return Verdict(level, headline, statements)


def _defended(rows: pd.DataFrame) -> str:
    """Name the one defense under which all of it was seen; "" for none, or for several, which have a sentence each."""
    defenses = rows.defense.fillna("none").unique()
    return "" if len(defenses) != 1 or defenses[0] == "none" else f"All clients trained with defense {defenses[0]!r}"


def _level(rows: pd.DataFrame, good: pd.DataFrame, tested: pd.DataFrame) -> Level:
    exposed = _exposed(good, tested)
    if "images" in exposed and worst_of(good).share >= EXPOSED and worst_of(good).sure:
        return "exposed"
    if exposed:
        return "partly exposed"
    return "no result" if good.empty or _unknown(rows) else "nothing shown"


def _exposed(good: pd.DataFrame, tested: pd.DataFrame) -> list[str]:
    """Return what is exposed: images, features, members, classes."""
    found = {
        "images": (good.share > 0).any(),
        "features": bool(features_line(good)),
        "members": tells(tested),
        "classes": (
            tested.class_counts.notna() & ~(tested.class_error > tested.floor_class_error * TELLS_CLASSES)
        ).any(),
    }
    return [name for name, there in found.items() if there]


def _shown(good: pd.DataFrame, tested: pd.DataFrame) -> list[str]:
    lines: list[str] = []
    if (good.share > 0).any():
        broken, _ = _settings(good)
        lines += [_rounds(worst_of(good), good), *_viewers(good, lost=True), broken]
    lines += [features_line(good), _held(good), _up_to(good), classes_line(tested)]
    return [*lines, *(membership_lines(tested) if tells(tested) else []), reconciled(good)]


def _tried(rows: pd.DataFrame, good: pd.DataFrame, tested: pd.DataFrame, level: Level) -> list[str]:
    """Name what showed nothing: threat models, counts that chance explains, refusals, attacks out of time."""
    lines = [*_viewers(good, lost=False), _settings(good)[1], *chance_lines(good), *_doubtful(good)]
    lines += [] if tells(tested) else membership_lines(tested)
    refused = rows[(rows.status == "failed") & _refused(rows)]
    late = rows[rows.status == "timeout"]
    return [
        *lines,
        *_gave_up(good),
        "" if level == "nothing shown" else _candidates(good),  # else the headline has it
        _capacity(tested),
        *_reasons(refused, "refused"),
        *_reasons(late, "out of time"),
    ]


def _broke(rows: pd.DataFrame) -> list[str]:
    """Name attacks that an exception ended, which is neither a result nor a refusal."""
    broke = _ended(rows, _crashed(rows), "broke")
    return [f"{text}, and what it would show there is not known: {said(own)[0][0]}" for text, own in broke]


def _ended(rows: pd.DataFrame, ended: pd.DataFrame, how: str) -> list[tuple[str, pd.DataFrame]]:
    """Say for each attack in how many of its cases it ended like this, and return these beside it."""
    return [
        (f"{_attacks(own)} {how} in {len(own)} of {counted((rows.attack == attack).sum(), 'case')}", own)
        for attack, own in ended.groupby("attack", sort=False)
    ]


def _crashed(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[(rows.status == "failed") & ~_refused(rows)]


def _refused(rows: pd.DataFrame) -> pd.Series:
    return rows.detail.str.startswith(REFUSED, na=False).astype(bool)


def _caveats(rows: pd.DataFrame, good: pd.DataFrame, tested: pd.DataFrame, level: Level) -> list[str]:
    """Say what was assumed and what was not tried."""
    skipped = rows[rows.status == "skipped"]
    others = "" if level == "nothing shown" else _of_others(good)  # else the headline has it
    fed = AS_FED if (~good.scored.astype(bool) & (good.share > 0)).any() else ""
    lines = [others, fed, *_assumed(good), *_reasons(skipped, "not tried"), *_not_tried(rows), untold(tested)]
    more = "what no attack took may still be there: another attack, more rounds or more knowledge may find it"
    return [*lines, more] if level == "nothing shown" else lines


def _of_others(good: pd.DataFrame) -> str:
    """Say where an attack returned images that are very likely right, none of them a private one that was given: then
    these may be another client's, or not what it trained on; "" for nowhere."""
    vouched = (good.num_vouched > 0) & likely_right(good) & ~(good.num_features > 0)
    rows = good[good.scored & (good.share == 0) & vouched]
    if rows.empty:
        return ""
    row = rows.sort_values("relative_residual").iloc[0]  # `span` counts none where it reads pixels
    left = "" if pd.isna(row.relative_residual) else f" and {_left(row)}"
    return (
        f"attack {row.attack!r} returned {counted(row.num_reconstructed, 'image')} of {whose(row.client)} in round "
        f"{row['round']} that passed its own test{left}, and "
        f"{'it is' if row.num_reconstructed == 1 else 'they are'} none of the private images that were given: check "
        "whose these are, and that they are what was trained on"
    )


def _reasons(own: pd.DataFrame, words: str) -> list[str]:
    return [
        f"attack {attack!r} {words} in {counted(n, 'case')}: {text}"
        for attack, rows in own.groupby("attack", sort=False)
        for text, n in said(rows)
    ][:MOST]


def _gave_up(good: pd.DataFrame) -> list[str]:
    """Name attacks that looked at an update and returned nothing, no features either."""
    nothing = (good.num_reconstructed == 0) & ~(good.num_features > 0)
    own = good[good.detail.str.contains(GAVE_UP, regex=False, na=False) & nothing]
    if own.empty:
        return []
    reasons = said(own.assign(detail=own.detail.str.extract(f"{GAVE_UP}([^;]*)", expand=False)))
    return [
        f"{_attacks(own)} returned nothing in {len(own)} of {counted(good.attack.isin(own.attack).sum(), 'case')}, "
        "which is a refusal and no safety: " + "; ".join(text for text, _ in reasons[:2])
    ]


def _capacity(good: pd.DataFrame) -> str:
    """Name the client that has most images beyond those that its update has room for; "" if none has."""
    rows = good[good.num_private > good.capacity]
    if rows.empty:
        return ""
    row = rows.loc[(rows.num_private / (rows.capacity + 1)).idxmax()]
    return (
        f"the ranks of the update of {whose(row.client)} have room for {counted(row.capacity, 'image')} of "
        f"{row.num_private:.0f}, for attacks that read row spaces, as 'span': no promise, as others are not bound by it"
    )


def _assumed(good: pd.DataFrame) -> list[str]:
    """Return the remarks of attacks and scores, without refusals."""
    shown = untold(good)  # it stands in the caveats by itself
    remarks = [(text, count) for text, count in said(good) if GAVE_UP not in text and text != shown]
    lines = [f"in {counted(count, 'row')}: {text}" for text, count in remarks[:MOST]]
    more = len(remarks) - MOST
    return [*lines, f"{counted(more, 'more remark')} in the column `detail`"] if more > 0 else lines


def _not_tried(rows: pd.DataFrame) -> list[str]:
    """Name our attacks and threat models without a row; adaptive attacks, if there is a defense and none ran; and
    counts of classes, where images are too many for anything else and what these take is not known. An attack under
    another label counts if its name is in the label."""
    labels = " ".join(map(str, rows.attack.unique()))
    own = [name for name, attack in ATTACKS.items() if attack.__module__.startswith(OURS)]  # others are a user's
    ours = sorted({*own} - {*BASELINES})
    attacks = [name for name in ours if name not in labels]
    seen = " ".join(map(str, rows.threat_model.unique()))  # server_history is a history
    views = [name for name in THREAT_MODELS if name not in seen and "_" not in name]
    lines = [f"attack{'s' * (len(attacks) > 1)} {listed(attacks)}"] if attacks else []
    lines += [f"threat model{'s' * (len(views) > 1)} {listed(views)}"] if views else []
    if (rows.defense.fillna("none") != "none").any() and not rows.adaptive.eq(True).any():
        lines.append("an attack told the defense (`adaptive: true`, where there is anything to tell)")
    asked = rows.class_counts.notna() | rows.detail.str.contains("classes: ", regex=False, na=False)
    if (rows.num_private > rows.capacity).any() and not asked.any():
        lines.append("how many images each class has (of SGD, with `learning_rate` and `steps` among what is known)")
    return [f"not tried: {'; '.join(lines)}"] if lines else []


def _attacks(rows: pd.DataFrame) -> str:
    labels = [repr(label) for label in dict.fromkeys(rows.attack)]
    return f"attack{'s' * (len(labels) > 1)} {listed(labels)}"


def _unknown(rows: pd.DataFrame) -> str:
    """Name the attacks that an exception left without any result; "" for none."""
    lost = _crashed(rows[~rows.attack.isin(rows.attack[rows.status == "ok"])])
    return f"Not known is what {_attacks(lost)} would show, which broke" if len(lost) else ""


def _headline(level: Level, rows: pd.DataFrame, good: pd.DataFrame, tested: pd.DataFrame) -> str:
    """Say who is exposed worst, when, to whom, by which attack, with which knowledge, and how many images."""
    exposed = _exposed(good, tested)
    if "images" in exposed:
        worst = worst_of(good)
        subject = "All clients together are" if worst.client == ALL else f"Client {worst.client} is"
        return (
            f"{subject} exposed worst{in_this_setting(worst, good)}{_no_less(worst, good)}: in round {worst['round']} "
            f"{viewer(worst.threat_model)} {_images(worst)}. The attack was {told(worst)}"
        )
    if "members" in exposed:
        return membership_headline(good, tested)
    if exposed:
        return f"{none_recovered(good)}, but {features_line(good) or classes_line(tested)}"
    if level == "no result":
        unknown = _unknown(rows)
        return f"{unknown}; no other attack showed anything" if unknown and len(good) else NOTHING_KNOWN
    labels = [repr(label) for label in dict.fromkeys(good.attack)]
    late = _ended(rows, rows[rows.status == "timeout"], "ran out of time")
    ended = "; ".join(text for text, _ in [*_ended(rows, _crashed(rows), "broke"), *late])
    means = f"which does not mean that nothing leaks{f': {ended}' if ended else ''}"
    if unbeaten := most_unbeaten(good):
        return f"No more than chance was shown to leak by {listed(labels)} ({unbeaten} at most), {means}"
    return f"Nothing was shown to leak by {listed(labels)}, {means}"


def _no_less(worst: pd.Series, good: pd.DataFrame) -> str:
    """Name the other clients of the same setting that lose as large a share of their images."""
    own = good[(good.setting == worst.setting) & ~good.client.isin((ALL, worst.client))]
    shares = own.groupby("client").share.max()
    others = [str(client) for client in shares.index[shares >= worst.share]]
    if worst.client == ALL or not others:
        return ""
    if len(others) > MOST:
        return f", and {len(others)} others as badly"
    return f", and client{'s' * (len(others) > 1)} {listed(others)} as badly"


def _images(row: pd.Series) -> str:
    """Say what an attack has of a client's images, with a verb."""
    by = f"by attack {row.attack!r}"
    if not row.scored:
        shows = " that the update shows" if row.of == row.num_inferred else ""
        shows = ", which is a guess," if row.guessed else shows
        shows += f", views or blends of {row.num_private:.0f} private ones," if row.best > row.num_private else ""
        of = "" if pd.isna(row.of) else f" of {row.of:.0f}{shows}"
        return f"finds {counted(row.best, 'image')}{of} ({_how_sure(row)}) {by}"
    owners = "" if row.client == ALL else "its "
    how = f",{loosely}" if (loosely := loosely_counted(row)) else ""
    return f"recovers {row.best:.0f} of {owners}{counted(row.num_private, 'private image')} {by}{how}"


def _how_sure(row: pd.Series) -> str:
    """Say how likely images are right without the truth: by the attack's own test, and by the share they explain."""
    left = "" if pd.isna(row.relative_residual) else _left(row)
    if row.num_vouched > 0 and row.sure:
        passed = "very likely right: they passed the attack's own test"
        return f"{passed} and {left}" if left else passed
    if not left:
        return "how sure is not known: the true images are not"
    return f"{'very likely right' if row.sure else 'doubtful'}: they {left}"


def _left(row: pd.Series) -> str:
    return f"leave {row.relative_residual:.2g} of the update unexplained"


def _doubtful(good: pd.DataFrame) -> list[str]:
    """Name attacks whose images explain little of the update, if the truth is not known."""
    rows = good[~good.scored & (good.num_reconstructed > 0) & ~good.sure.astype(bool) & ~good.attack.isin(BASELINES)]
    return [
        f"attack {attack!r} returned images that leave {of.relative_residual.min():.2g} of an update unexplained or "
        f"more: they may be noise, and are not counted{OF_FEW if (of.determined < DETERMINED).any() else ''}"
        for attack, of in rows.groupby("attack")
    ]


def _rounds(worst: pd.Series, good: pd.DataFrame) -> str:
    """Say in which rounds the client that is exposed worst loses images to that threat model."""
    same = (good.client == worst.client) & (good.threat_model == worst.threat_model)
    own = good[same & (good.setting == worst.setting)]
    attacked, lost = own["round"].nunique(), own[own.share > 0]["round"]
    if attacked < 2:
        return ""
    return (
        f"{whose(worst.client)} {'lose' if worst.client == ALL else 'loses'} images to {viewer(worst.threat_model)} in "
        f"{rounds(lost)}, of {attacked} rounds attacked"
    )


def _viewers(good: pd.DataFrame, lost: bool) -> list[str]:
    """Say for each threat model how many clients lose images, and the most that one loses. lost: whether about threat
    models that get images, or about the others."""
    lines = []
    for threat_model, own in good.groupby("threat_model", sort=False):
        worst, clients = worst_of(own), own[own.client != ALL]
        if (worst.share > 0) != lost:
            continue
        if not lost:
            unbeaten = most_unbeaten(own)
            nothing = f"recovers no more than chance ({unbeaten} at most)" if unbeaten else "recovers no image"
            lines.append(f"{viewer(threat_model)} {nothing if unbeaten or own.scored.all() else 'has no sure image'}")
            continue
        losing, attacked = clients[clients.share > 0].client.nunique(), clients.client.nunique()
        of = at_worst(worst) if worst.scored else counted(worst.best, "image")
        where = f"{of} from {whose(worst.client)} in round {worst['round']} by {worst.attack!r}"
        count = f"has images of {losing} of {counted(attacked, 'client')}, at worst " if losing else "has "
        lines.append(f"{viewer(threat_model)} {count}{where}")
    return lines


def _settings(good: pd.DataFrame) -> tuple[str, str]:
    """Return two sentences on several defenses, or points of a sweep: (which were broken, which were not)."""
    several = good.defense.nunique() > 1
    shares = good.groupby(
        good.defense.replace("none", "no defense") if several else good.setting, sort=False
    ).share.max()
    if len(shares) < 2:
        return "", ""
    order = shares.sort_values(ascending=False, kind="stable")
    broken = [f"{name} ({percent(share)})" for name, share in order.items() if share > 0]
    kept = [str(name) for name, share in order.items() if share == 0]
    more = "more than chance has" if most_unbeaten(good[good.share == 0]) else "an image"
    return (
        f"of the client that loses most, some attack has images at {_some(broken)}" if broken else "",
        f"no attack has {more} at {_some(kept)}" if kept else "",
    )


def _some(names: list[str]) -> str:
    more = len(names) - MOST_SETTINGS
    return "; ".join(names[:MOST_SETTINGS]) + (f"; and at {more} more" if more > 0 else "")


def _held(good: pd.DataFrame) -> str:
    """Say which private images an attack held back."""
    doubted = (good.held - good.recovered).where(good.scored)
    if not (doubted > 0).any():
        return ""
    row = good.loc[doubted.idxmax()]
    among = f", among {counted(row.num_held, 'candidate')}" if row.num_held > 0 else ""  # others return more than N
    return (
        f"attack {row.attack!r} returned {row.recovered:.0f} of {row.num_private:.0f} images of {whose(row.client)}"
        f"{in_this_setting(row, good)} in round {row['round']} and held back {row.held - row.recovered:.0f} that it "
        f"was not sure of{among}: the attacker has {row.held:.0f}{NO_NULL if pd.isna(row.null_held_p) else ''}"
    )


def _candidates(good: pd.DataFrame) -> str:
    """Say how many candidates an attack held back that nobody compared with the truth."""
    rows = good[~good.scored & (good.num_held > 0)]
    if rows.empty:
        return ""
    row = rows.loc[rows.num_held.idxmax()]
    held = f"attack {row.attack!r} held back {counted(row.num_held, 'candidate')} for {whose(row.client)}"
    return f"{held} in round {row['round']}, as it was not sure of them: an eye may know some, in reconstructions/"


def _up_to(good: pd.DataFrame) -> str:
    """Say which images are recovered except for an offset and a gain."""
    more = (good.recovered_affine - good.recovered).where(good.scored & (good.share > 0))
    if not (more > 0).any():
        return ""
    row = good.loc[more.idxmax()]
    vouches = row.attack in ATTACKS and ATTACKS[row.attack].vouches  # others miss the brightness by themselves
    wrong = vouches and row.recovered < MOSTLY * row.recovered_affine and "pixel_mean" in str(row.knowledge)
    return (
        f"in round {row['round']} {row.attack!r} has {row.recovered_affine:.0f} of {row.num_private:.0f} images of "
        f"{whose(row.client)} up to brightness and contrast, {row.recovered:.0f} as they are: an eye knows such images"
        + ("; a wrong mean or deviation does just that: are --mean and --std right?" if wrong else "")
    )
