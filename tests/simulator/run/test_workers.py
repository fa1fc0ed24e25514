"""The one dependence on the inside of Flower: a simulation has to use our backend, and to end through it."""

import subprocess
import sys

import pytest
import ray
from flwr.app import Context
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from clients.client_app import app as client_app
from simulator.run.cluster import stop_ray
from simulator.run.federation import wait_for_nodes
from simulator.run.workers import KillingBackend, killing_backend


def test_flower_has_its_own_backend_again_afterwards():
    own = raybackend.RayBackend
    with killing_backend(clients=1):
        assert raybackend.RayBackend is not own
    assert raybackend.RayBackend is own and issubclass(KillingBackend, own)


def test_the_process_of_clients_does_not_import_flower_s_server():
    code = (
        "import sys, simulator.run.client_actor; "
        "print([m for m in ('flwr.simulation', 'flwr.superlink', 'sqlalchemy', 'pandas') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_simulation_ends_its_actors_by_killing_them_before_ray_goes_down(monkeypatch):
    happened = []
    kill, shutdown = ray.kill, ray.shutdown
    monkeypatch.setattr(ray, "kill", lambda actor: happened.append("kill") or kill(actor))
    monkeypatch.setattr(ray, "shutdown", lambda: happened.append("shutdown") or shutdown())
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        assert wait_for_nodes(grid, 2, seconds=60.0) == 2

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"address": "local", "num_cpus": 3}}
    try:
        with killing_backend(clients=2):
            run_simulation(server_app, client_app, num_supernodes=2, backend_config=resources)
    finally:
        stop_ray()
    assert happened[:3] == ["kill", "kill", "shutdown"]  # as many actors as clients, though there are more CPUs
