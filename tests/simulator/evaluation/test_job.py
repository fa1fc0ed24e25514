import json
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge, get_attack, torch_generator
from attacks.interface.plugins import Registry
from attacks.networks.probing import run_network
from clients.defenses.guarantee import Guarantee
from clients.local_update import load_data, make_model
from simulator.evaluation.job import Job, JobSettings, run_job
from simulator.evaluation.progress_board import Reporter
from simulator.evaluation.truth import Measured
from simulator.reports.verdict import verdict
from simulator.reports.verdict_words import plain
from simulator.results.keys import ObservationKey, RecordedObservation
from simulator.results.schema import LEAKAGE
from simulator.results.storage import CellStore
from simulator.run_errors import blamed_error
from simulator.scenario.scenario import load_scenario
from tests.crowded import crowded
from tests.simulator.evaluation.fake_actor import Handle

KEY = ObservationKey(1, 0, "server")


def make_job(tmp_path, model="{width: 16, depth: 1}", attack="{name: ntk, iterations: 20}", timeout=60):
    path = tmp_path / "s.yaml"
    path.write_text(
        f"name: s\ndata: {{public: 30, test: 30}}\npartition: {{images: 3}}\nmodel: {model}\n"
        f"adversary: {{attacks: [{attack}], timeout: {timeout}}}\n"
    )
    scenario = load_scenario(path)
    cell = scenario.cells()[0]
    config = cell.client_config(use_gpu=False)
    model = make_model(config, load_data(config))
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    final = {name: value + 0.01 for name, value in initial.items()}
    store = CellStore(tmp_path / "run")
    store.create(scenario.model, (1, 8, 8), 10, scenario.seed)
    pair = (store.save_global(0, initial), store.save_client(1, 0, final))
    write_observation(store, pair, client=0)
    return Job(JobSettings.of(cell), store.root, KEY, scenario.adversary.attacks[0])


def write_observation(store, pair, client):
    """The update of client 0, as if its private images were those of `client`; both clients took part in the round."""
    store.save_observation(RecordedObservation.of(KEY, (pair,), (client,), (0, 1)), Knowledge(num_private=3))


def test_a_job_stores_its_reconstruction_and_returns_its_rows(tmp_path):
    job = make_job(tmp_path)
    (row,), samples = run_job(job)
    assert row["status"] == "ok", row["detail"]
    assert (row["num_private"], row["num_reconstructed"], len(samples)) == (3, 6, 3)
    assert json.loads(row["knowledge"]) == {"num_private": 3}
    parameters = 64 * 16 + 16 + 16 * 10 + 10  # none of the update's numbers is 0
    assert row["determined"] == parameters / (6 * 64)
    assert CellStore(job.root).reconstruction_path(job.key, "ntk").exists()


def test_an_attack_beyond_its_time_gives_a_row(tmp_path):
    row = run_job(make_job(tmp_path, attack="{name: ntk, iterations: 10000000, patience: 0}", timeout=1)).leakage[0]
    assert (row["status"], row["detail"]) == ("timeout", "no result within adversary.timeout = 1 processor seconds")


@pytest.mark.slow
def test_an_attack_has_the_same_result_on_a_core_that_others_keep_busy(tmp_path):
    """Its limit is twice the processor seconds that it takes, and by the clock it takes several times as long."""
    attack = "{name: ntk, iterations: 400, patience: 0}"
    job = make_job(tmp_path, attack=attack)
    start = time.process_time()
    alone = run_job(job)
    limit = 2 * (time.process_time() - start)
    found = np.load(CellStore(job.root).reconstruction_path(job.key, "ntk"))["images"]
    signs = []
    board = SimpleNamespace(heartbeat=signs.append, progress=lambda *said: None)
    with crowded(5):
        start = time.monotonic()
        late = run_job(replace(job, settings=replace(job.settings, timeout=limit)), Reporter(Handle(board), job.name))
        assert time.monotonic() - start > limit
    assert len(signs) > 2  # besides those before the attack and before the score
    scores = [{name: value for name, value in one.leakage[0].items() if name != "seconds"} for one in (alone, late)]
    assert scores[1]["status"] == "ok" and json.dumps(scores[0]) == json.dumps(scores[1])
    assert np.array_equal(np.load(CellStore(job.root).reconstruction_path(job.key, "ntk"))["images"], found)


def test_an_attack_that_fails_gives_a_row_that_says_why(tmp_path):
    job = make_job(tmp_path)
    (CellStore(job.root).checkpoints / "client_00_round_0001.safetensors").unlink()
    (row,), _ = run_job(job)
    assert row["status"] == "failed" and "does not exist" in row["detail"]


def full(*_):
    raise OSError(28, "No space left on device")


def of_the_user(*_):
    raise RuntimeError("mine")


@pytest.mark.parametrize(
    ("raising", "said"),
    [(torch.ones, "a fault of fedspill"), (of_the_user, f"RuntimeError: mine, in or below {__file__}:"), (full, "")],
)
def test_a_row_says_whose_fault_an_exception_is(tmp_path, monkeypatch, raising, said):
    monkeypatch.setattr("simulator.evaluation.attack_run.AttackRun.run", raising)  # torch.ones has no line of Python
    (row,), _ = run_job(make_job(tmp_path, attack="mean_image"))
    assert row["status"] == "failed" and said in row["detail"]
    assert ("; a fault of fedspill" in row["detail"]) == (raising is torch.ones)
    assert ("a fault of fedspill." in str(verdict(LEAKAGE.frame([row])).of("broke"))) == (raising is torch.ones)


def called_by_fedspill(function):
    """The line that describes what a function raises that fedspill's code calls."""
    with pytest.raises(Exception) as caught:
        Registry("part", "none", accept=function)._load("json:loads")
    return blamed_error(caught.value)


def generated(line):
    """A function of no file, so that it is nobody's code."""
    names = {"torch": torch}
    exec(f"def broken(*_):\n    {line}", names)
    return names["broken"]


def test_what_libraries_the_machine_or_layers_that_do_not_fit_raise_is_not_called_a_fault_of_fedspill(monkeypatch):
    monkeypatch.setenv("FEDSPILL_ALLOW_CODE", "all")
    images, layers = torch.ones(1, 4), nn.Sequential(nn.Linear(4, 3), nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        run_network(layers, layers.state_dict(), images)
    others = [np.linalg.inv, *map(generated, ("import timm_", "torch.linalg.inv(torch.zeros(2, 2))"))]
    others.append(generated("raise torch.AcceleratorError('CUDA error: device-side assert triggered')"))
    said = [blamed_error(caught.value), *map(called_by_fedspill, others)]
    kinds = ["RuntimeError", "LinAlgError", "ModuleNotFoundError", "_LinAlgError", "AcceleratorError"]
    assert [line.split(":")[0] for line in said] == kinds and "fault of fedspill" not in " ".join(said)
    assert called_by_fedspill(generated("1 / 0")) == "ZeroDivisionError: division by zero; a fault of fedspill"


def test_whose_fault_it_is_stands_behind_a_long_text_too(monkeypatch):
    monkeypatch.setenv("FEDSPILL_ALLOW_CODE", "all")
    said = plain(called_by_fedspill(generated("raise RuntimeError('word ' * 200)")))
    assert said.startswith("RuntimeError: word word") and said.endswith("…; a fault of fedspill")


def test_an_optional_attack_that_does_not_apply_is_skipped_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("attacks.span.attack.last_layer_of", lambda observation, others: None)
    shallow = "{name: mlp, depth: 1, activation: tanh}"
    row = run_job(make_job(tmp_path, model=shallow, attack="{name: span, optional: true}")).leakage[0]
    assert row["status"] == "skipped" and "span" in row["detail"] and "InputError" not in row["detail"]


def test_distilled_images_are_singled_out_of_those_of_the_round(tmp_path):
    """A uniform guess of 0.5: next to the 0.4 of client 0, but the 0.45 of client 1 is nearer to it."""
    job = make_job(tmp_path, attack="mean_image")
    store = CellStore(job.root)
    for client, shade in ((0, 0.4), (1, 0.45)):
        store.save_distilled(1, client, torch.full((1, 1, 8, 8), shade))
    targets = {}
    for client in (0, 1):
        write_observation(store, store.recorded(KEY).pairs[0], client)
        targets[client] = run_job(job)
    assert all([row["target"] for row in rows] == ["private", "distilled"] for rows, _ in targets.values())
    assert [targets[client].samples[-1]["identified"] for client in (0, 1)] == [False, True]
    assert targets[0].leakage[1]["l2_median"] == pytest.approx(0.8, rel=1e-4)  # 0.1 on each of 64 pixels


def test_a_job_has_a_heartbeat_before_it_is_scored(tmp_path, monkeypatch):
    said = []

    class Listening(Reporter):
        def heartbeat(self):
            said.append("heartbeat")

    def attack(run, observation, granted, progress):
        said.append("attack")
        return get_attack("mean_image").run(observation, granted, torch_generator(0, "t"))

    def score(*arguments):
        said.append("score")
        return Measured({}, [])

    monkeypatch.setattr("simulator.evaluation.attack_run.AttackRun.run", attack)
    monkeypatch.setattr("simulator.evaluation.job.evaluate", score)
    assert run_job(make_job(tmp_path), Listening()).leakage[0]["status"] == "ok"
    assert said == ["heartbeat", "attack", "heartbeat", "score"]


def test_a_row_has_the_guarantee_against_its_adversary_and_says_where_there_is_none(tmp_path):
    job = make_job(tmp_path, attack="mean_image")
    store = CellStore(job.root)
    central = Guarantee("central_dp", 3.0, 1e-5, "client", "observer", "add_remove")
    pairs = store.recorded(KEY).pairs
    found = {}
    for adversary in ("server", "observer"):
        recorded = RecordedObservation.of(KEY, pairs, (0,), (0, 1), adversary=adversary, guarantees=(central,))
        store.save_observation(recorded, Knowledge(num_private=3, pixel_mean=(0.1,)))
        (found[adversary],), _ = run_job(job)
    assert "epsilon" not in found["server"] and "no guarantee against the server" in found["server"]["detail"]
    assert found["observer"]["epsilon"] == 3.0 and "guarantee" not in found["observer"]["detail"]
    assert found["server"]["guarantees"] == found["observer"]["guarantees"]


def test_what_an_update_tells_of_members_and_classes_is_measured_where_the_attack_refuses(tmp_path, monkeypatch):
    job = make_job(tmp_path, attack="mean_image")
    granted = Knowledge(num_private=3, learning_rate=0.1, steps=1)
    store = CellStore(job.root)
    store.save_observation(RecordedObservation.of(KEY, store.recorded(KEY).pairs, (0,), (0, 1)), granted)
    (good,), _ = run_job(job)

    def refuse(*_):
        raise InputError("no row space")

    monkeypatch.setattr("simulator.evaluation.attack_run.AttackRun.run", refuse)
    (row,), samples = run_job(job)
    refusal, aside = row["detail"].split("; ")
    assert (row["status"], refusal, samples) == ("failed", "InputError: no row space", [])
    assert aside == "classes: the last layer's update is not what SGD of this rate and so many steps sends"
    measured = {name for name in good if name.startswith(("membership_", "num_private", "capacity", "delta_"))}
    assert {"membership_auc", "num_private"} <= measured
    assert {name: row.get(name) for name in measured} == {name: good[name] for name in measured}
    assert "recovered" not in row
