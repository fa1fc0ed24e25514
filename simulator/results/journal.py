"""The lines of a run's journal: one JSON object each, with its checksum at the end.

    {"table": "leakage", "cell": "seed=0", "row": {…}, "crc32": "89abcdef"}
    {"done": "seed=0", "rows": 12, "files": {"cells/seed=0/checkpoints/global_0000.safetensors": "01234567"},
     "crc32": "…"}

A line that was torn, or changed afterwards, is left out. What it belonged to need not be known: the line that says that
a cell is done says how many rows it has.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.results.disk import checksum, is_changed
from simulator.results.inside import inside

Entry = dict[str, Any]
JOURNAL = "ledger.jsonl"  # in a run's directory
TAIL = len(', "crc32": "00000000"}')
MOST_NAMED = 3  # lines or files of a kind that are named


def encode(entry: Entry) -> str:
    """A line of the journal."""
    text = json.dumps(entry)
    return f'{text[:-1]}, "crc32": "{checksum(text.encode())}"}}\n'


def decode(line: str) -> Entry | None:
    """The entry of a line; None where it is not as it was written."""
    text = line[:-TAIL] + "}"
    if line[-TAIL:] != f', "crc32": "{checksum(text.encode(errors="replace"))}"}}':
        return None
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):  # somebody else's text with a fitting checksum
        return None
    return entry if _is_entry(entry) else None


def _is_entry(value: Any) -> bool:
    """Whether it is what `Ledger` writes, as far as its readers lean on it."""
    if not isinstance(value, dict):
        return False
    if "done" in value:
        return isinstance(value["done"], str) and "cell" not in value
    return [type(value.get(name)) for name in ("table", "cell", "row")] == [str, str, dict]


def entries_of(text: str) -> tuple[list[Entry], list[int]]:
    """(every entry, the numbers of the lines that are damaged)."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line]
    decoded = [(number, decode(line)) for number, line in lines]
    return [entry for _, entry in decoded if entry is not None], [number for number, entry in decoded if entry is None]


@dataclass(frozen=True)
class Found:
    """What a journal holds. done: the cells whose rows and files are all as they were written. problems: lines for
    people, that name what is damaged."""

    entries: list[Entry]
    done: set[str]
    problems: list[str]


def inspect(journal: Path, with_files: bool = True) -> Found:
    """A run's journal, its own checksums and those of the files that it names checked; empty where there is none.

    with_files: False reads none of those files, of which there may be many gigabytes.
    """
    try:
        text = inside(journal.parent, journal).read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return Found([], set(), [])
    entries, torn = entries_of(text)
    problems = []
    if torn:
        lines = _some(torn, str)
        problems.append(f"{journal}: line {lines} torn or changed: what belongs there is done again")
    rows = Counter(entry["cell"] for entry in entries if "cell" in entry)
    done: set[str] = set()
    for entry in entries:
        if "done" not in entry:
            continue
        cell = entry["done"]
        wrong = _wrong(entry, rows[cell], journal.parent, with_files)
        if wrong:
            problems.append(f"{journal.parent}: {f'cell {cell!r}' if cell else 'the run'} is done again: {wrong}")
        else:
            done.add(cell)
    return Found(entries, done, problems)


def files_of(journal: Path) -> dict[str, str]:
    """The checksums of files by their names below the run's folder, as far as cells are done."""
    try:
        text = inside(journal.parent, journal).read_bytes().decode(errors="replace")
    except OSError:
        return {}
    found = [entry.get("files") for entry in entries_of(text)[0] if "done" in entry]
    return {name: crc for files in found if isinstance(files, dict) for name, crc in files.items()}


def _wrong(done: Entry, rows: int, folder: Path, with_files: bool) -> str:
    """What keeps a cell from being done; empty where nothing does."""
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
    """The first ones, and how many more there are, with the verb that follows."""
    every = list(map(shown, found))
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    return ", ".join(every[:MOST_NAMED]) + more + (" is" if len(every) == 1 else " are")


def read_all(descriptor: int) -> str:
    """The text behind an open file, from its beginning, wherever it is written next."""
    parts, offset = [], 0
    while part := os.pread(descriptor, 2**22, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts).decode(errors="replace")
