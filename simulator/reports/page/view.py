"""Render a page on a run, an audit or a benchmark: a `Page` of plain values, in the templates beside this file.

The templates are HTML, CSS and JavaScript for jinja2, and get plain values only. Their names end in .md because
`flwr run` sends only files of code and text to its servers.
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
    """A private image, if it is known, above its reconstruction, and a note below."""

    private: Tile | None
    guess: Tile
    note: str


@dataclass(frozen=True)
class Picture:
    """A strip of pairs. label: of the upper images. groups: pairs that stay side by side on a narrow screen."""

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
    """Clients beside the one exposed worst: their pictures, the names of those without a counted image, and a line on
    those for whom there is no room."""

    pictures: tuple[Picture, ...] = ()
    not_counted: tuple[str, ...] = ()
    not_shown: str = ""


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of the page, in its order; empty parts are left out.

    kind: run, audit or benchmark. summary: one line below the title. worst: the client exposed worst. exposures: the
    worst attack of each threat model. tables: further ones, folded. legend: meanings of their columns. repeat: the
    command that does it again; repeat_needs: what it needs. source: the scenario or audit.yaml; source_name: its name.
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
    """Show text between backticks as code."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))


ENVIRONMENT.filters["code"] = in_code


def render(page: Page) -> str:
    """Return one HTML document with styles, script and images inside."""
    return ENVIRONMENT.get_template("page.html.md").render(page=page, titles=TITLES)
