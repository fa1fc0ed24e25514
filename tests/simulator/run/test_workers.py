"""The one dependence on the inside of Flower: a simulation has to use our backend, and to end through it."""

import pytest
import ray
from flwr.app import Context
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from clients.client_app import app as client_app
from simulator.run.cluster import stop_ray
from simulator.run.federation import wait_for_nodes
from simulator.run.workers import KillablePool, KillingBackend, killing_backend


def test_flower_has_its_own_backend_again_afterwards():
    own, pool = raybackend.RayBackend, raybackend.BasicActorPool
    with killing_backend():
        assert raybackend.RayBackend is not own and raybackend.BasicActorPool is KillablePool
    assert raybackend.RayBackend is own and issubclass(KillingBackend, own)
    assert raybackend.BasicActorPool is pool and issubclass(KillablePool, pool)


@pytest.mark.slow
def test_a_simulation_ends_its_actors_by_killing_them_before_ray_goes_down(monkeypatch):
    happened = []
    kill, shutdown = ray.kill, ray.shutdown
    monkeypatch.setattr(ray, "kill", lambda actor: happened.append("kill") or kill(actor))
    monkeypatch.setattr(ray, "shutdown", lambda: happened.append("shutdown") or shutdown())
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        assert wait_for_nodes(grid, 1, seconds=60.0) == 1

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    try:
        with killing_backend():
            run_simulation(server_app, client_app, num_supernodes=1, backend_config=resources)
    finally:
        stop_ray()
    assert happened[:3] == ["kill", "kill", "shutdown"]  # as many actors as CPUs
