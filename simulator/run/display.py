"""Show the progress of a run: bars on a terminal, plain lines elsewhere. End it on Ctrl-C and SIGTERM."""

import contextlib
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from attacks.calibration import beats_chance
from attacks.interface.errors import counted
from simulator.run_errors import printable
from simulator.scenario.scenario import Cell
from simulator.terminal import Terminal, command_again, print_error

QUIET = 30.0  # seconds between two lines on progress
LINES = 20  # on finished attacks, about so many in a run

ShowProgress = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all)."""


class PlainColumn(TextColumn):
    """Shows markup and escape sequences as text: names of attacks may be anybody's."""

    def render(self, task: Task) -> Text:
        return Text(printable(self.text_format.format(task=task)))


@contextlib.contextmanager
def step_bar() -> Iterator[ShowProgress]:
    """Yield a function that shows a bar on stderr from its first call on. If stderr is no terminal, print a line at the
    start of each step and every half minute."""
    console = Terminal(stderr=True)
    progress = Progress(
        PlainColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
        console=console, transient=True,
    )  # fmt: skip
    task, last, said = progress.add_task(""), "", 0.0

    def report(what: str, done: int, total: int) -> None:
        nonlocal last, said
        if console.is_terminal:
            progress.start()
            progress.update(task, completed=done, total=total, description=what)
            return
        name, now = what.partition(",")[0], time.monotonic()
        if name != last or now - said >= QUIET:
            last, said = name, now
            console.print(f"fedspill: {what}, {done} of {total}", soft_wrap=True)

    try:
        yield report
    finally:
        if console.is_terminal:
            progress.stop()


def loss_bar(report: ShowProgress, name: str) -> Callable[[int, int, float], None]:
    """Return what shows the steps of one piece of work with its loss, if it has one."""
    return lambda done, total, loss: report(name + ("" if math.isnan(loss) else f", loss {loss:.2e}"), done, total)


def run_display() -> "Display":
    """Return bars if stderr is a terminal, else lines."""
    console = Terminal(stderr=True)
    return Bars(console) if console.is_terminal else Lines(console)


class Display:
    """Shows notes alone, and without a console prints them to stderr: for tests, and for `flwr run`, whose output goes
    to a log. Subclasses show more.

    updates: how many are tested for members in all.
    """

    def __init__(self, console: Terminal | None = None) -> None:
        self.console = console
        self.updates = 1
        self.reasons = set[str]()  # kinds of reasons that have been shown in full

    def why(self, row: dict[str, Any]) -> str:
        """Return why an attack gave no result, in full the first time. row: of the leakage table."""
        kind = re.sub(r"\d+", "#", f"{row['attack']}: {row['detail']}")
        known = kind in self.reasons
        self.reasons.add(kind)
        return "as before" if known else str(row["detail"])

    def note(self, line: str) -> None:
        """Show a line that a user has to know of, without a console on stderr."""
        if self.console is None:
            print_error(line)
        else:
            self.console.print(f"fedspill: {line}", soft_wrap=True)

    def price(self, lines: Callable[[], Iterable[str]]) -> None:
        """Show what will be done and what that costs, on a console. lines: computes it, which takes seconds."""
        for line in lines() if self.console is not None else ():
            self.note(line)

    def start(self, rounds: int, attacks: int) -> None:
        """Begin with so many rounds and attacks."""

    def pretraining(self, done: int, total: int, loss: float) -> None:
        """Note steps of pretraining."""

    def round_done(self, cell: Cell, round: int, accuracy: float) -> None:
        """Note the end of a round of a cell. accuracy: on the test split."""

    def attack_done(self, row: dict[str, Any], subject: str) -> None:
        """Note the end of an attack. row: of the leakage table. subject: on what it was, and which, in words."""

    def attacks_running(self, shares: dict[str, float]) -> None:
        """Note the share done of each running attack, 0 to 1, by its subject."""

    def stop(self) -> None:
        """End."""


def found_by(row: dict[str, Any], updates: int = 1) -> str:
    """Return what an attack found, in words; "" for nothing. row: of the leakage table. updates: as of `Display`."""
    said = []
    if row.get("recovered"):
        said.append(f"{row['recovered']} of {row['num_private']} images recovered")
    elif row.get("recovered") is None and row.get("num_vouched"):
        said.append(f"{row['num_vouched']} images")
    if row.get("num_features") and not said:
        said.append(f"features of {row['num_features']} images")
    if row.get("membership_told") and beats_chance(row.get("membership_p", 1.0), updates):
        said.append(f"{row['membership_told']} of {row['membership_candidates']} candidates stand out")
    return ", ".join(said)


class Bars(Display):
    """Two bars, rounds and attacks; the attacks' bar moves with the iterations of those that run."""

    def __init__(self, console: Terminal):
        super().__init__(console)
        self.progress = Progress(
            PlainColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            PlainColumn("{task.fields[note]}"), console=console, transient=True,
        )  # fmt: skip
        self.rounds = self.attacks = TaskID(0)
        self.finished = 0

    def start(self, rounds: int, attacks: int) -> None:
        starting, audit = "starting Flower and Ray …", rounds == 0
        self.rounds = self.progress.add_task("rounds", total=rounds, note=starting, visible=not audit)
        self.attacks = self.progress.add_task("attacks", total=attacks, note="")
        self.progress.start()

    def pretraining(self, done: int, total: int, loss: float) -> None:
        self.progress.update(self.rounds, note=f"pretraining: {done} of {total} steps, loss {loss:.3f}")

    def round_done(self, cell: Cell, round: int, accuracy: float) -> None:
        where = f"{cell.words}, " if cell.words else ""
        self.progress.update(self.rounds, advance=1, note=f"{where}round {round}: test accuracy {accuracy:.3f}")

    def attack_done(self, row: dict[str, Any], subject: str) -> None:
        self.finished += 1
        self.progress.update(self.attacks, completed=self.finished)
        failed, found = row["status"] != "ok", found_by(row, self.updates)
        if failed or found:
            said = printable(f"{subject}: {self.why(row) if failed else found}")
            word = (printable(row["status"]), "yellow") if failed else ("found", "green")
            self.progress.console.print(Text.assemble(word, ": ", said))

    def attacks_running(self, shares: dict[str, float]) -> None:
        note = "; ".join(f"{subject} {share:.0%}" for subject, share in sorted(shares.items())[:2])
        self.progress.update(self.attacks, completed=self.finished + int(sum(shares.values())), note=note)

    def stop(self) -> None:
        self.progress.stop()


class Lines(Display):
    """A line for every round, for about twenty steps of the attacks, and for every attack without a result."""

    def __init__(self, console: Terminal):
        super().__init__(console)
        self.started = self.last = time.monotonic()
        self.rounds = self.attacks = self.rounds_done = self.attacks_over = 0

    def note(self, line: str) -> None:
        self.last = time.monotonic()
        super().note(line)

    def start(self, rounds: int, attacks: int) -> None:
        self.rounds, self.attacks = rounds, attacks
        todo = f"{counted(attacks, 'attack')} to do"
        self.note(f"{counted(rounds, 'round')} and {todo}, starting Flower and Ray" if rounds else todo)

    def pretraining(self, done: int, total: int, loss: float) -> None:
        if self._quiet():
            self.note(f"pretraining: {done} of {total} steps, loss {loss:.3f}")

    def round_done(self, cell: Cell, round: int, accuracy: float) -> None:
        self.rounds_done += 1
        where = f"{cell.words}, " if cell.words else ""
        self.note(f"{self.rounds_done} of {self.rounds} rounds: {where}round {round}, test accuracy {accuracy:.3f}")

    def attack_done(self, row: dict[str, Any], subject: str) -> None:
        self.attacks_over += 1
        failed = row["status"] != "ok"
        if failed or self.attacks_over % max(1, self.attacks // LINES) == 0 or self.attacks_over == self.attacks:
            how = f"{row['status']}: {self.why(row)}" if failed else found_by(row, self.updates) or "done"
            self.note(f"{self.attacks_over} of {self.attacks} attacks: {subject}, {how}")

    def attacks_running(self, shares: dict[str, float]) -> None:
        if shares and self._quiet():
            names = "; ".join(f"{subject} {share:.0%}" for subject, share in sorted(shares.items())[:2])
            self.note(f"{self.attacks_over} of {self.attacks} attacks are over, {len(shares)} run: {names}")

    def stop(self) -> None:
        seconds = time.monotonic() - self.started
        rounds = f"{counted(self.rounds_done, 'round')} and " if self.rounds else ""
        self.note(f"{rounds}{counted(self.attacks_over, 'attack')} done in {seconds:.0f} s")

    def _quiet(self) -> bool:
        return time.monotonic() - self.last >= QUIET


@contextlib.contextmanager
def interruptible(display: Display, again: str = "") -> Iterator[None]:
    """End the process at once on Ctrl-C and SIGTERM, with exit codes 130 and 143. again: what it then does anew.

    Flower would wait for its server's thread, until the run is done, and Ray for locks that the interrupted call holds.
    Rows and files are complete when they are written, so that only attacks and rounds in progress are lost;
    `orphan_reaper` ends the processes that were started.
    """

    def leave(signum: int, frame: Any) -> None:
        for one in before:
            signal.signal(one, lambda signum, frame: os._exit(128 + signum))
        display.stop()
        print_error("interrupted; what is over is kept, and `fedspill report` shows it")
        print_error(f"this goes on{again}:")
        print(f"  {command_again()}", file=sys.stderr, flush=True)
        os._exit(128 + signum)

    before = {}
    if threading.current_thread() is threading.main_thread():  # signals are the main thread's
        before = {one: signal.signal(one, leave) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
