"""`import fedspill`: what it gives, what it costs, and what it says where something of the user's is in its way."""

import ast
import inspect
import subprocess
import sys
import tomllib
import venv
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

import fedspill

PROJECT = Path(__file__).resolve().parents[1]
STUB = PROJECT / "simulator" / "front_door" / "fedspill-stubs" / "__init__.pyi"
USER = """
import flwr.serverapp.strategy
import torch
import fedspill

def steal(observation: fedspill.Observation) -> list[float]:
    found = fedspill.attack("span", observation, fedspill.Knowledge(num_private=20), seed=1, starts=100)
    found.show().save("found.png")
    run = fedspill.load("runs/demo")
    run.show(client=2, most=5)
    assert run.private(1, 0).shape[0] == 8
    return [float(value) for value in found.residual] + [float(len(run.leakage))]

def record(strategy: "flwr.serverapp.strategy.Strategy") -> fedspill.Record:
    return fedspill.Record(strategy, "runs/mine", keep_rounds=3, clients={0, 1})

reveal_type(fedspill.attack)
reveal_type(fedspill.__version__)
"""


def start(code, folder, path=""):
    environment = {"PYTHONPATH": f"{folder}:{path or PROJECT}", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=environment, timeout=600
    )


def test_it_gives_what_the_readme_names():
    assert [name for name in fedspill.__all__ if not hasattr(fedspill, name)] == []
    with pytest.raises(AttributeError, match="'fedspill' has no attribute 'nothing'"):
        _ = fedspill.nothing


def test_its_version_is_that_of_the_distribution():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert fedspill.__version__ == project["version"]
    assert project["scripts"]["fedspill"] == "fedspill:main"


@pytest.mark.slow
def test_it_imports_nothing_before_it_is_asked(tmp_path):
    ran = start(
        "import sys, fedspill; print([m for m in ('torch', 'pandas', 'flwr', 'ray') if m in sys.modules])", tmp_path
    )
    assert ran.stdout.strip() == "[]", ran.stderr
    ran = start(
        "import sys, fedspill; fedspill.Observation, fedspill.get_attack('ntk');"
        "print([m for m in ('torch', 'pandas', 'flwr', 'ray') if m in sys.modules])",
        tmp_path,
    )
    assert ran.stdout.strip() == "['torch']", ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("shadow", ["attacks.py", "clients/__init__.py", "simulator/notes.txt"])
def test_what_stands_in_its_way_is_named(tmp_path, shadow):
    """A namespace folder hides a package only from import hooks, as those of an editable installation: here the
    path of the project comes after it, where Python prefers the package, so that one goes unnoticed and is harmless."""
    file = tmp_path / shadow
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    ran = start("import fedspill; print(fedspill.get_attack('span').name)", tmp_path)
    if shadow == "simulator/notes.txt":
        assert ran.stdout.strip() == "span", ran.stderr
        return
    last = ran.stderr.strip().splitlines()[-1]
    assert str(file) in last and f"own package {shadow.split('/')[0].removesuffix('.py')!r}" in last
    assert "rename it" in last


def test_a_folder_of_data_that_an_editable_installation_would_take_for_a_package_is_named(tmp_path, monkeypatch):
    data = ModuleSpec("clients", None, is_package=True)
    data.submodule_search_locations = [str(tmp_path / "clients")]
    module = ModuleType("clients")
    module.__spec__ = data
    monkeypatch.setitem(sys.modules, "clients", module)
    with pytest.raises(ImportError, match=f"{tmp_path / 'clients'} stands in the way"):
        fedspill._refuse_shadows(PROJECT)


def test_the_types_are_those_of_the_front_door():
    stub = ast.parse(STUB.read_text())
    imported = {a.asname: n.module for n in stub.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert imported == fedspill.HOME
    defined = {n.name: n for n in stub.body if isinstance(n, ast.FunctionDef)}
    assert set(defined) | set(imported) | {"__version__"} == {*fedspill.__all__, "main", "__version__"}
    own = ast.parse(inspect.getsource(fedspill.attack)).body[0]
    assert isinstance(own, ast.FunctionDef)
    written = ast.unparse(own.args).replace("'", ""), ast.unparse(own.returns).replace("'", "")
    assert (ast.unparse(defined["attack"].args), ast.unparse(defined["attack"].returns)) == written


@pytest.mark.slow
def test_mypy_passes_on_a_file_that_imports_it(tmp_path):
    """In an environment that has the project as a wheel installs it: see `[tool.setuptools.packages.find]`."""
    venv.create(tmp_path / "env", with_pip=False)
    site = next((tmp_path / "env").glob("lib/python*/site-packages"))
    for name in ("attacks", "clients", "simulator", "fedspill.py"):
        (site / name).symlink_to(PROJECT / name)
    (site / "fedspill-stubs").symlink_to(STUB.parent)
    (tmp_path / "mine.py").write_text(USER)
    python = str(tmp_path / "env" / "bin" / "python")
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--python-executable", python, "mine.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout
    assert "Reconstruction" in ran.stdout and 'Revealed type is "str"' in ran.stdout
    assert "Cannot find" not in ran.stdout


@pytest.mark.parametrize("start", [["-m", "fedspill"], [str(PROJECT / "fedspill.py")]])
def test_python_runs_it_as_the_command(start):
    said = subprocess.run(
        [sys.executable, *start, "--version"], capture_output=True, text=True, check=True, cwd=PROJECT
    )
    assert said.stdout.split()[-1] == fedspill.__version__
