"""Open a finished or interrupted run: its tables and observations, attacks on it, pictures in a notebook.

A run directory may come by mail: everything in its files is checked.
"""

import json
import os
from functools import cached_property
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd
from pyarrow import parquet
from torch import Tensor

from attacks import InputError, Knowledge, Observation, Reconstruction
from attacks.base import Progress, silent
from attacks.interface.errors import counted, did_you_mean, one_line
from attacks.interface.normalization import Pictures
from clients.data.files import check_unpacked
from simulator.evaluation.attack_run import AttackRun
from simulator.evaluation.image_files import read_truth
from simulator.evaluation.truth import Truth
from simulator.results.columns import JSON, TEXT, Column, Table
from simulator.results.disk import inside, is_changed
from simulator.results.keys import ALL, ObservationKey
from simulator.results.ledger import JOURNAL, JournalContents, frames_of, read_journal
from simulator.results.schema import CLIENTS, LEAKAGE, SAMPLES, UTILITY
from simulator.results.storage import CellStore
from simulator.rundir.exposure_rows import worst_first
from simulator.rundir.strip import cell_of, worst_pictures
from simulator.scenario.scenario import Cell, Scenario, validate
from simulator.scenario.sections import AttackConfig
from simulator.scenario.yaml_source import Dumped, YamlSource, read_document

MOST_LINES = 20  # of the table in a notebook
LINE = ["cell", "round", "client", "threat_model", "attack", "defense", "recovered", "num_private", "num_reconstructed"]
LINE += ["leakage", "leakage_floor"]


def worst_table(leakage: pd.DataFrame) -> pd.DataFrame:
    """Return the worst row of each client, and of all together, in a few columns."""
    rows = worst_first(leakage[(leakage.status == "ok") & (leakage.target == "private")])
    worst = rows.groupby("client", sort=False).head(1).head(MOST_LINES)
    named = worst.assign(client=worst.client.astype(str).where(worst.client != ALL, "all")).round(2)
    return named[[name for name in LINE if name in named and named[name].notna().any()]]


DESCRIPTION, AUDIT = "scenario.yaml", "audit.yaml"  # of a run and of an audit, in their directories
MOST_NAMED = 3  # settings, in a sentence
PAGE = "report.html"
WRITTEN = "name the folder that a run, an audit or a benchmark wrote"


def read_description(path: Path) -> dict:
    """Read scenario.yaml or audit.yaml of a run directory; raise InputError if it is damaged."""
    try:
        _, content = read_document(inside(path.parent, path), "description", Dumped)
    except InputError as error:
        reason = one_line(error)
        raise InputError(f"{str(path)!r} cannot be read ({reason}): the run directory is damaged") from None
    return content if isinstance(content, dict) else {}


def _table(table: Table) -> cached_property[pd.DataFrame]:
    """Make a property that reads a table, of an unfinished run from its journal. It raises InputError if there is none,
    or if the table is damaged."""

    def read(run: "Run") -> pd.DataFrame:
        path = run.path / f"{table.name}.parquet"
        try:
            if run.stopped and run.journal.entries:
                added = {name for cell in run.cells.values() for name in cell.swept}  # `cell`, too
                return frames_of(run.journal.entries, added)[table.name]
            if not path.exists():
                why = "nothing is over yet" if run.stopped else "it did not finish"
                raise InputError(
                    f"{str(run.path)!r} has no {table.name} table: {why}; the command that began it goes on with it"
                )
            return read_table(inside(run.path, path), table)
        except InputError:
            raise
        except Exception as error:  # the reader of a damaged file may raise anything
            reason = one_line(f"{type(error).__name__}: {error}", most=120)
            raise InputError(f"{str(path)!r} cannot be read ({reason}): run it again, or restore it") from None

    return cached_property(read)


class Run:
    """A run directory.

    run = load("runs/quickstart-0123456789")
    run.leakage                                   # the leakage table, a pandas DataFrame
    observation, knowledge = run.observation(1, 0)  # what the server saw of client 0 in round 1
    run.attack(1, 0, "ntk").images                # attacked again, bit for bit as in the run
    run.show()                                    # the images that leaked most, beside what was made of them
    run.page                                      # its report.html, for a browser
    """

    leakage, samples = _table(LEAKAGE), _table(SAMPLES)
    utility, clients = _table(UTILITY), _table(CLIENTS)

    def __init__(self, path: str | Path):
        self.path = Path(path)
        found = next((name for name in (DESCRIPTION, AUDIT) if (self.path / name).exists()), None)
        if found is None:
            raise InputError(f"{str(path)!r} {_instead(self.path)}")
        self.description = read_description(self.path / found)
        self.is_audit, part = found == AUDIT, Path(found).stem
        if not isinstance(self.description.get(part), dict):
            raise InputError(f"{str(self.path / found)!r} describes no run: it has no `{part}`")

    @cached_property
    def journal(self) -> JournalContents:
        return read_journal(self.path / JOURNAL, with_files=False)

    @cached_property
    def stopped(self) -> str:
        """Say of an unfinished run how much of it there is and how it goes on; "" if it finished."""
        begun = {entry["cell"] for entry in self.journal.entries if "cell" in entry}
        jobs = self.description.get("jobs") if self.is_audit else None
        done, of = len(self.journal.done), jobs if isinstance(jobs, int) else 0
        if (self.path / f"{LEAKAGE.name}.parquet").exists() and begun <= self.journal.done and done >= of:
            return ""
        rows = [entry.get("row") or {} for entry in self.journal.entries if entry.get("table") == LEAKAGE.name]
        over = sum(row.get("status") != "skipped" for row in rows)
        count = f"{done} of {of} attacks are" if of else f"{over} attack{' is' if over == 1 else 's are'}"
        left = [name for name in self.cells if name and name not in self.journal.done]
        names = f"{', '.join(left[:MOST_NAMED])}{', …' * (len(left) > MOST_NAMED)}"
        others = f"{len(left)} of {len(self.cells)} settings did not end: {names}"
        return (
            f"this {'audit' if self.is_audit else 'run'} is incomplete: {count} over, and "
            f"{others if left else 'nothing is known of the others'}; the command that began it goes on from there, "
            f"with --out {self.path}"
        )

    @property
    def name(self) -> str:
        """The name of the scenario, or of the recording that was audited."""
        return Path(self.description["audit"]["recording"]).name if self.is_audit else self.scenario.name

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario. Raise InputError for an audit, which has none."""
        if self.is_audit:
            raise InputError(f"{str(self.path)!r} is an audit: it has no scenario")
        return validate(YamlSource(self.description["scenario"]))

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """The cells of the sweep by name; one cell called "" without a sweep; none of an audit."""
        return {} if self.is_audit else {cell.name: cell for cell in self.scenario.cells()}

    def seed(self, cell: str = "") -> int:
        """Return the seed of a cell, or of an audit."""
        return int(self.description["audit"]["seed"]) if self.is_audit else self.cells[cell].scenario.seed

    def private_images(self, key: ObservationKey, cell: str = "") -> Tensor | None:
        """Read the images (N, C, H, W) in [0, 1], in the order of the column `image` of the samples; None if unknown.
        They are for reports, not for attacks."""
        if not self.is_audit:
            clients = self.store(cell).recorded(key).clients
            return Truth.of(self.cells[cell].scenario, clients, clients).private
        given = self.description["audit"]
        return None if given["truth"] is None else read_truth(Path(given["truth"]), tuple(given["shape"])).images

    def samples_of(self, row: pd.Series) -> pd.DataFrame:
        """Return the rows of the samples table for a row of the leakage table: one for each private image."""
        names = ["round", "client", "threat_model", "attack", "target", *(["cell"] if cell_of(row) else [])]
        return self.samples[np.logical_and.reduce([self.samples[name] == row[name] for name in names])]

    @property
    def page(self) -> Path:
        """The path of report.html. Raise InputError if there is none."""
        if not (self.path / PAGE).exists():
            raise InputError(f"{str(self.path)!r} has no {PAGE}: `fedspill report {self.path}` makes it")
        return self.path / PAGE

    def store(self, cell: str = "") -> CellStore:
        if cell not in ([""] if self.is_audit else self.cells):
            which = (
                f"has no setting {cell!r}" if cell else "has several settings: choose one with --cell, in Python `cell`"
            )
            raise InputError(f"run {str(self.path)!r} {which}{did_you_mean(cell, sorted(self.cells))}")
        return CellStore(self.path, cell)

    def observation(
        self, round: int, client: int = ALL, threat_model: str = "server", cell: str = ""
    ) -> tuple[Observation, Knowledge]:
        """Load what the adversary saw and was granted. client: −1 for all of them. Raise InputError if a checkpoint has
        changed since the run wrote it, as far as the journal has its checksum."""
        key = ObservationKey(round, client, threat_model)
        store, written = self.store(cell), self.journal.files
        for name in {name for pair in store.recorded(key).pairs for name in pair}:
            path = store.checkpoint_path(name)
            known = written.get(os.path.relpath(path, self.path))
            if known is not None and is_changed(path, known):
                raise InputError(
                    f"checkpoint {str(path)!r} was cut off or changed since the run wrote it: run it again"
                )
        return store.load(key)

    def attack(
        self,
        round: int,
        client: int,
        attack: str | AttackConfig,
        threat_model: str = "server",
        *,
        cell: str = "",
        knowledge: Knowledge | None = None,
        progress: Progress = silent,
    ) -> Reconstruction:
        """Attack a recorded observation. An attack named as in the scenario has the scenario's options and seed."""
        observation, granted = self.observation(round, client, threat_model, cell)
        key = ObservationKey(round, client, threat_model)
        return self.attack_run(attack, key, cell).run(observation, knowledge or granted, progress)

    def private(self, round: int, client: int = ALL, threat_model: str | None = None, cell: str = "") -> Tensor:
        """Read the private images behind an observation, (N, C, H, W) in [0, 1], in the order of `samples.image`.
        client: −1 for all of a round, by default as an observer sees them. Raise InputError if they are unknown."""
        key = ObservationKey(round, client, threat_model or ("observer" if client == ALL else "server"))
        images = self.private_images(key, cell)
        if images is None:
            raise InputError(f"{str(self.path)!r} was audited without the truth: nobody here knows the private images")
        return images

    def show(self, most: int = 10, **where: int | str) -> Pictures:
        """Return pictures of the row that leaks most, its best images first. A notebook shows them; `.save("FILE.png")`
        makes a file. where: values of columns, as in `run.show(client=2, attack="span")`; default: all rows. Raise
        InputError if none of these attacks came to an end.
        """
        rows = self.leakage[(self.leakage.status == "ok") & (self.leakage.target == "private")]
        for name, value in where.items():
            if name not in rows:
                raise InputError(f"run.show has no {name!r}{did_you_mean(name, sorted(rows))}")
            rows = rows[rows[name] == value]
        if rows.empty:
            raise InputError(f"{str(self.path)!r} has no attack that came to an end where {where}: see run.leakage")
        return worst_pictures(self, worst_first(rows).iloc[0], most)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self._said()})"

    def _repr_html_(self) -> str:
        shown = self.show()._repr_html_() if self._shows else ""
        table = worst_table(self.leakage).to_html(index=False) if self._shows else ""
        return f"<div><b>{escape(str(self.path))}</b>: {escape(self._said())}{shown}{table}</div>"

    @property
    def _shows(self) -> bool:
        return not self.stopped and bool((self.leakage.status == "ok").any())

    def _said(self) -> str:
        what = f"{'audit of' if self.is_audit else 'scenario'} {self.name!r}"
        if self.stopped:
            return f"{what}, not finished"
        table = self.leakage
        clients = table.client[table.client != ALL].nunique()
        counts = {"round": table["round"].nunique(), "client": clients, "attack": len(table)}
        return ", ".join([what, *(counted(n, name) for name, n in counts.items())])

    def attack_run(self, attack: str | AttackConfig, key: ObservationKey, cell: str = "") -> AttackRun:
        """Return an attack with the cell's seed, threads and facts of its defense. attack: a label of the scenario, or
        the name of any attack, which then has its default options."""
        if isinstance(attack, str):
            default = AttackConfig.model_construct(name=attack, label=AttackConfig.default_label({"name": attack}))
            named = [] if self.is_audit else self.cells[cell].scenario.adversary.attacks
            attack = next((config for config in named if config.label == attack), default)
            attack.make()  # refuses a wrong name
        if self.is_audit:
            return AttackRun(attack, self.seed())
        scenario = self.cells[cell].scenario
        return AttackRun.of(attack, scenario, self.store(cell).recorded(key).defense_facts)


def load(path: str | Path) -> Run:
    """Open a run directory."""
    return Run(path)


VALUE = 64  # bytes that a value of a table takes in memory
NAMED = ("round", "client", "threat_model", "attack", "status")  # columns without missing values


def read_table(path: Path, table: Table) -> pd.DataFrame:
    """Read a parquet file. Raise ValueError for a table that no run writes, or that has far too many values for the
    size of its file; the reader of a damaged file may raise anything."""
    told = parquet.read_metadata(path)
    check_unpacked(VALUE * told.num_rows * told.num_columns, path.stat().st_size)
    frame = pd.read_parquet(path)
    if not frame.columns.is_unique:
        raise ValueError("two columns have the same name")
    for name, column in table.columns.items():
        if name in frame:
            _check_values(frame[name], column)
        elif name in NAMED:
            raise ValueError(f"it has no column {name!r}")
    return frame


def _check_values(values: pd.Series, column: Column) -> None:
    known = values.dropna()
    is_text = column.dtype == TEXT
    fits = known.map(lambda value: isinstance(value, str)).all() if is_text else pd.api.types.is_numeric_dtype(known)
    if len(known) and not fits:
        raise ValueError(f"column {column.name!r} holds something else than {'texts' if is_text else 'numbers'}")
    if column.unit == JSON and not all(map(_is_json, known.unique())):
        raise ValueError(f"column {column.name!r} holds something else than JSON")
    if column.name in NAMED and len(known) < len(values):
        raise ValueError(f"column {column.name!r} has rows without a value")


def _instead(path: Path) -> str:
    """Say what a path is that is no run directory, and what to do about it."""
    audit = path.with_name(f"{path.name}-audit")
    if not path.exists():
        return f"does not exist: {WRITTEN}"
    if not (path / "recording.json").exists():
        return f"is no run directory: it has no {DESCRIPTION} and no {AUDIT}; {WRITTEN}"
    found = f"its audit is {str(audit)!r}" if (audit / AUDIT).exists() else "`fedspill audit` attacks it"
    return f"is a recording, no run directory: {found}"


def _is_json(text: str) -> bool:
    """Return whether a text is an object, or a list of objects; "" stands for none."""
    try:
        content = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return False
    return all(isinstance(part, dict) for part in (content if isinstance(content, list) else [content]))
