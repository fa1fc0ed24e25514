"""A page as text: the templates beside this file, filled in."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from simulator.reports.page.view import Page

FOLDER = Path(__file__).parent
ENVIRONMENT = Environment(
    loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


def render(page: Page) -> str:
    """One HTML document that needs nothing else: styles, script and images are inside."""
    return ENVIRONMENT.get_template("page.html.j2").render(page=page)
