"""What a file names runs where somebody allowed it, and nowhere else."""

import os

import pytest

from attacks.interface.errors import InputError
from attacks.interface.plugins import VARIABLE, allow_code
from clients.client_app import load_mod
from clients.defenses import FlowerMod
from clients.models.factory import load_factory
from simulator.run.cluster import worker_environment
from simulator.run.plan import make_plan
from simulator.scenario.scenario import load_scenario

REFUSED = "is code that would run on this machine: read it, then add --allow-code"


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch):
    monkeypatch.delenv(VARIABLE)


@pytest.mark.parametrize(
    "section",
    [
        "model: {name: 'subprocess:Popen', options: {args: [touch, PWNED]}}",
        "model: {name: 'nets.py:make'}",
        "defenses: [{name: 'subprocess:Popen', args: [touch, PWNED]}]",
    ],
)
def test_a_scenario_that_names_code_runs_none_of_it(tmp_path, monkeypatch, section):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text("open('PWNED', 'w')\n")
    (tmp_path / "s.yaml").write_text(f"name: s\n{section}\n")
    with pytest.raises(InputError, match=REFUSED):
        make_plan(load_scenario(tmp_path / "s.yaml"))
    assert not (tmp_path / "PWNED").exists()


def test_what_is_allowed_by_name_lets_nothing_else_in():
    allow_code("math:sqrt")
    allow_code("math:exp")
    assert load_factory("math:sqrt")(9) == 3 and load_factory("math:exp")(0) == 1
    for load in (load_factory, lambda name: load_mod(FlowerMod(name, {}))):
        with pytest.raises(InputError, match=REFUSED):
            load("math:log")


def test_the_permission_reaches_the_workers():
    assert worker_environment(1)[VARIABLE] == ""
    allow_code("math:sqrt")
    allow_code()
    assert worker_environment(1)[VARIABLE] == os.environ[VARIABLE] == "math:sqrt\nall"
    assert load_factory("math:log")(1) == 0


def test_the_mods_that_come_with_flower_need_no_permission():
    options = {"clipping_norm": 1.0, "sensitivity": 1.0, "epsilon": 1.0, "delta": 0.1}
    assert callable(load_mod(FlowerMod("flwr.clientapp.mod:LocalDpMod", options)))
    with pytest.raises(InputError, match=REFUSED):
        load_mod(FlowerMod("flwr.common.logger:log", {}))


def test_the_text_of_a_mod_s_error_is_one_line_that_colours_no_terminal(tmp_path):
    (tmp_path / "mods.py").write_text(
        "class Mod:\n    def __init__(self):\n        raise ValueError('no \\x1b[31mbudget\\nleft')\n"
    )
    name = f"{tmp_path}/mods.py:Mod"
    allow_code(name)
    with pytest.raises(InputError) as error:
        load_mod(FlowerMod(name, {}))
    assert str(error.value) == f"defense {name!r} cannot be made: no budget left"
