"""The tables of a run: rows are appended to a journal as they come, and written as parquet and CSV at the end."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from simulator.evaluation.job import JobResult
from simulator.results.schema import CLIENTS, LEAKAGE, SAMPLES, UTILITY, row_order

JOURNAL = "ledger.jsonl"
TABLES = {table.name: table for table in (LEAKAGE, SAMPLES, UTILITY, CLIENTS)}


class Ledger:
    """Append-only journal of a run directory, one JSON object a line, and the tables made of it.

    A cell of a sweep counts once it is marked done: reopening an interrupted run keeps done cells and drops the rest.
    """

    def __init__(self, run_dir: Path, swept: Iterable[str] = ()):
        """swept: the columns that the cells of a sweep add to every table."""
        self.run_dir, self.swept = run_dir, tuple(swept)
        self.journal = run_dir / JOURNAL
        entries = read_journal(self.journal)
        self.done = finished_cells(run_dir)
        kept = [entry for entry in entries if entry.get("cell", entry.get("done")) in self.done]
        partial = self.journal.with_suffix(".partial")
        partial.write_text("".join(json.dumps(entry) + "\n" for entry in kept))
        os.replace(partial, self.journal)

    def add(self, table: str, cell: str, order: tuple[Any, ...], row: dict[str, Any]) -> None:
        """Raises SchemaError where the row has a column that is neither declared nor swept."""
        self._append({"table": table, "cell": cell, "order": order, "row": row})

    def add_result(self, cell: str, result: JobResult) -> None:
        """A finished attack: its rows of the leakage table and its samples, in one write."""
        entries = []
        for part in (result, *result.more):
            entries.append({"table": "leakage", "cell": cell, "order": part.order, "row": part.row})
            for sample in part.samples:
                order = (*row_order(cell, sample), sample["image"])
                entries.append({"table": "samples", "cell": cell, "order": order, "row": sample})
        self._append(*entries)

    def mark_done(self, cell: str) -> None:
        self._append({"done": cell})
        self.done.add(cell)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table, sorted, with its declared columns first and those of a sweep after them."""
        entries = [entry for entry in read_journal(self.journal) if "table" in entry]
        frames = {}
        for name, table in TABLES.items():
            own = sorted((entry for entry in entries if entry["table"] == name), key=lambda entry: entry["order"])
            frames[name] = table.frame([entry["row"] for entry in own], self.swept)
        return frames

    def write_tables(self) -> dict[str, pd.DataFrame]:
        """leakage.csv and one parquet file per table, each replaced in one step."""
        frames = self.tables()
        for name, frame in frames.items():
            partial = self.run_dir / f".{name}.partial"
            frame.to_parquet(partial, index=False)
            os.replace(partial, self.run_dir / f"{name}.parquet")
        partial = self.run_dir / ".leakage.partial"
        frames["leakage"].to_csv(partial, index=False)
        os.replace(partial, self.run_dir / "leakage.csv")
        return frames

    def _append(self, *entries: dict[str, Any]) -> None:
        for entry in entries:
            if "row" in entry:
                TABLES[entry["table"]].check(entry["row"], self.swept)
        with self.journal.open("a") as file:
            file.write("".join(json.dumps(entry) + "\n" for entry in entries))
            file.flush()
            os.fsync(file.fileno())


def finished_cells(run_dir: Path) -> set[str]:
    """The cells of a run whose training and attacks are all in its journal."""
    return {entry["done"] for entry in read_journal(run_dir / JOURNAL) if "done" in entry}


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Every entry; none where there is no journal yet."""
    if not path.exists():
        return []
    entries = []
    for line in path.read_text().splitlines():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:  # the last line of a run that was killed while writing it
            continue
    return entries
