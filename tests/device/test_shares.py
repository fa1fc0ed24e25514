"""Shares of a GPU that Ray was told of: what clients and attacks ask for, and who may use the card."""

import os

import pytest
import ray
import torch

from attacks.interface.torch_tools import free_card, require_usable_card
from clients.local_update import whereabouts
from simulator.evaluation import dispatch
from simulator.evaluation.dispatch import (
    ATTACK_RESOURCE,
    Dispatcher,
    attack_gpu_share,
    attack_slots,
    calls_of_a_worker,
    room_on_gpus,
)
from simulator.run.cluster import backend_config, stop_ray, worker_environment
from simulator.run_errors import InputError
from simulator.scenario.sections import EngineConfig
from tests.device.card import card
from tests.device.training_cases import client, settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def one_gpu():
    """A Ray of four CPUs, a GPU that nobody can compute on, and two slots for attacks. PyTorch sees no card here, as on
    a head without GPUs."""
    stop_ray()
    ray.init(
        "local",
        num_cpus=4,
        num_gpus=1,
        resources={ATTACK_RESOURCE: 2},
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": worker_environment(threads=1)},
    )
    yield
    stop_ray()


class Client:
    def ready(self):
        return whereabouts()["gpu-ids"]

    def train(self):
        """The device of a client that may use one, where there is a card."""
        with card():
            return client(settings(steps=1, epochs=None))[1]


def clients(engine, count):
    return [ray.remote(**backend_config(engine, count)["client_resources"])(Client).remote() for _ in range(count)]


def end(actors):
    for actor in actors:
        ray.kill(actor)


def test_three_clients_and_an_attack_share_a_gpu_and_train_on_it(one_gpu):
    assert backend_config(EngineConfig(), 3)["client_resources"]["num_gpus"] == 0.3
    actors, dispatcher = clients(EngineConfig(), 3), Dispatcher(workers=None)
    attack = ray.remote(num_cpus=0, **{name: dispatcher.taken[name] for name in ("num_gpus", "resources")})
    try:
        # all at once: the attack has to find room beside clients that keep theirs
        assert ray.get([actor.ready.remote() for actor in actors], timeout=600) == ["0", "0", "0"]
        assert ray.get(attack(ray.get_gpu_ids).remote(), timeout=600) == [0]
        assert dispatcher.taken["num_gpus"] == 0.1
        assert ray.get(actors[0].train.remote(), timeout=600) == "cuda"
    finally:
        end(actors)
        dispatcher.close()


def test_a_client_without_a_share_leaves_the_gpu_alone(one_gpu):
    actors = clients(EngineConfig(gpus=0), 1)
    try:
        assert backend_config(EngineConfig(gpus=0), 1)["client_resources"]["num_gpus"] == 0
        assert ray.get(actors[0].ready.remote(), timeout=600) == ""
        assert ray.get(actors[0].train.remote(), timeout=600) == "cpu"
    finally:
        end(actors)


@pytest.mark.parametrize(
    ("gpus", "said"),
    [(2, "Ray has 1: lower it"), (0.5, "leave no 0.1 GPU for attacks"), (0.97, "leave no 0.1 GPU for attacks")],
)
def test_shares_that_cannot_be_had_are_refused(one_gpu, gpus, said):
    with pytest.raises(InputError, match=said):
        backend_config(EngineConfig(gpus=gpus), 2)


def test_a_share_that_leaves_room_is_asked_for_as_it_was_said(one_gpu):
    assert backend_config(EngineConfig(gpus=0.45), 2)["client_resources"]["num_gpus"] == 0.45
    assert backend_config(EngineConfig(gpus=0.5), 1)["client_resources"]["num_gpus"] == 0.5  # the other half is free


@pytest.fixture
def nodes(monkeypatch):
    """Of a Ray with these resources."""

    def there(*resources):
        total = {name: sum(node.get(name, 0) for node in resources) for name in ("CPU", "GPU", ATTACK_RESOURCE)}
        monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": node} for node in resources])
        monkeypatch.setattr(ray, "cluster_resources", lambda: total)

    return there


def test_what_is_left_for_attacks_is_left_on_one_gpu(nodes):
    """0.12 GPU are left of four, 0.03 on each."""
    nodes({"CPU": 16.0, "GPU": 4.0})
    with pytest.raises(InputError, match=r"leave no 0\.1 GPU for attacks"):
        backend_config(EngineConfig(gpus=0.97), 10)
    assert backend_config(EngineConfig(gpus=0.97), 3) and backend_config(EngineConfig(gpus=1), 3)
    with pytest.raises(InputError, match=r"leave no 0\.1 GPU for attacks"):
        backend_config(EngineConfig(gpus=1), 4)
    with pytest.raises(InputError, match=r"engine\.gpus is 1\.5: Ray has whole GPUs, or shares of one: try 1"):
        backend_config(EngineConfig(gpus=1.5), 2)


@pytest.mark.parametrize(
    ("gpus", "of_a_client", "clients", "room"),
    [
        (1, 0.3, 3, 1),
        (1, 0.0, 0, 10),
        (4, 0.3, 12, 4),
        (4, 0.3, 4, 1 + 7 + 20),
        (4, 2, 1, 20),
        (1, 0.45, 2, 1),
        (1, 1, 1, 0),
    ],
)
def test_attacks_that_run_beside_clients(gpus, of_a_client, clients, room, nodes):
    nodes({"GPU": gpus})
    assert room_on_gpus(0.1, of_a_client, clients) == room


def test_attacks_take_a_gpu_where_those_who_take_attacks_have_one(nodes):
    nodes({ATTACK_RESOURCE: 4.0}, {"GPU": 1.0})  # slots on the head alone
    assert attack_gpu_share() == 0 and attack_slots() == 4
    nodes({ATTACK_RESOURCE: 4.0}, {"GPU": 1.0, ATTACK_RESOURCE: 2.0})
    assert attack_gpu_share() == 0.1 and attack_slots() == 2
    nodes({}, {"GPU": 1.0})
    assert attack_gpu_share() == 0.1 and attack_slots() == 0


@pytest.mark.parametrize(("gpus", "calls"), [([{}, {"GPU": 1.0}], 0), ([{"GPU": 1.0}, {"GPU": 4.0}], 1), ([{}], 0)])
def test_a_process_attacks_again_unless_its_next_attack_could_be_given_another_gpu(gpus, calls, monkeypatch):
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": resources} for resources in gpus])
    assert calls_of_a_worker() == calls


def test_attacks_with_a_share_of_the_gpu_are_made_by_a_process_that_has_imported_them(one_gpu, monkeypatch):
    """Ray starts a process for each of them where nothing is said: four seconds of imports for an attack of one."""
    monkeypatch.setattr(dispatch, "run_remotely", lambda: os.getpid())
    dispatcher = Dispatcher(workers=None)
    try:
        pids = {ray.get(dispatcher.task.remote(), timeout=600) for _ in range(8)}
        slots = attack_slots()
    finally:
        dispatcher.close()
    assert dispatcher.taken["num_gpus"] == 0.1
    assert len(pids) <= slots == 2  # of eight: a busy Ray may hold one for each slot, and asks whichever is free


def test_no_more_attacks_are_sent_than_run_beside_clients(one_gpu):
    """One that waits in Ray for its share would take that of a client whose process ends, before the next has it."""
    dispatcher = Dispatcher(workers=None, beside=(0.3, 3))
    try:
        assert dispatcher.limit == 1
    finally:
        dispatcher.close()


class BrokenCard:
    """What PyTorch says of a GPU once a kernel has read where it may not."""

    def is_initialized(self):
        return True

    def synchronize(self):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    empty_cache = synchronize


def test_a_process_whose_gpu_an_attack_has_broken_takes_no_other(monkeypatch):
    monkeypatch.setattr(torch, "cuda", BrokenCard())
    free_card()  # after the attack that broke it: its row counts
    with pytest.raises(SystemExit, match="the GPU was broken for this process before: CUDA error"):
        require_usable_card()
