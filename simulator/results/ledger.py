"""The journal of a run, and the tables made of it.

Rows are appended to the journal as they come, one JSON object a line, and written as parquet and CSV at the end.

    {"table": "leakage", "cell": "seed=0", "row": {…}, "of": "89abcdef", "among": 9}
    {"done": "seed=0", "rows": 12, "files": {"cells/seed=0/checkpoints/global_0000.safetensors": "01234567"}}

A line that was torn does not parse and is left out. The line that says that a cell is done has the number of its rows,
so that a missing row is noticed. So have the rows of an attack: `of` is the checksum of what it attacked.
"""

import contextlib
import itertools
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from attacks.interface.errors import one_line
from simulator.results.disk import inside, is_changed, write_atomically, write_bytes, writing
from simulator.results.keys import ALL
from simulator.results.schema import CLIENTS, LEAKAGE, SAMPLES, UTILITY
from simulator.run_errors import DiskError, InputError

Entry = dict[str, Any]
JOURNAL = "ledger.jsonl"  # in a run's directory
MOST_NAMED = 3  # lines or files of a kind that are named


def encode(entry: Entry) -> str:
    return json.dumps(entry) + "\n"


def decode(line: str) -> Entry | None:
    """Return the entry of a line; None if the line is damaged, or nothing that `Ledger` writes."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    if "done" in entry:
        return entry if isinstance(entry["done"], str) and "cell" not in entry else None
    kinds = [type(entry.get(name)) for name in ("table", "cell", "row")]
    return entry if kinds == [str, str, dict] else None


@dataclass(frozen=True)
class JournalContents:
    """The contents of a journal.

    done: the cells whose rows and files are all as they were written.
    problems: a line for the user about each damage.
    """

    entries: list[Entry]
    done: set[str]
    problems: list[str]

    @property
    def files(self) -> dict[str, str]:
        """The checksums of the files of finished cells, by their names below the run's folder."""
        found = [entry.get("files") for entry in self.entries if "done" in entry]
        return {name: crc for files in found if isinstance(files, dict) for name, crc in files.items()}


def read_journal(journal: Path, with_files: bool = True) -> JournalContents:
    """Read a run's journal and check it; the result is empty if there is none.

    with_files: whether to compare the checksums of the files that it names, which may hold many gigabytes.
    """
    try:
        text = inside(journal.parent, journal).read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return JournalContents([], set(), [])
    decoded = {number: decode(line) for number, line in enumerate(text.split("\n"), 1) if line}
    entries, problems = [entry for entry in decoded.values() if entry is not None], []
    if len(entries) < len(decoded):
        lines = _some([number for number, entry in decoded.items() if entry is None], str)
        problems.append(f"{journal}: line {lines} torn or changed: what belongs there is done again")
    rows = Counter(entry["cell"] for entry in entries if "cell" in entry)
    done: set[str] = set()
    for entry in entries:
        if "done" not in entry:
            continue
        cell = entry["done"]
        wrong = _wrong(entry, rows[cell], journal.parent, with_files)
        if wrong:
            problems.append(f"{journal.parent}: {f'setting {cell!r}' if cell else 'the run'} is done again: {wrong}")
        else:
            done.add(cell)
    return JournalContents(entries, done, problems)


def _wrong(done: Entry, rows: int, folder: Path, with_files: bool) -> str:
    """Return the reason why a cell is not done; empty if it is."""
    if rows != done.get("rows"):
        return f"the journal has {rows} of its {done.get('rows')} rows"
    files = done.get("files") if with_files else {}
    try:
        changed = [
            name
            for name, crc in (files if isinstance(files, dict) else {}).items()
            if is_changed(inside(folder, folder / name), crc)
        ]
    except InputError as error:
        return str(error)
    return f"{_some(changed, repr)} cut off or changed since it was written" if changed else ""


def _some(found: Iterable[Any], shown: Callable[[Any], str]) -> str:
    """Return the first ones and the number of the others, with the verb that follows."""
    every = list(map(shown, found))
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    return ", ".join(every[:MOST_NAMED]) + more + (" is" if len(every) == 1 else " are")


ORDER = ("round", "client", "threat_model", "attack", "target", "image")  # the columns that rows are sorted by
TABLES = {table.name: table for table in (LEAKAGE, SAMPLES, UTILITY, CLIENTS)}


def frames_of(entries: Iterable[Entry], swept: Iterable[str] = ()) -> dict[str, pd.DataFrame]:
    """Return every table of a journal, sorted, with its declared columns first and those of a sweep after them."""
    frames, rows = {}, [entry for entry in entries if "table" in entry]
    for name, table in TABLES.items():
        own = [entry for entry in rows if entry["table"] == name]
        own.sort(key=lambda entry: row_order(entry["row"].get("cell", ""), entry["row"]))
        frames[name] = table.frame([entry["row"] for entry in own], swept)
    return frames


class Ledger:
    """Append-only journal of a run directory, and the tables made of it.

    A cell of a sweep, or a job of an audit, counts once it is marked done. Reopening an interrupted run keeps the cells
    that are done and undamaged, and of the others the attacks that gave a result, to be taken up.

    problems: a line about each damage that was found.
    out_of_time: the attacks of finished cells that ran out of time, as the function of that name returns them.
    """

    def __init__(self, run_dir: Path, swept: Iterable[str] = ()):
        """swept: the columns that the cells of a sweep add to every table."""
        self.run_dir, self.swept = run_dir, tuple(swept)
        self.journal = run_dir / JOURNAL
        found = read_journal(self.journal)
        self.done, self.problems = found.done, found.problems
        self.out_of_time = out_of_time(found)
        self.earlier = _complete(entry for entry in found.entries if entry.get("cell", "") not in self.done)
        kept = [entry for entry in found.entries if entry.get("cell", entry.get("done")) in self.done]
        self._rewrite([*kept, *itertools.chain(*self.earlier.values())])

    def add(self, cell: str, **tables: list[dict[str, Any]]) -> None:
        """Add rows of a cell, by the name of their table, in one write.

        Raise SchemaError if one has a column that is neither declared nor swept.
        """
        self._append(*self._of_tables(cell, tables))

    def _of_tables(self, cell: str, tables: Mapping[str, list[dict[str, Any]]]) -> list[Entry]:
        entries = []
        for name, rows in tables.items():
            for row in rows:
                TABLES[name].check(row, self.swept)
                entries.append({"table": name, "cell": cell, "row": TABLES[name].plain(row)})
        return entries

    def put(self, cell: str, attack: Mapping[str, Any], of: str = "", **tables: list[dict[str, Any]]) -> None:
        """Add an attack's rows in one step, in the place of those of an earlier try. tables: as `add` takes them.

        attack: the columns that tell its rows from all others of the cell. of: the checksum of what it attacked, ""
        for rows that no other run takes up.
        """
        entries = self._of_tables(cell, tables)
        entries = [entry | {"of": of, "among": len(entries)} for entry in entries] if of else entries
        if self.earlier.pop(_name(cell, attack), None) is None and cell not in self.done:
            return self._append(*entries)
        own = [entry for entry in self._entries if entry.get("cell") == cell and attack.items() <= entry["row"].items()]
        return self._without(cell, own, entries)

    def take_up(self, cell: str, attack: Mapping[str, Any], of: str) -> dict[str, Any] | None:
        """Keep the rows that an attack has of an interrupted run, and return the first; None if it attacked something
        else than `of`, or gave no result."""
        rows = self.earlier.get(_name(cell, attack), [])
        if not any(entry["of"] == of for entry in rows):
            return None
        row: dict[str, Any] = self.earlier.pop(_name(cell, attack))[0]["row"]
        return row

    def _without(self, cell: str, dropped: list[Entry], added: Iterable[Entry] = ()) -> None:
        """Replace entries of a cell by others, in one step."""
        kept = [entry for entry in self._entries if entry not in dropped and entry.get("done") != cell]
        kept += added
        rows = sum(entry.get("cell") == cell for entry in kept)
        self._rewrite(kept + [entry | {"rows": rows} for entry in self._entries if entry.get("done") == cell])

    def mark_done(self, cell: str, files: Mapping[str, str] = {}) -> None:
        """Note that a cell is done. files: the checksums of its files, by their names below the run's folder."""
        if left := [entry for rows in self.earlier.values() for entry in rows if entry["cell"] == cell]:
            self._without(cell, left)
        self._append({"done": cell, "rows": self._rows[cell], "files": dict(files)})
        self.done.add(cell)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return every table, as `frames_of`."""
        try:
            return frames_of(self._entries, self.swept)
        except (TypeError, ValueError, LookupError, OverflowError) as error:
            raise self._no_rows(error) from None

    def write_tables(self) -> dict[str, pd.DataFrame]:
        """Write leakage.csv and one parquet file per table, each replaced in one step. Raise a DiskError that holds the
        tables if that does not work."""
        frames = self.tables()
        try:
            for name, frame in frames.items():
                write_bytes(self.run_dir / f"{name}.parquet", frame.to_parquet(index=False))
            write_atomically(self.run_dir / "leakage.csv", frames["leakage"].to_csv(index=False))
        except DiskError as error:
            raise DiskError(str(error), frames) from error
        except (TypeError, ValueError) as error:  # Arrow's own errors are among these
            raise self._no_rows(error) from None
        return frames

    def _no_rows(self, error: Exception) -> InputError:
        reason = one_line(error)
        return InputError(f"{str(self.journal)!r} holds rows that no run wrote ({reason}): do it again by --overwrite")

    def _rewrite(self, entries: list[Entry]) -> None:
        write_atomically(self.journal, "".join(map(encode, entries)))
        self._entries: list[Entry] = []
        self._rows = Counter[str]()
        self._note(entries)

    def _append(self, *entries: Entry) -> None:
        """Append entries in one write. If the disk does not take it, raise DiskError and leave none of it."""
        content = "".join(map(encode, entries)).encode()
        # a journal that somebody has removed is not made anew: it would lack the rows before
        with writing(self.journal), self.journal.open("r+b", 0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                while content:
                    content = content[os.write(file.fileno(), content) :]
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(size)
                raise
        self._note(entries)

    def _note(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._entries.append(entry)
            self._rows.update([entry["cell"]] if "cell" in entry else [])


def _name(cell: str, row: Mapping[str, Any]) -> str:
    """Return the name of the attack that a row is of."""
    return json.dumps([cell, *(row.get(column) for column in ORDER[:4])])


def _complete(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the rows of every attack that has a result, by its name; those of which one is missing are left out."""
    found = defaultdict[str, list[Entry]](list)
    for entry in entries:
        if "of" in entry and "cell" in entry:
            found[_name(entry["cell"], entry["row"])].append(entry)
    return {name: rows for name, rows in found.items() if all(one.get("among") == len(rows) for one in rows)}


def row_order(cell: str, row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the sort key of a row; the union of clients comes after the clients."""
    values = {name: row[name] for name in ORDER if name in row}
    return (cell, *(math.inf if (name, value) == ("client", ALL) else value for name, value in values.items()))


def out_of_time(found: JournalContents) -> list[tuple[str, dict[str, Any]]]:
    """Return (cell, row of the leakage table) of each attack of a finished cell that ran out of time."""
    rows = [(entry["cell"], entry["row"]) for entry in found.entries if entry.get("table") == LEAKAGE.name]
    return [(cell, row) for cell, row in rows if cell in found.done and row.get("status") == "timeout"]
