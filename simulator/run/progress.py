"""What a run shows while it runs."""

from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Display(Protocol):
    def start(self, rounds: int, attacks: int) -> None: ...
    def pretraining(self, done: int, total: int, loss: float) -> None: ...
    def round_done(self, cell: str, round: int, accuracy: float) -> None: ...
    def attack_done(self, row: dict[str, Any]) -> None: ...
    def attacks_running(self, shares: dict[str, float]) -> None: ...
    def stop(self) -> None: ...


class Silent:
    """For tests and for `flwr run`, whose output goes to a log."""

    def start(self, rounds: int, attacks: int) -> None:
        pass

    def pretraining(self, done: int, total: int, loss: float) -> None:
        pass

    def round_done(self, cell: str, round: int, accuracy: float) -> None:
        pass

    def attack_done(self, row: dict[str, Any]) -> None:
        pass

    def attacks_running(self, shares: dict[str, float]) -> None:
        pass

    def stop(self) -> None:
        pass


class Bars:
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
