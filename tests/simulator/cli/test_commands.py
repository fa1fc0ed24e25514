"""What every command has in common: help for all that can be typed, JSON on demand, names with a line each."""

import json
import re

import pytest
import typer.main
import yaml

from simulator.cli.main import cli
from simulator.reports.verdict_words import first_sentence
from simulator.results.ledger import Ledger
from simulator.scenario.json_schema import file_schema

COMMANDS = typer.main.get_command(cli).commands


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_argument_and_option_has_a_help_text_and_every_command_answers_in_json(name):
    command = COMMANDS[name]
    assert command.help
    assert [parameter.name for parameter in command.params if not parameter.help] == []
    assert "as_json" in [parameter.name for parameter in command.params]
    texts = " ".join(f"{parameter.metavar} {parameter.help}" for parameter in command.params)
    assert not re.search(r"(?i)\.py:(?!NAME)", texts)  # as error messages and documents call it


def test_the_version_is_said_alone(fedspill):
    result = fedspill("--version")
    assert result.returncode == 0 and re.fullmatch(r"fedspill \d+\.\d+\.\d+\n", result.stdout)


def test_a_command_that_is_mistyped_is_suggested_once(fedspill):
    assert fedspill("raport").stderr.count("id you mean") == 1


def test_shells_can_complete():
    options = [option for parameter in typer.main.get_command(cli).params for option in parameter.opts]
    assert "--install-completion" in options and "--show-completion" in options


def test_a_name_has_a_sentence(fedspill):
    result = fedspill("list", "--json")
    known = json.loads(result.stdout)
    assert set(known) == {"attacks", "defenses", "data", "models", "strategies"}
    for kind in ("attacks", "defenses", "data", "models"):
        assert all(len(text.split()) > 2 and text.endswith(".") for text in known[kind].values())
    assert known["attacks"]["span"].startswith("Compute the exact images")
    assert {"FedAvg", "FedAdam"} <= {*known["strategies"]}
    assert not [line for line in fedspill("list").stdout.splitlines() if len(line) > 80]


@pytest.mark.parametrize(
    ("doc", "sentence"),
    [
        ("One thing. Another.", "One thing."), ("Without a stop\n\nMore.", "Without a stop."), (None, "."),
        ("Sets (Nguyen et al. 2021): more. No.", "Sets (Nguyen et al. 2021): more."),
    ],
)  # fmt: skip
def test_the_first_sentence_of_a_docstring(doc, sentence):
    assert first_sentence(doc) == sentence


def test_what_init_writes_is_accepted_and_has_a_price_of_minutes(fedspill, tmp_path):
    result = fedspill("init", tmp_path / "mine.yaml")
    assert result.returncode == 0 and "fedspill check" in result.stdout
    assert (tmp_path / "mine.yaml").read_text() == fedspill("init").stdout
    checked = fedspill("check", tmp_path / "mine.yaml", "--json")
    assert checked.returncode == 0, checked.stderr
    assert re.match(
        r"about \d+ (s|min) of processor time, \d+ (s|min) on \d+ idle cores", json.loads(checked.stdout)["cost"]
    )


def test_init_writes_over_nothing(fedspill, tmp_path):
    (tmp_path / "mine.yaml").write_text("name: thesis\n")
    result = fedspill("init", tmp_path / "mine.yaml")
    assert result.returncode == 2 and "exists: name another file" in result.stderr
    assert fedspill("init", tmp_path / "nowhere" / "mine.yaml").returncode == 2


def test_the_schema_is_printed(fedspill):
    assert json.loads(fedspill("schema").stdout) == json.loads(json.dumps(file_schema()))


def test_json_has_an_error_too(fedspill, tmp_path):
    result = fedspill("check", tmp_path / "none.yaml", "--json")
    assert result.returncode == 2 and "does not exist" in json.loads(result.stdout)["error"]
    assert result.stderr.startswith("fedspill: scenario")


def test_a_benchmark_file_is_checked_narrowed_and_priced(fedspill, tmp_path):
    content = {
        "name": "b", "model": {"width": 16}, "data": {"public": 40, "test": 40},
        "adversary": {"attacks": [{"name": "ntk", "iterations": 40}]},
        "benchmark": {"defenses": ["none", "noise", "clipping"], "seeds": 2},
    }  # fmt: skip
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(content))
    result = fedspill("check", tmp_path / "b.yaml", "--set", "benchmark.defenses=[none,noise]")
    assert result.returncode == 0 and result.stdout.startswith("b: 4 settings") and "cost: " in result.stdout
    assert "defense: none, noise\n" in result.stdout  # what was asked for, as its rows are called


def test_a_factory_is_looked_for_beside_the_scenario_first(fedspill, tmp_path, monkeypatch):
    factory = (
        "import torch.nn as nn\ndef make(outputs=10):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))\n"
    )
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "nets.py").write_text(factory)
    (tmp_path / "nets.py").write_text("def make():\n    raise KeyError('the wrong file')\n")
    text = "name: s\nmodel: {name: 'nets.py:make'}\nadversary: {attacks: [mean_image]}\n"
    (tmp_path / "beside" / "s.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert fedspill("check", "beside/s.yaml").returncode == 0
    (tmp_path / "beside" / "nets.py").unlink()
    assert "the wrong file" in fedspill("check", "beside/s.yaml").stderr  # of the working folder, as before


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """Arguments of `run` for a run that is there already: of client 0 seven images of eight, of client 1 none."""
    (tmp_path / "s.yaml").write_text("name: s\nmodel: {width: 8}\nadversary: {attacks: [mean_image]}\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "scenario.yaml").write_text("scenario: {name: s}\n")
    ledger = Ledger(tmp_path / "run")
    row = {"round": 1, "threat_model": "server", "attack": "span", "defense": "none", "seed": 0, "detail": "",
           "target": "private", "status": "ok", "adaptive": False, "num_private": 8, "knowledge": "{}"}  # fmt: skip
    scores = ({"client": 0, "recovered": 7, "leakage": 0.8}, {"client": 1, "recovered": 0, "leakage": 0.1})
    ledger.add("", leakage=[row | score for score in scores])
    ledger.mark_done("")
    ledger.write_tables()
    monkeypatch.setattr("simulator.cli.runs.needs_run", lambda plan, overwrite: False)
    return ["run", tmp_path / "s.yaml", "--out", tmp_path / "run"]


def test_the_verdict_comes_first_and_nothing_is_cut_in_a_pipe(fedspill, finished):
    lines = fedspill(*finished).stdout.splitlines()
    assert lines[1].startswith("EXPOSED: Client 0 is exposed worst: in round 1 the server recovers 7 of its 8")
    assert not [line for line in lines if "…" in line]


def test_json_is_alone_on_stdout_with_the_worst_row_of_each_client(fedspill, finished):
    result = fedspill(*finished, "--json")
    assert result.stderr == ""  # whoever reads both streams as one gets JSON
    said = json.loads(result.stdout)
    assert said["verdict"]["level"] == "exposed" and said["verdict"]["headline"].startswith("Client 0")
    assert [(row["client"], row["recovered"]) for row in said["rows"]] == [(0, 7), (1, 0)]
    assert said["files"]["table"].endswith("leakage.csv")


def test_a_gate_ends_in_exit_code_4_and_names_the_rows(fedspill, finished):
    result = fedspill(*finished, "--fail-above", "leakage=0.2", "--json")
    assert result.returncode == 4
    assert "leakage 0.8 > 0.2: round 1, client 0, server, span, seed 0" in result.stderr
    assert "client 1" not in result.stderr.partition("accepts:")[2]
    assert "more leaks than" in json.loads(result.stdout)["error"]
    assert fedspill(*finished, "--fail-above", "server:leakage=0.9").returncode == 0


@pytest.mark.parametrize("limit", ["leakge=0.2", "observer:leakage=0.2", "leakage"])
def test_a_limit_that_means_nothing_is_refused_before_the_run(fedspill, finished, limit):
    result = fedspill(*finished, "--fail-above", limit)
    assert result.returncode == 2 and "--fail-above" in result.stderr and not result.stdout


def test_a_run_of_several_defenses_shows_their_accuracy_beside_what_they_leave(fedspill, tmp_path):
    (tmp_path / "scenario.yaml").write_text("scenario: {name: s}\n")
    ledger, key = Ledger(tmp_path), {"round": 1, "seed": 0}
    for defense, left, accuracy in (("none", 8, 0.9), ("noise", 2, 0.75)):
        row = {"client": 0, "threat_model": "server", "attack": "span", "target": "private", "status": "ok"}
        row |= {"defense": defense, "adaptive": False, "num_private": 8, "recovered": left}
        ledger.add("", leakage=[key | row], utility=[key | {"defense": defense, "test_accuracy": accuracy}])
    ledger.mark_done("")
    ledger.write_tables()
    lines = [line.split() for line in fedspill("report", tmp_path).stdout.splitlines()]
    assert "defense round 1 accuracy taken by server".split() in lines
    assert ["none", "0.90", "0.90", "100", "%"] in lines and ["noise", "0.75", "0.75", "25", "%"] in lines
