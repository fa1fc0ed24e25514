"""What a run shows while it runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

ShowProgress = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all)."""


@contextmanager
def step_bar() -> Iterator[ShowProgress]:
    """A bar on stderr that appears when it is first told of something: what runs may draw bars of its own."""
    progress = Progress(console=Console(stderr=True), transient=True)
    task = progress.add_task("")

    def report(what: str, done: int, total: int) -> None:
        progress.start()
        progress.update(task, completed=done, total=total, description=what)

    try:
        yield report
    finally:
        progress.stop()


class Display:
    """Shows nothing: for tests and for `flwr run`, whose output goes to a log. Others override what they show."""

    def start(self, rounds: int, attacks: int) -> None:
        """So many rounds and attacks are to come."""

    def pretraining(self, done: int, total: int, loss: float) -> None:
        """So many steps of pretraining are done."""

    def round_done(self, cell: str, round: int, accuracy: float) -> None:
        """A round of a cell is over. accuracy: on the test split."""

    def attack_done(self, row: dict[str, Any]) -> None:
        """An attack is over. row: of the leakage table."""

    def attacks_running(self, shares: dict[str, float]) -> None:
        """How much of it each running attack has done, 0 to 1, by name."""

    def stop(self) -> None:
        """The run is over."""


class Bars(Display):
    """Two bars, rounds and attacks; the attacks' bar moves with the iterations of those that run."""

    def __init__(self, console: Console):
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"), console=console, transient=True,
        )  # fmt: skip
        self.rounds = self.attacks = TaskID(0)
        self.finished = 0

    def start(self, rounds: int, attacks: int) -> None:
        self.rounds = self.progress.add_task("rounds", total=rounds, note="starting Flower and Ray …")
        self.attacks = self.progress.add_task("attacks", total=attacks, note="")
        self.progress.start()

    def pretraining(self, done: int, total: int, loss: float) -> None:
        self.progress.update(self.rounds, note=f"pretraining: {done} of {total} steps, loss {loss:.3f}")

    def round_done(self, cell: str, round: int, accuracy: float) -> None:
        where = f"{cell}, " if cell else ""
        self.progress.update(self.rounds, advance=1, note=f"{where}round {round}: test accuracy {accuracy:.3f}")

    def attack_done(self, row: dict[str, Any]) -> None:
        self.finished += 1
        self.progress.update(self.attacks, completed=self.finished)
        if row["status"] != "ok":
            who = f"round {row['round']}, client {row['client']}, {row['threat_model']}, {row['attack']}"
            self.progress.console.print(f"[yellow]{row['status']}[/]: {who}: {row['detail']}", highlight=False)

    def attacks_running(self, shares: dict[str, float]) -> None:
        note = ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items())[:2])
        self.progress.update(self.attacks, completed=self.finished + int(sum(shares.values())), note=note)

    def stop(self) -> None:
        self.progress.stop()
