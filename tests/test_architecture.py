"""Who may import whom, and what an attack can be given: the promises that the tables rest on."""

import ast
import inspect
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from attacks import ATTACKS, Knowledge, Observation

PROJECT = Path(__file__).resolve().parents[1]


def imported(package):
    """(file, top-level module) of every import in a package."""
    for path in sorted((PROJECT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                yield path.relative_to(PROJECT).as_posix(), name


def test_attacks_depend_on_neither_clients_nor_simulator_nor_flower():
    banned = ("clients", "simulator", "flwr", "ray", "yaml", "pandas", "pydantic")
    found = [(path, name) for path, name in imported("attacks") if name.split(".")[0] in banned]
    assert not found


def test_clients_do_not_know_the_simulator_and_only_the_client_app_knows_flower():
    assert not [(path, name) for path, name in imported("clients") if name.split(".")[0] == "simulator"]
    flower = {path for path, name in imported("clients") if name.split(".")[0] == "flwr"}
    assert flower == {"clients/client_app.py"}


def test_only_the_scorer_s_callers_touch_private_images():
    """In the simulator, whoever reads a client's images is the evaluator, the knowledge door or the cost estimate; and
    the distillation command, which has no adversary."""
    readers = [p.name for p in (PROJECT / "simulator").rglob("*.py") if "data.client(" in p.read_text()]
    assert sorted(readers) == ["distillation.py", "estimate.py", "knowledge.py", "truth.py"]


def test_attacks_import_without_flower_and_ray():
    code = (
        "import sys, attacks; print([m for m in ('flwr', 'ray', 'datasets', 'pandas', 'clients') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PROJECT, check=True)
    assert result.stdout.strip() == "[]"


def test_telemetry_is_off_by_default():
    code = (
        "import simulator.cli.main, simulator.run.engine, os; from flwr.supercore import telemetry; "
        "print(telemetry.FLWR_TELEMETRY_ENABLED, os.environ['RAY_USAGE_STATS_ENABLED'])"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR", "RAY"))}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert result.stdout.split() == ["0", "0"]


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_attack_has_no_door_for_private_images(name):
    parameters = list(inspect.signature(ATTACKS[name].reconstruct).parameters)
    assert parameters == ["self", "observation", "knowledge", "generator", "progress"]


def test_what_an_adversary_holds_is_spelled_out():
    assert [f.name for f in fields(Observation)] == ["model", "pairs", "input_shape", "round", "client", "threat_model"]
    assert all(f.default is None for f in fields(Knowledge))  # unknown unless granted
    assert Knowledge().given() == {}
