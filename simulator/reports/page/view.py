"""A page on a run, an audit or a benchmark: a `Page` of plain values, filled into the templates beside this file.

The templates get these values and nothing else, neither tables nor tensors. They are HTML, CSS and JavaScript for
jinja2. Their names end in .md because `flwr run` sends no other endings to its servers than those of code and text.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from simulator.reports.tables import Grid
from simulator.reports.verdict import TITLES, Verdict


@dataclass(frozen=True)
class Tile:
    """One image. source: a data URI; alt: what is seen."""

    source: str
    alt: str


@dataclass(frozen=True)
class Pair:
    """A private image, where somebody has it, above what was made of it, and what is written below."""

    private: Tile | None
    guess: Tile
    note: str


@dataclass(frozen=True)
class Picture:
    """A strip of pairs. label: what the upper images are. groups: pairs that stay side by side on a narrow screen."""

    title: str
    caption: str
    label: str
    groups: tuple[tuple[Pair, ...], ...]


@dataclass(frozen=True)
class Chart:
    """A figure. width: in CSS pixels, at which its letters are readable."""

    title: str
    caption: str
    alt: str
    source: str
    width: int


@dataclass(frozen=True)
class Facts:
    """Names and values under one heading: the scenario, versions, the machine."""

    title: str
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Others:
    """Clients beside the one exposed worst: their pictures, the names of those of whom no image counts, and a line that
    says how many more there are than there is room for."""

    pictures: tuple[Picture, ...] = ()
    not_counted: tuple[str, ...] = ()
    not_shown: str = ""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Everything on the page, in its order; what is empty is left out with its heading.

    kind: run, audit or benchmark.
    summary: one line below the title.
    worst: the pictures of the client exposed worst.
    exposures: who can do it and knowing what.
    tables: everything else in rows, folded.
    legend: columns of these and what they mean.
    repeat: the command that does it again; repeat_needs: what it needs.
    source: the file that says what was done, as text; source_name: what it is called.
    """

    kind: str
    title: str
    summary: str
    verdict: Verdict
    worst: Picture | None
    exposures: Grid
    utility: Grid | None
    charts: tuple[Chart, ...]
    others: Others
    facts: tuple[Facts, ...]
    tables: tuple[Grid, ...]
    legend: tuple[tuple[str, str], ...]
    repeat: str
    repeat_needs: str
    source_name: str
    source: str


FOLDER = Path(__file__).parent
ENVIRONMENT = Environment(
    loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


def in_code(text: str) -> Markup:
    """What stands between backticks as code."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))


ENVIRONMENT.filters["code"] = in_code


def render(page: Page) -> str:
    """One HTML document that needs nothing else: styles, script and images are inside."""
    return ENVIRONMENT.get_template("page.html.md").render(page=page, titles=TITLES)
