"""The Ray that a run starts is its own: strangers are kept out, others' clusters are left alone."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest
import ray
from ray._private.node import Node

from simulator.evaluation.dispatch import ATTACK_RESOURCE
from simulator.run import cluster
from simulator.run.cluster import UNUSED, start_ray, stop_ray, worker_environment
from simulator.run_errors import InputError
from simulator.scenario.sections import EngineConfig


class Client:
    def train(self): ...


INTRUDER = """
import sys, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
print("let in")
"""


@pytest.fixture(scope="module")
def own():
    """The cluster of a run, started once: by a command whose RAY_ADDRESS names somebody else's."""
    stop_ray()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "192.0.2.1:6379")  # not ours to use
        patch.setenv("RAY_gcs_rpc_server_connect_timeout_s", "3")
        start_ray(EngineConfig(attack_workers=1))
        yield ray.get_runtime_context().gcs_address
        stop_ray()


@pytest.mark.slow
def test_a_stranger_who_knows_the_address_is_refused(own):
    strangers = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    strangers["RAY_NUM_REDIS_GET_RETRIES"] = "1"  # Ray itself knocks twenty times, once a second
    knock = [sys.executable, "-c", INTRUDER, own]
    refused = subprocess.run(knock, env=strangers, capture_output=True, text=True, timeout=600)
    assert refused.returncode != 0 and "let in" not in refused.stdout
    assert "InvalidAuthToken" in refused.stderr
    assert "let in" in subprocess.run(knock, env=os.environ, capture_output=True, text=True, timeout=600).stdout


@pytest.mark.slow
def test_workers_have_our_packages_and_their_share_of_threads_and_this_process_stays_as_it_is(own):
    names = ("PYTHONPATH", "OMP_NUM_THREADS")
    there = ray.get(ray.remote(num_cpus=0)(lambda: [os.environ[name] for name in names]).remote())
    assert there == [worker_environment(EngineConfig().threads)[name] for name in names]
    assert os.environ.get("PYTHONPATH") != there[0]


@pytest.mark.slow
def test_a_worker_that_has_attacked_is_still_there_a_round_later(own):
    """Clients hold all CPUs meanwhile: Ray then ends idle workers after a second, with all they have imported."""
    client = ray.remote(num_cpus=int(ray.cluster_resources()["CPU"]))(Client).remote()
    ray.get(client.train.remote())
    attack = ray.remote(num_cpus=0, resources={ATTACK_RESOURCE: 1})(lambda: os.getpid())
    first = ray.get(attack.remote())
    time.sleep(4)
    assert ray.get(attack.remote()) == first
    ray.kill(client)


def arguments_of(process):
    with contextlib.suppress(psutil.Error):  # it has ended meanwhile
        return process.cmdline()
    return []


@pytest.mark.slow
def test_a_ray_of_our_own_has_nothing_that_a_run_does_not_use(own):
    ours = [arguments_of(process) for process in psutil.Process().children(recursive=True)]
    assert any("gcs_server" in arguments[0] for arguments in ours if arguments)
    names = {os.path.basename(argument) for arguments in ours for argument in arguments}
    assert not names & {"dashboard.py", "monitor.py", "log_monitor.py"}
    assert all(callable(getattr(Node, name)) for name in UNUSED)  # as Ray calls them today


def test_sigterm_stays_ours_while_ray_starts(monkeypatch):
    """A signal in these seconds would end the command with Ray's exit code."""

    def handler(signum, frame): ...

    def start(*args, **settings):
        ray._private.utils.set_sigterm_handler(lambda signum, frame: sys.exit(signum))  # as ray.init does
        during.append(signal.getsignal(signal.SIGTERM))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as its C++ does

    stop_ray()
    during, before = [], signal.signal(signal.SIGTERM, handler)
    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr("simulator.run.cluster.reaped", contextlib.nullcontext)
    try:
        start_ray(EngineConfig())
        assert during == [handler] and signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_where_nobody_answers_one_line_says_so(address):
    stop_ray()
    with pytest.raises(InputError, match=f"engine.address '{address}': no Ray cluster answers there"):
        start_ray(EngineConfig(address=address))


@pytest.mark.parametrize("scheme", ["", "ray://"])
@pytest.mark.parametrize("closes", [True, False])
def test_somebody_who_listens_and_is_no_cluster_is_found_out(scheme, closes, monkeypatch):
    """Ray itself would try for minutes."""
    stop_ray()
    assert 2 * cluster.ANSWER < 30  # a connection, and an answer: as the documentation promises
    monkeypatch.setattr(cluster, "ANSWER", 1.0)
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    accepted.append(listener.accept()[0])
                    if closes:
                        accepted[-1].close()

        threading.Thread(target=accept, daemon=True).start()
        with pytest.raises(InputError, match="somebody listens, who does not speak gRPC within 1 s"):
            start_ray(EngineConfig(address=f"{scheme}127.0.0.1:{listener.getsockname()[1]}"))
    for connection in accepted:
        connection.close()


@pytest.mark.parametrize("address", ["not an address", "host:", ":6379", "host:99999", "host:port"])
def test_an_address_has_a_host_and_a_port(address):
    with pytest.raises(InputError, match="write HOST:PORT, ray://HOST:PORT or auto"):
        start_ray(EngineConfig(address=address))


def test_who_has_no_token_is_told_how_to_give_one(monkeypatch):
    def refuse(**settings):
        raise ConnectionError("Failed to connect to Ray cluster")

    stop_ray()
    monkeypatch.setattr(ray, "init", refuse)
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match=r"no Ray cluster answers there .*RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"):
        start_ray(EngineConfig(address="auto"))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(InputError, match=r"no Ray cluster answers there \(Failed to connect to Ray cluster\)$"):
        start_ray(EngineConfig(address="auto"))


def test_a_client_that_fits_on_no_node_is_refused_before_anything_is_written(monkeypatch):
    """All nodes together have as much: Flower would find that none has, when the run is under way."""
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}] * 2)
    with pytest.raises(InputError, match=r"no node of Ray has engine\.cpus = 3 CPU and engine\.gpus = 0 GPU"):
        cluster.backend_config(EngineConfig(cpus=3), 3)
    assert cluster.backend_config(EngineConfig(cpus=2), 3)["client_resources"]["num_cpus"] == 2
