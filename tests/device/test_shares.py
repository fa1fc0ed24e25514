"""Shares of a GPU that Ray was told of: what clients and attacks ask for, and who may use the card."""

import pytest
import ray

from clients.environment import whereabouts
from simulator.errors import InputError
from simulator.evaluation.dispatch import ATTACK_RESOURCE, Dispatcher
from simulator.run.cluster import backend_config, stop_ray, worker_environment
from simulator.scenario.sections import EngineConfig
from tests.device.card import card
from tests.device.test_clients import client, settings

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
    return [ray.remote(**backend_config(engine)["client_resources"])(Client).remote() for _ in range(count)]


def end(actors):
    for actor in actors:
        ray.kill(actor)


def test_three_clients_and_an_attack_share_a_gpu_and_train_on_it(one_gpu):
    assert backend_config(EngineConfig())["client_resources"]["num_gpus"] == 0.3
    actors, dispatcher = clients(EngineConfig(), 3), Dispatcher(workers=None)
    attack = ray.remote(num_cpus=0, **{name: dispatcher.taken[name] for name in ("num_gpus", "resources")})
    try:
        # all at once: the attack has to find room beside clients that keep theirs
        assert ray.get([actor.ready.remote() for actor in actors], timeout=120) == ["0", "0", "0"]
        assert ray.get(attack(ray.get_gpu_ids).remote(), timeout=60) == [0]
        assert dispatcher.taken["num_gpus"] == 0.1
        assert ray.get(actors[0].train.remote(), timeout=120) == "cuda"
    finally:
        end(actors)
        dispatcher.close()


def test_a_client_without_a_share_leaves_the_gpu_alone(one_gpu):
    actors = clients(EngineConfig(gpus=0), 1)
    try:
        assert backend_config(EngineConfig(gpus=0))["client_resources"]["num_gpus"] == 0
        assert ray.get(actors[0].ready.remote(), timeout=120) == ""
        assert ray.get(actors[0].train.remote(), timeout=120) == "cpu"
    finally:
        end(actors)


@pytest.mark.parametrize(("gpus", "said"), [(2, "Ray has 1: lower it"), (0.5, "leave no 0.1 GPU for attacks")])
def test_shares_that_cannot_be_had_are_refused(one_gpu, gpus, said):
    with pytest.raises(InputError, match=said):
        backend_config(EngineConfig(gpus=gpus))


def test_a_share_that_leaves_room_is_asked_for_as_it_was_said(one_gpu):
    assert backend_config(EngineConfig(gpus=0.45))["client_resources"]["num_gpus"] == 0.45
