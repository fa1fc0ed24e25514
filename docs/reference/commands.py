"""The page of all commands, made from the command line itself: python -m docs.reference.commands."""

import typer
from typer.cli import get_docs_for_click

from simulator.cli.main import cli


def reference() -> str:
    command = typer.main.get_command(cli)
    return get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="fedspill"), name="fedspill")


if __name__ == "__main__":
    print(reference(), end="")
