"""The tables of a run: rows are appended to a journal as they come, and written as parquet and CSV at the end."""

import contextlib
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from simulator.results.keys import ALL
from simulator.results.schema import CLIENTS, LEAKAGE, SAMPLES, UTILITY
from simulator.results.storage import write_atomically

JOURNAL = "ledger.jsonl"
ORDER = ("round", "client", "threat_model", "attack", "target", "image")  # the columns that rows are sorted by
TABLES = {table.name: table for table in (LEAKAGE, SAMPLES, UTILITY, CLIENTS)}


class Ledger:
    """Append-only journal of a run directory, one JSON object a line, and the tables made of it.

    A cell of a sweep, or a job of an audit, counts once it is marked done: reopening an interrupted run keeps what is
    done and drops the rest.
    """

    def __init__(self, run_dir: Path, swept: Iterable[str] = ()):
        """swept: the columns that the cells of a sweep add to every table."""
        self.run_dir, self.swept = run_dir, tuple(swept)
        self.journal = run_dir / JOURNAL
        entries = read_journal(self.journal)
        self.done = finished_cells(run_dir)
        kept = [entry for entry in entries if entry.get("cell", entry.get("done")) in self.done]
        write_atomically(self.journal, "".join(json.dumps(entry) + "\n" for entry in kept))

    def add(self, cell: str, **tables: list[dict[str, Any]]) -> None:
        """Rows of a cell, by the name of their table, in one write.

        Raises SchemaError where one has a column that is neither declared nor swept.
        """
        for name, rows in tables.items():
            for row in rows:
                TABLES[name].check(row, self.swept)
        self._append(*({"table": name, "cell": cell, "row": row} for name, rows in tables.items() for row in rows))

    def mark_done(self, cell: str) -> None:
        self._append({"done": cell})
        self.done.add(cell)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table, sorted, with its declared columns first and those of a sweep after them."""
        entries = [entry for entry in read_journal(self.journal) if "table" in entry]
        frames = {}
        for name, table in TABLES.items():
            own = [entry for entry in entries if entry["table"] == name]
            own.sort(key=lambda entry: row_order(entry["row"].get("cell", ""), entry["row"]))
            frames[name] = table.frame([entry["row"] for entry in own], self.swept)
        return frames

    def write_tables(self) -> dict[str, pd.DataFrame]:
        """leakage.csv and one parquet file per table, each replaced in one step."""
        frames = self.tables()
        for name, frame in frames.items():
            partial = self.run_dir / f".{name}.partial"
            frame.to_parquet(partial, index=False)
            os.replace(partial, self.run_dir / f"{name}.parquet")
        write_atomically(self.run_dir / "leakage.csv", frames["leakage"].to_csv(index=False))
        return frames

    def _append(self, *entries: dict[str, Any]) -> None:
        with self.journal.open("a") as file:
            file.write("".join(json.dumps(entry) + "\n" for entry in entries))
            file.flush()
            os.fsync(file.fileno())


def row_order(cell: str, row: dict[str, Any]) -> tuple[Any, ...]:
    """What rows are sorted by, whatever order Ray finished in; the union of clients comes after the clients."""
    values = {name: row[name] for name in ORDER if name in row}
    return (cell, *(math.inf if (name, value) == ("client", ALL) else value for name, value in values.items()))


def finished_cells(run_dir: Path) -> set[str]:
    """The cells of a run whose training and attacks are all in its journal."""
    return {entry["done"] for entry in read_journal(run_dir / JOURNAL) if "done" in entry}


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Every entry; none where there is no journal yet."""
    if not path.exists():
        return []
    entries = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the last line of a run that was killed while writing it
            entries.append(json.loads(line))
    return entries
