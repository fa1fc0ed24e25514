"""Errors of a run, as opposed to those of its input."""

from attacks import InputError


class RunError(RuntimeError):
    """The run had to stop. The command line prints the message and exits with code 1; what was done is kept."""


class CellsFailed(RunError):
    """Some cells had to stop. All others ran, and the tables hold what there is."""


__all__ = ["CellsFailed", "InputError", "RunError"]
