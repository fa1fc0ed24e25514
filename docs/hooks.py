"""Pages of the site that are made from the code while it is built: they cannot be out of date."""

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

import fedspill
from simulator.cli.main import cli


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    files.append(File.generated(config, "reference/python.md", content=python()))
    return files


def commands() -> str:
    """Every command with its options, from the command line itself."""
    command = typer.main.get_command(cli)
    return get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="fedspill"), name="fedspill")


def python() -> str:
    """Everything that `import fedspill` gives, for mkdocstrings to fill in."""
    names = [f"::: {fedspill.HOME.get(name, 'fedspill')}.{name}" for name in fedspill.__all__]
    return "\n\n".join(["# Python", (fedspill.__doc__ or "").strip(), *names])
