"""The Flower ServerApp of `flwr run`: reads `scenario` and `out` from the run configuration."""

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from simulator.cli.finish import no_result, without_result
from simulator.reports.page.pages import write_report
from simulator.run.display import Display
from simulator.run.federation import run_federation, wait_for_nodes
from simulator.run.plan import make_plan
from simulator.run.run_folder import claimed, needs_run
from simulator.run_errors import InputError, RunError
from simulator.rundir.run import Run
from simulator.scenario.scenario import load_scenario

app = ServerApp()
PROJECT = Path(__file__).resolve().parents[1]
NODE_WAIT = 30.0  # seconds


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the scenario named in [tool.flwr.app.config] or by `flwr run . --run-config 'scenario="FILE"'`."""
    try:
        run_here(grid, context)
    except (InputError, RunError) as error:
        logging.getLogger("flwr").error("fedspill: %s", error)
        # only an exception makes the run a failed one; Flower prints its stack, which says no more than the line
        raise error.with_traceback(None) from None


def run_here(grid: Grid, context: Context) -> None:
    """Run with the SuperNodes as clients: if fewer are up than the scenario asks for, with those."""
    path = Path(str(context.run_config["scenario"]))
    path = path if path.exists() else PROJECT / path
    wanted = load_scenario(path).federation.clients
    found = wait_for_nodes(grid, wanted, NODE_WAIT)
    if found < wanted:
        logging.getLogger("flwr").warning(
            "the scenario asks for %d clients, %d SuperNodes are up: running with %d. For all of them: "
            "flwr run . --federation-config 'num-supernodes=%d'", wanted, found, found, wanted
        )  # fmt: skip
    scenario = load_scenario(path, [f"federation.clients={min(found, wanted)}"])
    out = str(context.run_config.get("out", ""))
    plan = make_plan(scenario, Path(out) if out else None)
    if needs_run(plan):
        with claimed(plan):
            run_federation(grid, plan, Display())
        if scenario.output.figures:
            write_report(plan.run_dir)
    leakage = Run(plan.run_dir).leakage
    if error := no_result(leakage) or without_result(leakage):  # Flower knows no exit code of ours
        logging.getLogger("flwr").warning("%s", error)
    print(f"leakage table: {(plan.run_dir / 'leakage.csv').resolve()}")
