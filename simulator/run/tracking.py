"""Send the rows of a run to an experiment tracker, MLflow or Weights & Biases, as they come.

A tracker stands before a `Display`; for other destinations, write another. One that fails costs a line, no result.
"""

import importlib
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from attacks.interface.errors import InputError, one_line
from simulator.results.columns import is_number
from simulator.results.keys import ALL
from simulator.results.schema import LEAKAGE
from simulator.run.display import Display
from simulator.run.plan import RunPlan
from simulator.scenario.scenario import Cell
from simulator.scenario.yaml_source import leaves

NUMBERS = [name for name, column in LEAKAGE.columns.items() if column.averaged]

Started = tuple[Callable[[dict[str, float], int], None], Callable[[], None]]
"""What sends values by name, with the round, and what ends the tracker."""


class Tracker:
    """Sends the test accuracy of every round and the numbers of every attack, and passes every call on to a display."""

    def __init__(self, display: Display, started: Started):
        self.display, (self.log, self.end) = display, started

    def __getattr__(self, name: str) -> Any:
        return getattr(self.display, name)

    def round_done(self, cell: Cell, round: int, accuracy: float) -> None:
        self.display.round_done(cell, round, accuracy)
        self._try(self.log, {"/".join(filter(None, [cell.name, "test_accuracy"])): accuracy}, round)

    def attack_done(self, row: dict[str, Any], subject: str) -> None:
        self.display.attack_done(row, subject)
        who = "all" if row["client"] == ALL else f"client_{row['client']:02d}"
        where = "/".join(filter(None, [row.get("cell"), row["threat_model"], row["attack"], who]))
        found = [name for name in NUMBERS if is_number(row.get(name)) and math.isfinite(row[name])]
        if found:
            self._try(self.log, {f"{where}/{name}": float(row[name]) for name in found}, row["round"])

    def stop(self) -> None:
        self.display.stop()
        self._try(self.end)

    def _try(self, action: Callable[..., None], *given: object) -> None:
        try:
            action(*given)
        except Exception as error:
            logging.getLogger("fedspill").warning("tracking failed: %s; the run goes on", error)


def start_mlflow(mlflow: Any, run_dir: Path, settings: dict[str, Any]) -> Started:
    """Start a run of the experiment that MLFLOW_EXPERIMENT_NAME names, at MLFLOW_TRACKING_URI."""
    mlflow.start_run(run_name=run_dir.name)
    mlflow.log_params(settings)
    return lambda values, round: mlflow.log_metrics(values, step=round), mlflow.end_run


def start_wandb(wandb: Any, run_dir: Path, settings: dict[str, Any]) -> Started:
    """Start a run of the project that WANDB_PROJECT names. The round is a value: rows come in any order."""
    run = wandb.init(name=run_dir.name, config=settings, dir=str(run_dir))
    return lambda values, round: run.log({**values, "round": round}), run.finish


def tracked(display: Display, plan: RunPlan) -> Display:
    """Return the display with the trackers of `output.track`; raise InputError if one cannot be started."""
    content = plan.scenario.model_dump(mode="json", exclude={"output"}) | {"digest": plan.scenario.digest}
    settings = {".".join(map(str, key)): value for key, value in leaves(content) if value is not None}
    for name in plan.scenario.output.track:
        start = {"mlflow": start_mlflow, "wandb": start_wandb}[name]
        try:
            started = start(importlib.import_module(name), plan.run_dir, settings)
        except ImportError:
            remedy = f"pip install 'fedspill[{name}]'"
            raise InputError(f"output.track has {name!r}, which is not installed: {remedy}") from None
        except Exception as error:
            why = f"cannot be started ({one_line(error)})"
            raise InputError(f"output.track: {name!r} {why}: mend that, or leave it out") from None
        display = cast(Display, Tracker(display, started))
    return display
