"""The site: built without a warning or the network; every page it links is there; notebooks are their sources'."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[1]
TUTORIALS = sorted((PROJECT / "docs" / "start").glob("*.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # a notice of the theme's authors
    built = subprocess.run(command, cwd=PROJECT, env=quiet, capture_output=True, text=True, timeout=600)
    assert built.returncode == 0 and "WARNING" not in built.stderr, built.stderr
    return out


@pytest.mark.slow
def test_every_page_that_is_linked_is_there_and_nothing_is_loaded_from_elsewhere(site):
    missing, foreign = [], []
    pages = sorted(site.rglob("*.html"))
    for page in pages:
        text = page.read_text()
        for loaded in (r'<(?:script|img)[^>]* src="(https?:[^"]+)"', r'<link[^>]*stylesheet[^>]*href="(https?:[^"]+)"'):
            foreign += [(page.name, url) for url in re.findall(loaded, text)]
        for link in re.findall(r'(?:href|src)="([^"#:?]+)[#?"]', text):
            if page.name != "404.html" and not (page.parent / link).exists():
                missing.append((page.name, link))
    assert len(pages) > 20
    assert missing == []
    assert foreign == []


@pytest.mark.slow
def test_what_is_generated_names_everything(site):
    commands, python = (site / "reference/commands.html").read_text(), (site / "reference/python.html").read_text()
    assert "fedspill run" in commands and "fedspill member" in commands
    assert "Knowledge" in python and "num_private" in python


def test_every_document_is_in_the_navigation():
    text = (PROJECT / "mkdocs.yml").read_text()
    named = set(re.findall(r"([\w/]+\.(?:md|ipynb))$", text, re.MULTILINE))
    docs = PROJECT / "docs"
    written = {path.relative_to(docs).as_posix() for pattern in ("*.md", "*.ipynb") for path in docs.rglob(pattern)}
    made = {"reference/commands.md", "reference/python.md"}  # by docs/hooks.py
    assert named - made == {path for path in written if ".ipynb_checkpoints" not in path}
    assert yaml.safe_load(text)["theme"]["font"] is False


def test_a_record_is_one_table_and_begins_with_what_was_measured_when_and_how_to_repeat_it():
    """Its first paragraph is one sentence. No other document has a date."""
    pages = {path: path.read_text() for path in (PROJECT / "docs").rglob("*.md")}
    records = {path: text for path, text in pages.items() if path.parent.name == "records"}
    dated = re.compile(r"\b20\d\d-\d\d-\d\d\b|\bload of \d")
    others = {path: text for path, text in pages.items() if path not in records}
    others |= {path: path.read_text() for path in (PROJECT / "docs" / "start").glob("*.ipynb")}
    assert [path.name for path, text in others.items() if dated.search(text)] == []
    wrong = []
    for path, text in records.items():
        _, said, when, *_ = text.split("\n\n")
        how = re.match(r"\*20\d\d-\d\d-\d\d.* To repeat it:\*", when, re.DOTALL)
        tables = len(re.findall(r"^\|[-: |]+\|$", text, re.MULTILINE))
        if ". " in said or not said.endswith(".") or not how or tables > 1:
            wrong.append(path.name)
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("source", TUTORIALS, ids=lambda path: path.stem)
def test_a_notebook_is_its_source_executed(source):
    """`make notebooks` after a change of the source. Outputs are small: a reader loads them with the page."""
    jupytext = importlib.import_module("jupytext")  # of the tools of the site, which `make test` does not need
    notebook = source.with_suffix(".ipynb")
    made, written = jupytext.read(source), jupytext.read(notebook)
    assert [cell.source for cell in made.cells] == [cell.source for cell in written.cells]
    code = [cell for cell in written.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert not [out for cell in code for out in cell.outputs if out.output_type == "error"]
    assert notebook.stat().st_size < 300_000
