"""report.html: the table and the figures of a run in one file that can be mailed."""

import base64
from collections.abc import Callable
from html import escape
from pathlib import Path

from simulator.reports.figures import draw_figures
from simulator.reports.tables import legend, remarks, visible_columns
from simulator.results.run import Run

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:3px 9px;text-align:right;border-bottom:1px solid #ddd}"
    "img{max-width:100%}h2{margin-top:2em}.note{color:#666}"
)


def write_report(run_dir: Path, say: Callable[[str], None] = print) -> None:
    """Draw the figures of a finished run, and write report.html with them, the table and what its rows remark into its
    directory. say: takes a line for each figure that cannot be drawn."""
    record = Run(run_dir)
    figures = draw_figures(record, say)
    columns = visible_columns(record.leakage, record.swept)
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(show(row))}</td>" for show in columns.values()) + "</tr>"
        for _, row in record.leakage.iterrows()
    )
    remarked = "".join(f"<li>{escape(remark)}</li>" for remark in remarks(record.leakage))
    title = escape(f"fedspill: {record.name}")
    text = (
        f'<!doctype html><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>'
        f'<p class="note">{escape(legend(columns))}</p><table><tr>{head}</tr>{rows}</table>'
        f"<ul>{remarked}</ul>{''.join(map(_figure, figures))}"
    )
    (record.path / "report.html").write_text(text)


def _figure(path: Path) -> str:
    name, data = escape(path.stem.replace("_", " ")), base64.b64encode(path.read_bytes()).decode()
    return f'<h2>{name}</h2><img alt="{name}" src="data:image/png;base64,{data}">'
