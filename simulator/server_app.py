"""The Flower ServerApp of `flwr run`: reads `scenario` and `out` from the run configuration."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from simulator.display import Silent
from simulator.federation import run_federation
from simulator.plan import make_plan, prepare_directory
from simulator.scenario import load_scenario

app = ServerApp()
PROJECT = Path(__file__).resolve().parents[1]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the scenario named in [tool.flwr.app.config] or with `flwr run . --run-config 'scenario="FILE"'`."""
    path = Path(str(context.run_config["scenario"]))
    scenario = load_scenario(path if path.exists() else PROJECT / path)
    out = str(context.run_config.get("out", ""))
    plan = make_plan(scenario, Path(out) if out else None)
    if prepare_directory(plan, overwrite=False):
        run_federation(grid, plan, Silent())
    print(f"leakage table: {(plan.run_dir / 'leakage.csv').resolve()}")
