"""What is kept of an experiment: data.csv; experiment.json, how it was made; claims.json, what its data decide.

`fedspill paper --records FOLDER`: decide everything once more from the data, and write the page of all of it.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from attacks.interface.errors import InputError, counted
from simulator.paper.claims import Claim, judge, load_claims
from simulator.paper.experiment import EXPERIMENTS, get_experiment
from simulator.results.disk import write_atomically
from simulator.run_errors import RunError

DATA, CLAIMS, MADE, FIGURE = "data.csv", "claims.json", "experiment.json", "figure.png"
SIZES = {  # columns of data.csv that say how large an experiment is, and what they count
    "num_private": "images",
    "train": "images",
    "candidates": "candidates",
    "width": "width",
    "multiplier": "multiplier",
}
COLUMNS = ["experiment", "claim", "the paper", "measured here", "effect, with its interval", "n", "verdict"]
COLUMNS += ["size", "command"]
HEAD = """# Both papers, claim by claim

{summary}

    fedspill paper --records docs/records/paper

writes this page from the data of `docs/records/paper/`, a folder an experiment and data set, and ends with 1 where
a recorded verdict is not what its data give. The papers: Loo, Hasani, Lechner, Amini, Rus (ICLR 2024); Liu, Zhu, Belkin
(NeurIPS 2020) and the rebuttal of its reviews, which `hessian` measures. `ntk` as published, `ntk` today and `span` at
the settings of figure 2, on one page: [the headline](records/headline.md).

*n*: seeds, none of which chose sizes, attacks or rules. Each draws images, networks and attacks anew, and the rule is
asked of each alone. A claim holds, or does not, where a one-sided sign test over the seeds says so (p < 0.05), and is
undecided otherwise. *Effect*: the statistic that the rule compares, mean over seeds with Student's interval of 95 %;
or the share of seeds in which the rule is true, with the exact one. Identities are arithmetic and have neither. *Size*:
the profile and what was swept; `quick` is far below the paper's size, which is `full`. *Command*: repeats it; MNIST
stands for a folder with that data set. What lies behind a verdict: [the notes](records/paper.md).
"""


@dataclasses.dataclass(frozen=True)
class Made:
    """How an experiment was made.

    digest: of all its settings.
    command: repeats it.
    data: the data set.
    around: when, and with which versions.
    """

    experiment: str
    profile: str
    digest: str
    command: str
    data: str
    around: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Made":
        """Read experiment.json. Raise InputError if it says something else, as one of an earlier version does."""
        try:
            return cls(**json.loads((folder / MADE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{str(folder / MADE)!r} does not say how an experiment was made: {error}") from None

    def write(self, folder: Path) -> None:
        write_atomically(folder / MADE, json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n")


def read_data(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / DATA, low_memory=False)


def decide(folder: Path) -> list[Claim]:
    """Judge the claims of an experiment by its data.csv."""
    made, data = Made.read(folder), read_data(folder)
    experiment, seeds = get_experiment(made.experiment), data.seed.nunique() if "seed" in data else 0
    statistics = {"seeds": counted(seeds, "seed") if seeds else "", **experiment.statistics(data)}
    claims = judge(load_claims(made.experiment), statistics, experiment.by_seed(data), made.profile)
    on = f" (on {made.data})" if made.data else ""
    return [dataclasses.replace(claim, measured=claim.measured + on) for claim in claims]


def write_claims(folder: Path, claims: Iterable[Claim]) -> None:
    content = json.dumps([dataclasses.asdict(claim) for claim in claims], indent=1, ensure_ascii=False)
    write_atomically(folder / CLAIMS, content + "\n")


def draw_figure(folder: Path, resolution: int) -> None:
    """Write figure.png, drawn from data.csv. resolution: dots an inch."""
    data = read_data(folder)
    figure = get_experiment(Made.read(folder).experiment).draw(data)
    figure.savefig(folder / FIGURE, dpi=resolution, bbox_inches="tight")
    plt.close(figure)


def check_records(records: Path, names: Iterable[str]) -> tuple[dict[str, list[Claim]], RunError | None]:
    """Judge every recorded experiment by its data, and write the page, FOLDER/../../paper.md for FOLDER =
    docs/records/paper. Return (the claims, an error that names those recorded otherwise). A folder without claims.json
    or without its figure is given it.

    names: of experiments, in the order of the page. Raise InputError if the folder holds no record, or something else.
    """
    order = list(names)
    made = {path.name: experiment_of(path) for path in records.iterdir()} if records.is_dir() else {}
    recorded = sorted((name for name in made if made[name] in order), key=lambda name: (order.index(made[name]), name))
    if not recorded:
        raise InputError(f"{str(records)!r} holds no records: one folder an experiment, such as docs/records/paper")
    claims = {name: decide(records / name) for name in recorded}
    wrong = []
    for name, found in claims.items():
        path = records / name / CLAIMS
        if not path.exists():
            write_claims(path.parent, found)
        if not (path.parent / FIGURE).exists():
            draw_figure(path.parent, 70)
        said, now = json.loads(path.read_text(encoding="utf-8")), [dataclasses.asdict(claim) for claim in found]
        both = itertools.zip_longest(said, now)
        wrong += [f"{name}: {(claim or own)['claim']}" for own, claim in both if claim != own]
    missing = [name for name in order if name not in made.values()]
    write_atomically(records.resolve().parents[1] / "paper.md", page(records, claims, missing))
    return claims, RunError(f"recorded otherwise than the data say: {'; '.join(wrong)}") if wrong else None


def experiment_of(folder: Path) -> str:
    """Return the experiment that a record is of, whose folder may say more behind its name, as figure2_cifar10 does.
    Raise InputError if the folder is named after another experiment."""
    name = get_experiment(folder.name).name if folder.name in EXPERIMENTS else Made.read(folder).experiment
    if not f"{folder.name}_".startswith(f"{name}_"):
        raise InputError(f"{str(folder)!r} is a record of {name!r}: name it {name}, or {name}_ and its data or profile")
    return name


def page(records: Path, claims: dict[str, list[Claim]], missing: list[str]) -> str:
    """Make the page in Markdown: a row for each claim, the figures, and what has no record yet."""
    rows = [COLUMNS, ["---"] * len(COLUMNS)]
    for name, found in claims.items():
        made = Made.read(records / name)
        size = ", ".join(filter(None, [made.profile, made.data, size_of(read_data(records / name))]))
        rows += [[*page_row(made.experiment, claim, size), f"`{made.command}`"] for claim in found]
    title_of = {name: titles()[experiment_of(records / name)] for name in claims}
    pictures = [f"`{name}` ![{title}](records/paper/{name}/{FIGURE})" for name, title in title_of.items()]
    pictures += [""] * (-len(pictures) % 2)
    gallery = [["figures", ""], ["---"] * 2, *map(list, zip(pictures[::2], pictures[1::2], strict=True))]
    left = f"\nWithout a record yet: {', '.join(f'`{name}`' for name in missing)}.\n" if missing else ""
    summary = summarized([claim for found in claims.values() for claim in found])
    return f"{HEAD.format(summary=summary)}\n{table(rows)}\n{left}\n{table(gallery)}\n"


def summarized(claims: list[Claim]) -> str:
    """Say how many claims hold, and which do not: "Of 9 claims ... 6 hold, 1 does not (*wider is better*) ..."."""
    hold, undecided = sum(claim.holds is True for claim in claims), sum(claim.holds is None for claim in claims)
    failed = [claim.claim for claim in claims if claim.holds is False]
    names = f" ({'; '.join(f'*{name}*' for name in dict.fromkeys(failed))})" if failed else ""
    return (
        f"Of {counted(len(claims), 'claim')}, each counted once for a data set and a size, {hold} hold, "
        f"{len(failed)} do not{names}, and {undecided} are undecided."
    )


def table(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


def page_row(name: str, claim: Claim, size: str) -> list[str]:
    said = f"{claim.paper or 'nothing'} ({claim.source})"
    measured = claim.measured.partition("; holds where ")[0]
    n = "identity" if claim.identity else str(claim.n)
    return [f"`{name}`", claim.claim, said, measured, str(claim.interval or "–"), n, claim.verdict, size]


def size_of(data: pd.DataFrame) -> str:
    """Return the size of an experiment, as "20 to 160 images, width 256 to 512"."""
    words = []
    for column, name in SIZES.items():
        values = data[column].dropna() if column in data else pd.Series(dtype=float)
        if len(values) and values.max() > 0:
            ends = " to ".join(f"{value:g}" for value in dict.fromkeys([values.min(), values.max()]))
            words.append(f"{name} {ends}" if name in ("width", "multiplier") else f"{ends} {name}")
    return ", ".join(words)


def titles() -> dict[str, str]:
    """Return the title of every experiment by name, in the order of the paper."""
    return {name: EXPERIMENTS[name].title for name in sorted(EXPERIMENTS, key=natural)}


def natural(name: str) -> tuple[bool, str, int]:
    """Return a key to sort names by: figure2 before figure10, figures before all others."""
    digits = "".join(filter(str.isdigit, name))
    return (not name.startswith("figure"), name.rstrip("0123456789"), int(digits or 0))
