"""The one dependence on the inside of Flower: a simulation has to use our backend, and to end through it."""

import threading
from types import SimpleNamespace

import pytest
import ray
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from clients.client_app import LIMIT, OUT_OF_TIME
from clients.client_app import app as client_app
from simulator.run import workers
from simulator.run.cluster import actors_that_fit, stop_ray
from simulator.run.federation import wait_for_nodes
from simulator.run.workers import DIED, KillablePool, KillingBackend, killing_backend


def test_flower_has_its_own_backend_again_afterwards():
    own = raybackend.RayBackend
    with killing_backend(clients=1):
        assert raybackend.RayBackend is not own
    assert raybackend.RayBackend is own and issubclass(KillingBackend, own)


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


@pytest.mark.parametrize(
    ("nodes", "share", "fit"),
    [
        ([{"CPU": 16.0, "GPU": 4.0}], 0.3, 12),
        ([{"CPU": 3.0, "GPU": 2.0}], 0.6, 2),
        ([{"CPU": 8.0, "GPU": 1.0}, {"CPU": 2.0, "GPU": 1.0}, {"CPU": 4.0}], 0.25, 6),
        ([{"CPU": 16.0, "GPU": 4.0}], 2, 2),
        ([{"CPU": 3.0}, {"CPU": 1.0, "GPU": 1.0}, {}], 0, 4),
    ],
)
def test_a_share_of_a_gpu_lies_on_one_gpu(nodes, share, fit, monkeypatch):
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": node} for node in nodes])
    assert actors_that_fit(num_cpus=1, num_gpus=share) == fit


def test_a_client_that_ray_ends_for_its_memory_costs_no_other_client_its_worker(monkeypatch):
    """Ray says so with an error of its own kind; the handle of such an actor is of no use to anybody."""

    class Worker:
        __ray_ready__ = SimpleNamespace(remote=lambda: "ready")

    def get(reference, timeout):
        if reference == "ready":
            return True
        raise ray.exceptions.OutOfMemoryError("the node ran low")

    pool = object.__new__(KillablePool)
    pool.pool, pool.num_actors, pool.create_actor_fn = [Worker()], 1, Worker
    pool.work, pool.killed, pool.lost, pool.lock = {}, set(), set(), threading.Lock()
    first, ended = pool.pool[0], []
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "kill", ended.append)
    backend = object.__new__(KillingBackend)
    backend.pool, backend.app_fn = pool, lambda: None
    answers = iter(["first", "second", "third"])
    monkeypatch.setattr(pool, "submit", lambda fn, job: type(pool).submit(pool, lambda *_: next(answers), job))
    monkeypatch.setattr(workers, "Message", lambda error, reply_to: SimpleNamespace(error=error))
    message = SimpleNamespace(content=RecordDict())
    reply, _ = backend.process_message(message, Context(1, 7, {"partition-id": 0}, RecordDict(), {}))
    assert reply.error.reason == DIED and len(ended) == 2 and ended[0] is first
    assert len(pool.pool) == 1 and pool.pool[0] not in ended
    # a process that ends when its time is over has ended itself: it is not started once more
    message.content["config"] = ConfigRecord({LIMIT: 1e-9})
    reply, _ = backend.process_message(message, Context(1, 7, {"partition-id": 0}, RecordDict(), {}))
    assert reply.error.code == OUT_OF_TIME and len(ended) == 3
