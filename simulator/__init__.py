"""Federated runs under a curious server. `from simulator import Record, load` opens a run directory."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Record and load are imported when asked for: the command line starts without pandas and torch."""
    if name in ("Record", "load"):
        from simulator import record

        return getattr(record, name)
    raise AttributeError(f"module 'simulator' has no attribute {name!r}")


__all__ = ["Record", "load"]
