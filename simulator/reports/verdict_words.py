"""The words of a verdict: rows of the leakage table as an engineer would say them."""

import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby

import pandas as pd

from attacks import Knowledge
from simulator.results.keys import ALL, owner
from simulator.rundir.exposure_rows import COUNTS, PARTICIPANTS

ABOUT = Knowledge.about()
OF_PIXELS = {name: ABOUT[name].words for name in PARTICIPANTS}
REPORTED = "the number of images (num-examples), which a server of FedAvg knows"
SERVERS = ("server", "server_history")  # who see what clients report; who sees a client by itself is one
VIEWERS = {
    "server": "the server",
    "observer": "an observer of the global model",
    "history": "whoever keeps all rounds (history)",
    "server_history": "the server with all rounds kept (history)",
}
PLAIN = (  # (what `detail` says, how a verdict says it)
    (r"pixel_mean is unknown: images are as the network was fed them, nothing was added",
     "the mean of the pixels is not known, and nothing added: if clients subtracted one, every image is off in "
     "brightness and counts as not recovered, though an eye would know it; grant `pixel_mean`"),
    (r".*?(\d+) (?:private )?images a guess|.*: (\d+) private images is a guess.*",
     "the update shows the number of private images badly, and {} is a guess: too few or too many images may have been "
     "looked for; `num_private` grants the number"),
    (r"(\d+) features stand for (\d+) pixels: .*",
     "{} features stand for {} pixels, so that other images with the same features may have been returned instead"),
    (r"the floor has (\d+) of the (\d+) public images that it needs: (.*)",
     "the floor has {} of the {} public images that it needs, one for each returned, and so is too weak; {}"),
)  # fmt: skip
# measure: (words for its looser sense, words for the sense of `recovered`)
LOOSER = {name: (counts.how, counts.strictly) for name, counts in COUNTS.items() if counts.how}
LONGEST = 346  # letters of one reason, with the words that say where the rest is
ASIDE = r"; (?=(?:membership|classes|capacity|update): )"  # in `detail` of a refusal: what could not be measured either
REFUSED = "InputError"  # how a failed row's `detail` begins where the attack itself refused
NUMBER = r"(?<![\w.])(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?!\w)"  # not of a name, as in layer2


def told(row: pd.Series) -> str:
    """Say what the column `knowledge` of a row grants, as the end of a sentence. What the protocol alone tells is
    called so: the mean and the range of the pixels, and to a server the number of images, by which FedAvg weights."""
    knowledge = row.knowledge
    fields = json.loads(knowledge) if isinstance(knowledge, str) and knowledge else {}
    reported = "num_private" in fields and (row.client != ALL or row.threat_model in SERVERS)
    known = [REPORTED] if reported else []
    if usual := [words for name, words in OF_PIXELS.items() if name in fields]:
        known.append(f"{listed(usual)} of the pixels, which every participant knows")
    named = {*PARTICIPANTS, *(["num_private"] if reported else [])}
    more = [(ABOUT[name].words if name in ABOUT else name) or name for name in fields if name not in named]
    said = ", and ".join([listed(more), *known] if more else known) or "nothing"
    return f"told {said}" if more or not known else f"told nothing but {said}"


def told_briefly(row: pd.Series) -> str:
    """Do as `told`, for the cell of a table."""
    return re.sub(r", which [^,]*", "", told(row)).removeprefix("told ")


def viewer(threat_model: str) -> str:
    return VIEWERS.get(threat_model, f"the threat model {threat_model!r}")


def whose(client: int) -> str:
    return owner(client, "all clients of a round together")


def trainer(client: int) -> str:
    return owner(client, "any client of the round")


def listed(names: Sequence[str]) -> str:
    """List names as "a", "a and b" or "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def rounds(numbers: Iterable[int]) -> str:
    """Name rounds as "round 1" or "rounds 1–3 and 5"."""
    ordered = sorted(set(numbers))
    by_run = groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])  # same if consecutive
    runs = ([number for _, number in run] for _, run in by_run)
    ends = (run if len(run) < 3 else [f"{run[0]}–{run[-1]}"] for run in runs)
    return f"round{'s' * (len(ordered) > 1)} {listed([str(end) for run in ends for end in run])}"


def said(rows: pd.DataFrame) -> list[tuple[str, int]]:
    """Return (remark of `detail` in plain words, number of rows), once for remarks that differ in numbers alone."""
    found: dict[str, list[str]] = {}
    for detail, status in zip(rows.detail.fillna("").str.removeprefix(f"{REFUSED}: "), rows.status, strict=True):
        for remark in detail.split("; ") if status == "ok" else re.split(ASIDE, detail)[:1]:
            words = plain(remark)
            found.setdefault(re.sub(r"[\d.]+(e-?\d+)?", "#", words), []).append(words)
    return [(_merged(texts), len(texts)) for texts in found.values() if texts[0]]


def _merged(texts: Sequence[str]) -> str:
    """Return one text for texts that differ in numbers alone: 20, 200 and 60 images are 20 to 200. Where they differ in
    a name, the first."""
    if len(set(texts)) > 1:  # classes are names, not amounts
        texts = [re.sub(r"their classes: [\d, ]+\d", "their classes, in the column `detail`", text) for text in texts]
    parts = [re.split(NUMBER, text) for text in dict.fromkeys(texts)]
    if len({tuple(own[::2]) for own in parts}) > 1:
        return texts[0]
    said = []
    for place, own in enumerate(zip(*parts, strict=True)):  # words and numbers take turns
        numbers = sorted(dict.fromkeys(own), key=float) if place % 2 else [own[0]]
        said.append(" to ".join(dict.fromkeys((numbers[0], numbers[-1]))))
    return "".join(said)


def plain(remark: str) -> str:
    """Return a remark of an attack in plain words if there are any, else as it stands, cut if it is too long."""
    for pattern, words in PLAIN:
        if match := re.fullmatch(pattern, remark):
            return words.format(*(group for group in match.groups() if group is not None))
    return textwrap.shorten(remark, LONGEST, placeholder=" (more in column `detail`)")


def features_line(good: pd.DataFrame) -> str:
    """Say where an attack has the features of the most images, if of more than it recovers; else ""."""
    rows = good[good.num_features.fillna(0) > good.best]
    if rows.empty:
        return ""
    row = rows.loc[rows.num_features.idxmax()]
    of = "" if pd.isna(row.num_private) else f" of {row.num_private:.0f}"
    features = f"the features (what the network makes of an image) of {row.num_features:.0f}{of} images"
    if row.num_features > row.num_private:
        features = f"{row.num_features:.0f} vectors that the network made of parts of the {row.num_private:.0f} images"
    return (
        f"{viewer(row.threat_model)} has {features} of {whose(row.client)} in round {row['round']} by "
        f"{row.attack!r}: nobody checked them; a stronger attack may turn them into images"
    )


MOST_CLASSES = 5  # that a verdict names


def classes_line(good: pd.DataFrame) -> str:
    """Say how many images of each class an update tells: of the client whose counts are furthest beyond a guess,
    without the truth of the first. "" where no counts are better than equal ones."""
    rows = good[good.class_counts.notna() & ~(good.class_error >= good.floor_class_error)]
    if rows.empty:
        return ""
    row = rows.loc[(rows.class_error - rows.floor_class_error).fillna(0.0).idxmin()]
    there = sorted(((count, name) for name, count in json.loads(row.class_counts).items() if count), reverse=True)
    named = listed([f"{count} of class {name}" for count, name in there[:MOST_CLASSES]])
    more = ", the most frequent ones" if len(there) > MOST_CLASSES else ""
    how = "which nobody checked against the truth"
    if pd.notna(row.class_error):
        how = f"{percent(row.class_error)} of the images in a wrong class ({percent(row.floor_class_error)} by a guess)"
    return (
        f"the update of {whose(row.client)} in round {row['round']} tells how many images it has of each class: "
        f"{named}{more}; {how}"
    )


def at_worst(row: pd.Series) -> str:
    """Say how many images of a row of `exposure_rows` are exposed, by the largest count, and by `recovered`, too, if
    it is smaller: 66 of 72 up to brightness and contrast (54 as they are)."""
    count = f"{row.best:.0f}" + ("" if pd.isna(row.of) else f" of {row.of:.0f}")
    count += " (a guess)" if row.guessed and not pd.isna(row.of) else ""
    return f"{count}{loosely_counted(row)}" if row.scored else count


def loosely_counted(row: pd.Series) -> str:
    """Say how the largest count of a row is looser than `recovered`, and how many that is; "" if it is not larger."""
    if row.measure not in LOOSER or not row.best > row.recovered:
        return ""
    how, strictly = LOOSER[row.measure]
    return f" {how} ({row.recovered:.0f} {strictly})"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def sentence(text: str) -> str:
    """Return a text with a capital at its beginning and a full stop at its end."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def first_sentence(doc: str | None) -> str:
    """Return what a docstring says first."""
    text = " ".join((doc or "").split("\n\n")[0].split())
    return re.split(r"(?<!et al)(?<!sec)\. ", text)[0].rstrip(".") + "."


# Defenses in our benchmark, against the server: the share of the images that the strongest attack has, the AUC of
# membership (both are 1.00 undefended), and the percentage points that accuracy gains. The share is the larger one of
# docs/records/defenses.md, returned or held over five seeds, and of tests/benchmarks/recorded_defenses.csv, by every
# count of a verdict at one seed. Those that protect and cost at most 10 points, the cheapest first.
REMEDIES = {
    "random_k": (0.65, 0.71, -0.3),
    "personal_first": (0.23, 1.0, -1.2),
    "power_sgd": (0.05, 0.67, -7.7),
}
# Likewise the share of the images that counts off the first round have in a wrong class (docs/records/
# label_counts_defended.md; 0.13 undefended, 0.53 by equal counts).
OF_CLASSES = {"personal_layers": (0.47, -0.5), "random_k": (0.43, -1.4)}
CALLED = {"personal_first": "`personal_layers` of the first layer"}  # rows with options of their own
AGAINST = {  # what is exposed: what hinders it, what lets least through first
    "images": ("power_sgd", "personal_first"),
    "features": ("power_sgd", "random_k"),
    "members": ("power_sgd", "random_k"),
    "classes": ("personal_layers", "random_k"),
}
FIGURES = {
    "images": "share of images left in our benchmark (undefended 1.00)",
    "features": "which our benchmark did not measure, share of images left there (undefended 1.00)",
    "members": "AUC left in our benchmark (undefended 1.00)",
    "classes": "share of images counted in a wrong class in our benchmark (undefended 0.13, by a guess 0.53)",
}
HOW = (
    "these figures are of an MLP on digits, one to ten seeds. For another network or other data they only say which "
    "defense to try first: `fedspill benchmark` compares them, and docs/howto/defense.md says how to choose, and what "
    "differential privacy costs"
)


def remedies(exposed: Sequence[str]) -> list[str]:
    """Say what to do next. exposed: what leaks."""
    return [*map(_remedy, exposed), HOW] if exposed else []


def _remedy(what: str) -> str:
    table, place = OF_CLASSES if what == "classes" else REMEDIES, int(what == "members")
    said = [
        f"{CALLED.get(name, f'`{name}`')} {table[name][place]:.2f} at {table[name][-1]:+.1f} points of accuracy"
        for name in AGAINST[what]
    ]
    return f"against exposed {what}, {FIGURES[what]}: {'; '.join(said).replace('-', '−')}"
