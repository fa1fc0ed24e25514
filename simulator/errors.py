"""Errors of a run, as opposed to those of its input."""

from attacks import InputError


class RunError(RuntimeError):
    """The run had to stop. The command line prints the message and exits with `exit_code`; what was done is kept."""

    exit_code = 1


class CellsFailed(RunError):
    """Some cells had to stop. All others ran, and the tables hold what there is."""


class NoResult(RunError):
    """The run is complete, and no attack gave a result: nothing is known of what leaks."""

    exit_code = 3


__all__ = ["CellsFailed", "InputError", "NoResult", "RunError"]
