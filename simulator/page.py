"""report.html: the table and the pictures of a run in one file that can be mailed."""

import base64
import html
from pathlib import Path

from simulator.record import Record
from simulator.tables import SHOWN, show

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:3px 9px;text-align:right;border-bottom:1px solid #ddd}"
    "img{max-width:100%}h2{margin-top:2em}.note{color:#666}"
)
EXPLANATION = (
    "<b>leakage</b> is the mean over private images of 1 − L2 / floor L2, at least 0: 0 is no better than guessing with "
    "public images, 1 is an exact copy. <b>recovered</b> counts images with PSNR of at least 20 dB whose "
    "reconstruction is nearer to them than to any other image of the pool. Floors, in parentheses, are the same scores "
    "for an attacker who only has public images, as many as the attack returned. <b>knows</b> is what the adversary "
    "was told beside the checkpoints."
)


def write_page(record: Record, figures: list[Path]) -> Path:
    """Write report.html into the run directory."""
    swept = [key for key in record.scenario.sweep if key in record.leakage]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in [*swept, *SHOWN.values()])
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in [str(row[k]) for k in swept] + [show(c, row) for c in SHOWN])
        + "</tr>"
        for _, row in record.leakage.iterrows()
    )  # fmt: skip
    pictures = "".join(
        f'<h2>{html.escape(path.stem.replace("_", " "))}</h2><img alt="{html.escape(path.stem)}" '
        f'src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}">'
        for path in figures
    )
    title = html.escape(f"fedleak: {record.scenario.name}")
    text = (
        f'<!doctype html><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>'
        f'<p class="note">{EXPLANATION}</p><table><tr>{head}</tr>{rows}</table>{pictures}'
    )
    path = record.path / "report.html"
    path.write_text(text)
    return path
