"""Send the rows of a run to an experiment tracker, MLflow or Weights & Biases, as they come.

A tracker stands before a `Display`; for other destinations, write another. One that fails costs a line, no result.
"""

import importlib
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from attacks import InputError
from attacks.interface.errors import one_line
from simulator.results.columns import is_number
from simulator.results.keys import ALL
from simulator.results.schema import LEAKAGE
from simulator.run.display import Display
from simulator.run.plan import RunPlan
from simulator.scenario.scenario import Cell
from simulator.scenario.yaml_source import leaves

NUMBERS = [name for name, column in LEAKAGE.columns.items() if column.averaged]

Log = Callable[[dict[str, float], int], None]
"""Called with values by name, and the round."""


class Tracker:
    """Sends the test accuracy of every round and the numbers of every attack, and passes every call on to a display."""

    def __init__(self, display: Display, log: Log, end: Callable[[], None]):
        self.display, self.log, self.end = display, log, end

    def __getattr__(self, name: str) -> Any:
        return getattr(self.display, name)

    def round_done(self, cell: Cell, round: int, accuracy: float) -> None:
        self.display.round_done(cell, round, accuracy)
        self._send({f"{f'{cell.name}/' if cell.name else ''}test_accuracy": accuracy}, round)

    def attack_done(self, row: dict[str, Any], subject: str) -> None:
        self.display.attack_done(row, subject)
        who = "all" if row["client"] == ALL else f"client_{row['client']:02d}"
        where = "/".join(filter(None, [row.get("cell"), row["threat_model"], row["attack"], who]))
        found = {name: row[name] for name in NUMBERS if is_number(row.get(name)) and math.isfinite(row[name])}
        self._send({f"{where}/{name}": value for name, value in found.items()}, row["round"])

    def stop(self) -> None:
        self.display.stop()
        self._try(self.end)

    def _send(self, values: Mapping[str, Any], round: int) -> None:
        if values:
            self._try(partial(self.log, {name: float(value) for name, value in values.items()}, round))

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            logging.getLogger("fedspill").warning("tracking failed: %s; the run goes on", error)


def mlflow_tracker(mlflow: Any, plan: RunPlan) -> tuple[Log, Callable[[], None]]:
    """Start a run of the experiment that MLFLOW_EXPERIMENT_NAME names, at MLFLOW_TRACKING_URI."""
    mlflow.start_run(run_name=plan.run_dir.name)
    mlflow.log_params(_settings(plan))
    return lambda values, round: mlflow.log_metrics(values, step=round), mlflow.end_run


def wandb_tracker(wandb: Any, plan: RunPlan) -> tuple[Log, Callable[[], None]]:
    """Start a run of the project that WANDB_PROJECT names. The round is a value: rows come in any order."""
    run = wandb.init(name=plan.run_dir.name, config=_settings(plan), dir=str(plan.run_dir))
    return lambda values, round: run.log({**values, "round": round}), run.finish


TRACKERS = {"mlflow": mlflow_tracker, "wandb": wandb_tracker}


def tracked(display: Display, plan: RunPlan) -> Display:
    """Return the display with the trackers of `output.track`; raise InputError if one cannot be started."""
    for name in plan.scenario.output.track:
        display = cast(Display, Tracker(display, *_started(name, plan)))
    return display


def _started(name: str, plan: RunPlan) -> tuple[Log, Callable[[], None]]:
    """Return (what sends values, what ends the tracker)."""
    try:
        return TRACKERS[name](importlib.import_module(name), plan)
    except ImportError:
        raise InputError(f"output.track has {name!r}, which is not installed: pip install 'fedspill[{name}]'") from None
    except Exception as error:
        reason = one_line(error)
        raise InputError(f"output.track: {name!r} cannot be started ({reason}): mend that, or leave it out") from None


def _settings(plan: RunPlan) -> dict[str, Any]:
    content = plan.scenario.model_dump(mode="json", exclude={"output"})
    settings = {".".join(map(str, key)): value for key, value in leaves(content) if value is not None}
    return {**settings, "digest": plan.scenario.digest}
