"""report.html of a run or an audit, and of a benchmark, which compares defenses and then has all that a run's page has.

`write_report` and `write_benchmark_report` draw the figures and write the page: plain values by name, in the templates
beside this file. The names of these (HTML, CSS and JavaScript for jinja2) end in .md because `flwr run` sends
only files of code and text to its servers.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from inspect import getdoc
from pathlib import Path

import pandas as pd
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from attacks.interface.errors import InputError, one_line
from clients.defenses import DEFENSES
from simulator.reports import tables
from simulator.reports.benchmark_advice import benchmark_verdict
from simulator.reports.benchmark_figures import draw_benchmark
from simulator.reports.drawing import Drawn
from simulator.reports.figures import draw_figures
from simulator.reports.page.pictures import (
    OTHERS,
    SCENARIO,
    WORST,
    Values,
    asked_for,
    audit_command,
    chart_of,
    facts_of,
    picture_of,
    summary_of,
)
from simulator.reports.verdict import TITLES, verdict
from simulator.reports.verdict_words import first_sentence, listed, sentence
from simulator.results.disk import write_atomically
from simulator.results.schema import benchmark
from simulator.rundir.exposure_rows import about_private, exposure_rows, ranked
from simulator.rundir.run import PAGE, Run
from simulator.rundir.strip import where_of

MOST_PICTURES = 12  # clients shown beside the one that is exposed worst
GRIDS = "reconstructions"  # figures of images, which a page shows as strips
NOBODY: Values = {"pictures": [], "without": [], "not_shown": ""}
Say = Callable[[str], None]
ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def _code(text: str, linked: Collection[str] = ()) -> Markup:
    """Set what stands in backticks as code. linked: names that lead to where the page explains them."""

    def element(found: re.Match[str]) -> str:
        word = found[1]
        return f'<a href="#{word}"><code>{word}</code></a>' if word in linked else f"<code>{word}</code>"

    return Markup(re.sub("`([^`]*)`", element, str(escape(text))))


ENVIRONMENT.filters["code"] = _code


def render(page: Values) -> str:
    """Return one HTML document with styles, script and images inside. page: of `run_page`, or `benchmark_page`."""
    return ENVIRONMENT.get_template("page.html.md").render(page=page, titles=TITLES)


def is_current(run_dir: Path) -> bool:
    """Return whether there is a page that was made after the tables."""
    page, table = run_dir / PAGE, run_dir / "leakage.csv"
    return page.exists() and page.stat().st_mtime_ns >= table.stat().st_mtime_ns


def write_report(run_dir: Path, say: Say = print) -> None:
    """Draw the figures of a run or audit, and write its page. say: takes a line for each figure that fails."""
    run = Run(run_dir)
    write_atomically(run.path / PAGE, render(run_page(run, draw_figures(run, say), say)))


def write_benchmark_report(run: Run, table: pd.DataFrame, equal: pd.DataFrame, say: Say = print) -> None:
    """Do the same for a benchmark. table, equal: what `write_benchmark` and `write_equal_utility` returned."""
    write_atomically(run.path / PAGE, render(benchmark_page(run, table, equal, draw_benchmark(run, table, say), say)))


def run_page(run: Run, drawn: Sequence[Drawn], say: Say = print) -> Values:
    """Make the content of the page of a run or an audit, in its order. drawn: its figures. say: takes a line for
    pictures that cannot be shown."""
    leakage, description = run.leakage, run.description
    asked = asked_for(description)
    kind = "run" if SCENARIO in description else "audit"
    recording = Path(asked.get("recording", run.path))
    name = str(asked.get("name") or (run.path.name if recording.parent == run.path.resolve() else recording.name))
    rows = tables.leakage_grid(leakage)
    worst, others = pictures(run, say)
    blind = tables.is_blind(leakage)
    command, needs = repeat(run, kind, name)
    said = verdict(leakage, run.stopped)
    return {
        "kind": kind,
        "title": name,
        "summary": summary_of(description),
        "verdict": said,
        "advised": advised(said.of("next")),
        "worst": worst,
        "reading": tables.legend(("recovered",) if blind else ("recovered", "leakage"), blind),
        "exposures": tables.exposure_grid(leakage),
        "utility": tables.utility_of(run),
        "charts": [chart_of(one) for one in drawn if not one.path.stem.startswith(GRIDS)],
        "others": others,
        "facts": facts_of(description),
        "tables": [rows],
        "legend": {column.name: sentence(column.meaning) for column in rows.columns if column.meaning},
        "repeat": command,
        "repeat_needs": needs,
        "source_name": "scenario" if kind == "run" else "audit.yaml",
        "source": yaml.safe_dump(asked, sort_keys=False, allow_unicode=True),
    }


def pictures(run: Run, say: Say) -> tuple[Values | None, Values]:
    """Return (the picture of the worst update that returned what the verdict counts, those of the worst of each other
    client with the names of clients without one and a line on those for whom there is no room)."""
    good = about_private(run.leakage[run.leakage.status == "ok"])
    if good.empty:
        return None, NOBODY
    groups = ["client", "defense"] if good.defense.nunique() > 1 else ["client"]
    order = ranked(exposure_rows(good))
    returned = order.best.where(order.measure != "held", order.recovered)  # nobody shows what an attack held back
    rows = good.iloc[order.index].assign(counts=(order.share > 0).to_numpy(), pairs=returned.to_numpy())
    rows = rows.drop_duplicates(groups)
    seen = rows.counts & (rows.pairs > 0)
    counted, mute = rows[seen], rows[~seen]
    shown = counted.head(1 + MOST_PICTURES)
    tried = [_attempt(run, row, OTHERS if place else WORST, say) for place, (_, row) in enumerate(shown.iterrows())]
    worst, *others = tried or [None]
    left = len(counted) - len(shown)
    what = "clients and defenses" if len(groups) > 1 else "clients"
    text = f"{left} more {what} are not shown; figures/ and reconstructions/ have them." if left else ""
    without = [f"{where_of(row)}{' (held, not returned)' if row['counts'] else ''}" for _, row in mute.iterrows()]
    return worst, {"pictures": list(filter(None, others)), "without": without, "not_shown": text}


def _attempt(run: Run, row: pd.Series, most: int, say: Say) -> Values | None:
    """Make the picture of a row. One that cannot be shown (if data has moved) costs a line, not the page."""
    try:
        return picture_of(run, row, most, int(row["pairs"]))
    except (InputError, OSError, LookupError) as error:
        say(f"pictures of {row['attack']} on client {row['client']} cannot be shown: {one_line(error)}")
        return None


def advised(lines: Sequence[str]) -> dict[str, str]:
    """Return what each defense that some lines name does, by its name."""
    named = [name for name in DEFENSES if any(f"`{name}`" in line for line in lines)]
    return {name: first_sentence(getdoc(DEFENSES[name])) for name in named}


def repeat(run: Run, kind: str, name: str) -> tuple[str, str]:
    """Return (the command that repeats a run, what it needs)."""
    if kind == "audit":
        asked = asked_for(run.description)
        own = [attack["name"] for attack in asked.get("attacks") or () if attack.get("options")]
        python = f"The options of {listed(own)} are given in Python, `fedspill.audit(attacks=…)`. " if own else ""
        needs = f"{python}`fedspill report` makes this page again without attacking."
        return audit_command(asked, f"{run.path.name}-again"), needs
    return (
        f"fedspill run {name}.yaml --out runs/{name}-again",
        f"Save the scenario above as {name}.yaml; the same versions give the same tables. `fedspill report` on the run "
        "directory makes this page again without running anything.",
    )


def benchmark_page(run: Run, table: pd.DataFrame, equal: pd.DataFrame, drawn: Sequence[Drawn], say: Say) -> Values:
    """Make the content of the page of a benchmark. table, equal: benchmark.csv and equal_utility.csv. A figure that
    compares all defenses on the same images replaces the pictures of other clients."""
    own = run_page(run, (), say)
    defenses = tables.defenses_grid(table, benchmark().columns["not_attacked_by"])
    note = (
        "The attack that has most in the last attacked round, means over seeds and clients; beside them "
        "the 95 % interval. ε: spent by then, against that threat model. Where an attack is named that gave no result, "
        "a low share says little: it may have been the strongest."
    )
    folded = [tables.grid("All rows of benchmark.csv", tables.cells_of(table, benchmark().columns.values()))]
    if len(equal):
        folded.insert(0, tables.equal_utility_grid(equal))
    return own | {
        "kind": "benchmark",
        "verdict": benchmark_verdict(run, table),
        "advised": {},
        "utility": replace(defenses, note=note),
        "others": NOBODY,
        "charts": [chart_of(one) for one in drawn],
        "tables": [*folded, *own["tables"]],
        "repeat": f"fedspill benchmark FILE --out runs/{run.path.name}-again",
        "repeat_needs": "FILE is the benchmark file; the scenario above lists every row and seed of it as a sweep.",
    }
