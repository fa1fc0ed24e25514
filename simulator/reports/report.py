"""What a finished run leaves to look at: figures and a page."""

from pathlib import Path

from simulator.reports.figures import draw_figures
from simulator.reports.page import write_page
from simulator.results.record import Record


def write_report(run_dir: Path) -> None:
    """Draw the figures of a run and write report.html around them and the table."""
    record = Record(run_dir)
    write_page(record, draw_figures(record))
