"""The tables of a run: rows are appended to a journal as they come, and written as parquet and CSV at the end."""

import contextlib
import errno
import io
import math
import os
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from simulator.errors import DiskError, InputError, one_line
from simulator.results.disk import write_atomically, write_bytes, writing
from simulator.results.journal import JOURNAL, Entry, Found, encode, entries_of, inspect, read_all
from simulator.results.keys import ALL
from simulator.results.schema import CLIENTS, LEAKAGE, SAMPLES, UTILITY

ORDER = ("round", "client", "threat_model", "attack", "target", "image")  # the columns that rows are sorted by
TABLES = {table.name: table for table in (LEAKAGE, SAMPLES, UTILITY, CLIENTS)}


class Ledger:
    """Append-only journal of a run directory, one JSON object a line, and the tables made of it.

    A cell of a sweep, or a job of an audit, counts once it is marked done: reopening an interrupted run keeps what is
    done and drops the rest, and a cell of which a row or a file is damaged. `problems` has a line about each of those.
    `out_of_time` has the attacks of what was done then that are worth another try, as `out_of_time` finds them.
    """

    def __init__(self, run_dir: Path, swept: Iterable[str] = ()):
        """swept: the columns that the cells of a sweep add to every table."""
        self.run_dir, self.swept = run_dir, tuple(swept)
        self.journal = run_dir / JOURNAL
        found = inspect(self.journal)
        self.done, self.problems = found.done, found.problems
        self.out_of_time = out_of_time(found)
        kept = [entry for entry in found.entries if entry.get("cell", entry.get("done")) in self.done]
        self._rows = Counter(entry["cell"] for entry in kept if "cell" in entry)
        write_atomically(self.journal, "".join(map(encode, kept)))
        with writing(self.journal):  # held open: its rows can be read even when somebody has removed the folder
            self._file = os.open(self.journal, os.O_RDWR | os.O_APPEND)
        weakref.finalize(self, os.close, self._file)

    def add(self, cell: str, **tables: list[dict[str, Any]]) -> None:
        """Rows of a cell, by the name of their table, in one write.

        Raises SchemaError where one has a column that is neither declared nor swept.
        """
        entries = self._entries(cell, tables)
        self._append(*entries)
        self._rows[cell] += len(entries)

    def _entries(self, cell: str, tables: Mapping[str, list[dict[str, Any]]]) -> list[Entry]:
        entries = []
        for name, rows in tables.items():
            for row in rows:
                TABLES[name].check(row, self.swept)
                entries.append({"table": name, "cell": cell, "row": TABLES[name].plain(row)})
        return entries

    def replace(self, cell: str, attack: Mapping[str, Any], **tables: list[dict[str, Any]]) -> None:
        """Rows of a cell that is done, as `add` takes them, in the place of an attack's rows there, in one step.

        attack: the columns that tell its rows from all others of the cell.
        """
        before = entries_of(read_all(self._file))[0]
        mark = next(entry for entry in before if entry.get("done") == cell)
        kept = [
            entry
            for entry in before
            if entry is not mark and not (entry.get("cell") == cell and attack.items() <= entry["row"].items())
        ]
        kept += self._entries(cell, tables)
        self._rows[cell] = sum(entry.get("cell") == cell for entry in kept)
        write_atomically(self.journal, "".join(map(encode, [*kept, mark | {"rows": self._rows[cell]}])))
        with writing(self.journal):
            written = os.open(self.journal, os.O_RDWR | os.O_APPEND)
            os.dup2(written, self._file)
            os.close(written)

    def mark_done(self, cell: str, files: Mapping[str, str] = {}) -> None:
        """files: the checksums of what was written for the cell, by their names below the run's folder."""
        self._append({"done": cell, "rows": self._rows[cell], "files": dict(files)})
        self.done.add(cell)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table, sorted, with its declared columns first and those of a sweep after them."""
        entries = [entry for entry in entries_of(read_all(self._file))[0] if "table" in entry]
        try:
            return self._frames(entries)
        except (TypeError, ValueError, LookupError, OverflowError) as error:
            raise self._no_rows(error) from None

    def _frames(self, entries: list[Entry]) -> dict[str, pd.DataFrame]:
        frames = {}
        for name, table in TABLES.items():
            own = [entry for entry in entries if entry["table"] == name]
            own.sort(key=lambda entry: row_order(entry["row"].get("cell", ""), entry["row"]))
            frames[name] = table.frame([entry["row"] for entry in own], self.swept)
        return frames

    def write_tables(self) -> dict[str, pd.DataFrame]:
        """leakage.csv and one parquet file per table, each replaced in one step. DiskError, which has them, where that
        does not work."""
        frames = self.tables()
        try:
            for name, frame in frames.items():
                write_bytes(self.run_dir / f"{name}.parquet", self._parquet(frame))
            write_atomically(self.run_dir / "leakage.csv", frames["leakage"].to_csv(index=False))
        except DiskError as error:
            raise DiskError(str(error), frames) from error
        return frames

    def _parquet(self, frame: pd.DataFrame) -> bytes:
        content = io.BytesIO()
        try:
            frame.to_parquet(content, index=False)
        except (TypeError, ValueError) as error:  # Arrow's own errors are among these
            raise self._no_rows(error) from None
        return content.getvalue()

    def _no_rows(self, error: Exception) -> InputError:
        """Of a journal that came by mail."""
        reason = one_line(str(error))
        return InputError(f"{str(self.journal)!r} holds rows that no run wrote ({reason}): do it again by --overwrite")

    def _append(self, *entries: Entry) -> None:
        """In one write. DiskError where it does not work; then nothing of it is left, so that a next line is whole."""
        content = "".join(map(encode, entries)).encode()
        with writing(self.journal):
            before = os.fstat(self._file)
            if not before.st_nlink:
                raise FileNotFoundError(errno.ENOENT, "somebody has removed it")
            try:
                while content:
                    content = content[os.write(self._file, content) :]
                os.fsync(self._file)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, before.st_size)
                raise


def row_order(cell: str, row: dict[str, Any]) -> tuple[Any, ...]:
    """What rows are sorted by, whatever order Ray finished in; the union of clients comes after the clients."""
    values = {name: row[name] for name in ORDER if name in row}
    return (cell, *(math.inf if (name, value) == ("client", ALL) else value for name, value in values.items()))


def finished_cells(run_dir: Path, with_files: bool = True) -> set[str]:
    """The cells of a run whose training and attacks are all in its journal, and whose files, where they are to be read,
    are as they were."""
    return inspect(run_dir / JOURNAL, with_files).done


def out_of_time(found: Found) -> list[tuple[str, dict[str, Any]]]:
    """(cell, row of the leakage table) of each attack of a journal's finished cells that ran out of time."""
    rows = [(entry["cell"], entry["row"]) for entry in found.entries if entry.get("table") == LEAKAGE.name]
    return [(cell, row) for cell, row in rows if cell in found.done and row.get("status") == "timeout"]


def read_journal(path: Path) -> list[Entry]:
    """Every entry that is not damaged; none where there is no journal yet."""
    return inspect(path).entries
