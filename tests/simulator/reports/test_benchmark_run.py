"""A small benchmark on Ray."""

import json

import numpy as np
import pandas as pd
import pytest

from attacks import InputError
from clients.data.partition import split_data
from simulator.reports.benchmark_advice import benchmark_verdict
from simulator.reports.benchmark_figures import draw_benchmark
from simulator.reports.benchmark_table import write_benchmark
from simulator.reports.page.pages import benchmark_page

CHAINS = [
    [],
    ["clipping"],
    ["secure_aggregation"],
    ["central_dp"],
    ["local_dp"],
    [{"name": "dp_sgd", "epsilon": 8.0}],
    ["flwr.clientapp.mod:message_size_mod", {"name": "noise", "scale": 10.0}],
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory, run_scenario):
    content = {
        "name": "defended",
        "data": {"public": 100, "test": 100},
        "partition": {"images": 6},
        "model": {"width": 256},
        "training": {"learning_rate": 0.1, "epochs": 4, "batch_size": 3},
        "federation": {"rounds": 2, "clients": 2},
        "adversary": {
            "threat_models": ["server", "observer"],
            "attacks": ["span", {"name": "span", "adaptive": True}],
            "when": [1],
        },
        "sweep": {"defenses": CHAINS, "seed": [0]},
    }
    return run_scenario(content, tmp_path_factory.mktemp("defended") / "out")


def test_defenses_in_one_simulation(ran):
    table = write_benchmark(ran).set_index(["defense", "threat_model", "adaptive"])
    recovered = table.recovered_fraction.to_dict()
    assert recovered["none", "server", False] == 1.0
    assert recovered["clipping", "server", False] == 1.0  # a scalar does not change row spaces
    assert recovered["secure_aggregation", "server", False] == 1.0  # of the sum of 12 images at width 256
    assert recovered["central_dp", "server", False] == 1.0  # clipped and noised after the server saw it
    for protected in (("central_dp", "observer"), ("local_dp", "server"), ("dp_sgd", "server")):
        assert recovered[(*protected, False)] <= 0.2
    assert (
        *("message_size_mod+noise", "server"),
        True,
    ) in recovered  # an adaptive row where there is something to know
    assert ("none", "server", True) not in recovered
    assert table.epsilon["none"].isna().all() and table.guarantees["none"].isna().all()


def test_epsilon_is_for_the_eyes_of_the_row_and_of_the_round_attacked(ran):
    """Round 1 of 2: local_dp's formula says 8, the analytic Gaussian mechanism 7.91; dp_sgd spends 8 in both rounds."""
    table = write_benchmark(ran).set_index(["defense", "threat_model", "adaptive"])
    assert table.epsilon["local_dp"].tolist() == pytest.approx([7.91] * 4, abs=0.01)
    assert table.nominal_epsilon["local_dp"].eq(8.0).all() and table.privacy_unit["local_dp"].eq("client").all()
    assert table.epsilon["dp_sgd"].between(4, 7.5).all() and table.privacy_unit["dp_sgd"].eq("record").all()
    assert table.epsilon["central_dp", "server"].isna().all()  # it holds against the observer only
    assert table.epsilon["central_dp", "observer"].tolist() == pytest.approx([4.377] * 2, abs=1e-3)
    rows = ran.leakage[(ran.leakage.defense == "central_dp") & (ran.leakage.threat_model == "server")]
    assert rows.detail.str.contains("no guarantee against the server").all()
    assert not rows.adaptive.any()  # the server is told nothing of noise that it adds itself
    last = ran.utility[(ran.utility.defense == "dp_sgd") & (ran.utility["round"] == 2)]
    assert last.epsilon.between(7.5, 8.0).all()


def test_secure_aggregation_shows_the_server_the_sum_only(ran):
    own = ran.leakage[ran.leakage.defense == "secure_aggregation"]
    skipped = own[own.status == "skipped"]
    assert sorted(skipped.client.unique()) == [0, 1] and skipped.detail.str.contains("sum of the round's updates").all()
    assert set(own[own.status == "ok"].client) == {-1}
    cell = "defense=secure_aggregation,seed=0"
    assert not list((ran.path / "cells" / cell / "checkpoints").glob("client_*.safetensors"))


def test_a_benchmark_draws_its_frontier_and_its_images(ran):
    table = write_benchmark(ran)
    paths = draw_benchmark(ran, table)
    assert [one.path.name for one in paths] == ["frontier.png", "exposure.png", "reconstructions.png"]
    assert all(one.path.stat().st_size > 10_000 for one in paths)
    page = benchmark_page(ran, table, pd.DataFrame(), (), print)
    assert page["verdict"] == benchmark_verdict(ran, table) and page["verdict"].level == "exposed"
    assert page["verdict"].of("shown")[0].startswith("No conclusion: ")  # of defenses; the headline says what leaks
    assert "No conclusion" not in page["verdict"].headline
    same = paths[-1].alt  # the client's images under secure aggregation are found among those of the union
    assert "none: 6 of 6 (span)" in same and "secure_aggregation: 12 of 12 (all clients, span)" in same


def test_an_adaptive_attack_repeated_from_the_command_line_knows_the_defense_again(ran, fedspill, tmp_path):
    name = next(name for name in ran.cells if "noise" in name)
    with pytest.raises(InputError, match=r"has several settings: choose one with --cell, in Python `cell` \(known: "):
        ran.store()
    cell = ["--run", ran.path, "--client", "0", "--cell", name]
    for label, knows in (("span", {}), ("span-adaptive", {"noise_scale": 10.0})):
        result = fedspill("attack", *cell, "--attack", label, "--out", tmp_path / label)
        assert result.returncode == 0, result.stderr
        facts = json.loads((tmp_path / label / "facts.json").read_text())
        of_participants = {name: facts["knowledge"].pop(name) for name in ("pixel_mean", "pixel_range")}
        assert of_participants["pixel_range"] == [0.0, 1.0]
        assert facts["knowledge"] == knows


def test_members_and_diagnosis_of_a_recorded_observation(ran, fedspill, tmp_path):
    """Of the undefended update of client 0: what it trained on scores above the public images, and the evaluator's
    version of the diagnosis sees that the private images' gradients span it."""
    cell = ["--run", ran.path, "--client", "0", "--cell", "defense=none,seed=0"]
    scenario = ran.cells["defense=none,seed=0"].scenario
    data = split_data(scenario.data, scenario.partition, scenario.federation.clients, scenario.seed)
    private, public = data.client(0)[0], data.public()[0][:20]
    np.savez(tmp_path / "some.npz", images=np.concatenate([private, public]))
    result = fedspill("member", *cell, "--candidates", tmp_path / "some.npz", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    scores = pd.read_csv(tmp_path / "membership.csv").score
    assert scores[: len(private)].min() > scores[len(private) :].max()
    result = fedspill("diagnose", *cell, "--evaluator", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    facts = json.loads((tmp_path / "diagnose.json").read_text())
    assert facts["view"] == "evaluator" and facts["images"] == len(private) == 6 and facts["unexplained"] < 0.5
