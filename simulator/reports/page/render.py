"""A page as text: the templates beside this file, filled in.

They are HTML, CSS and JavaScript for jinja2. Their names end in .md because `flwr run` takes no other endings into an
app that it sends to its servers than those of code and of plain text.
"""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from simulator.reports.page.view import Page

FOLDER = Path(__file__).parent
ENVIRONMENT = Environment(
    loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


def render(page: Page) -> str:
    """One HTML document that needs nothing else: styles, script and images are inside."""
    return ENVIRONMENT.get_template("page.html.md").render(page=page)
