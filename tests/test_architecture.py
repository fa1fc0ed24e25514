"""Who may import whom, and what an attack can be given: the promises that the tables rest on."""

import ast
import graphlib
import inspect
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from attacks import ATTACKS, Attack, Knowledge, Observation, Reconstruction, get_attack
from attacks.base import option_names

PROJECT = Path(__file__).resolve().parents[1]
PACKAGES = ("attacks", "clients", "simulator")
ALLOWED_IN_ATTACKS = {"torch", "numpy", "scipy", "skimage", "PIL", "attacks", *sys.stdlib_module_names}
LAYERS = {  # folders and files directly below a package, lowest first: each may import those before it and no other
    "attacks": "interface calibration networks scoring update kernel base membership gradient_membership baselines "
    "gradient_matching ntk kkt span library",
    "clients": "time_limit batch_norm config training data models distillation defenses chain local_update client_app",
    "simulator": "run_errors terminal results scenario evaluation rundir adversary run reports audit tools "
    "paper cli server_app",
}
NO_VERBS = (
    "A All An At Both By Each Every For From How If In Indices Images Of On One Only Points Rows The Their These This "
    "Those To What When Where Whether Which Who Whoever Whose Why With Within"
).split()
LONGEST_FUNCTION, MOST_PARAMETERS = 40, 6  # lines without the docstring; parameters that can be given by position


def product():
    """(path inside the project, syntax tree) of every file that users get."""
    paths = [path for package in PACKAGES for path in sorted((PROJECT / package).rglob("*.py"))]
    for path in (*paths, PROJECT / "fedspill.py"):
        yield path.relative_to(PROJECT), ast.parse(path.read_text())


def imports(tree, modules=()):
    """The module of every import of a file, those inside functions too; of `modules`, also where it is imported from
    its package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            package = node.module or ""
            inside = [f"{package}.{alias.name}" for alias in node.names]
            yield from {name if name in modules else package for name in inside}


def imported(package):
    """(file, module) of every import in a package."""
    return [(path.as_posix(), name) for path, tree in product() if path.parts[0] == package for name in imports(tree)]


def test_attacks_are_a_library_that_needs_little():
    assert not [(path, name) for path, name in imported("attacks") if name.split(".")[0] not in ALLOWED_IN_ATTACKS]


def test_at_every_level_files_and_folders_form_an_order():
    """Packages' own `__init__` files are their faces: they import what they show, and count as nobody's import."""
    files = {".".join(path.with_suffix("").parts): tree for path, tree in product() if path.name != "__init__.py"}
    neighbours = defaultdict(graphlib.TopologicalSorter)  # by the folder that they stand in
    for name, other in ((name, other) for name, tree in files.items() for other in imports(tree, files)):
        if other in files and other != name:
            here, there = name.split("."), other.split(".")
            level = next(i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b)
            neighbours[".".join(here[:level])].add(here[level], there[level])
    for folder, order in neighbours.items():
        try:
            order.prepare()
        except graphlib.CycleError as error:
            pytest.fail(f"{folder}: {' imports '.join(reversed(error.args[1]))}")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folder_imports_one_above_it(package):
    """Drawn in docs/design.md. A package's own `__init__` is its face and may import any of them."""
    order = LAYERS[package].split()
    found = {path.parts[1].removesuffix(".py") for path, _ in product() if path.parts[0] == package}
    assert found - {"__init__"} == set(order)
    upward = []
    for path, name in imported(package):
        here, there = Path(path).with_suffix("").parts[1], [*name.split("."), ""][1]
        if name.split(".")[0] == package and there in order and here != "__init__":
            upward += [f"{path} imports {name}"] if order.index(there) > order.index(here) else []
    assert not upward


def test_functions_are_short_and_take_few_parameters():
    """Commands of the command line aside, whose parameters are their options."""
    found = []
    for path, tree in product():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or "command" in "".join(map(ast.dump, node.decorator_list)):
                continue
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            taken = [part for part in (*node.args.posonlyargs, *node.args.args) if part.arg not in ("self", "cls")]
            many = len(taken) > MOST_PARAMETERS and node.name not in ("__init__", "forward")
            if lines > LONGEST_FUNCTION or many:
                found.append(f"{path}:{node.name}: {lines} lines, {len(taken)} parameters")
    assert not found


def test_fields_are_documented_one_by_one():
    """In the docstring of their class each begins a line, where a reader looks for it: "name, other: meaning"."""
    found = []
    for path, tree in product():
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            names = "|".join(part.target.id for part in node.body if isinstance(part, ast.AnnAssign))
            if names and re.search(rf"[.;?!)] ({names})((, | and )({names}))*: ", ast.get_docstring(node) or ""):
                found.append(f"{path}:{node.name}")
    assert not found


def test_docstrings_of_attacks_begin_with_a_verb():
    """Those of functions; a property is a thing, and named as one."""
    found = []
    for path, tree in ((path, tree) for path, tree in product() if path.parts[0] == "attacks"):
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            first = (ast.get_docstring(node) or "Return").split()[0].rstrip(",")
            noun = not first.isalpha() or first == first.lower() or first in NO_VERBS
            if noun and "property" not in "".join(map(ast.dump, node.decorator_list)):
                found.append(f"{path}:{node.name}: {first}")
    assert not found


def test_tests_of_attacks_need_attacks_alone():
    for path in sorted((PROJECT / "tests" / "attacks").rglob("*.py")):
        found = [name for name in imports(ast.parse(path.read_text())) if name.split(".")[0] in PACKAGES[1:]]
        assert not found, path.name


def test_clients_do_not_know_the_simulator_and_only_the_client_app_knows_flower():
    assert not [(path, name) for path, name in imported("clients") if name.split(".")[0] == "simulator"]
    flower = {path for path, name in imported("clients") if name.split(".")[0] == "flwr"}
    assert flower == {"clients/client_app.py"}


def test_nothing_imports_the_papers_experiments_but_their_command_which_is_imported_when_called():
    add_on = ("simulator.paper", "simulator.cli.paper")
    outside = [(path, tree) for path, tree in product() if path.parts[:2] != ("simulator", "paper")]
    found = {path.as_posix() for path, tree in outside for name in imports(tree, add_on) if name.startswith(add_on)}
    assert found == {"simulator/cli/paper.py"}


def test_only_the_scorer_s_callers_touch_private_images():
    """In the simulator, whoever reads a client's images is the evaluator, the knowledge door or the cost estimate; and
    the distillation command, which has no adversary."""
    readers = [p.name for p in (PROJECT / "simulator").rglob("*.py") if "data.client(" in p.read_text()]
    assert sorted(readers) == ["distillation.py", "estimate.py", "grant.py", "truth.py"]


CURVATURE = """
import torch
from attacks.kernel.hessian import hessian_norms
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
hessian_norms(net, net.state_dict(), torch.ones(1, 1, 2, 2), torch.Generator())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import attacks", {"flwr", "ray", "datasets", "pandas", "clients"}),
        ("import clients.data", {"sklearn", "datasets", "PIL", "ray"}),
        ("import simulator.audit.run_audit", {"ray", "flwr", "matplotlib"}),
        ("import simulator.evaluation.dispatch", {"flwr", "pandas", "matplotlib"}),  # of attack workers
        ("import simulator.run.client_actor", {"flwr.simulation", "flwr.superlink", "sqlalchemy", "pandas"}),
        (CURVATURE, {"sympy"}),  # which PyTorch imports for derivatives in a direction: every worker would wait for it
    ],
)
def test_what_is_not_needed_is_not_imported(code, unwanted):
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=True)
    assert not unwanted & set(result.stdout.split())


@pytest.mark.slow
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
    """Whatever reaches an attack is in its options, the observation or the knowledge: `run` is the same for all."""
    attack, held = ATTACKS[name], ["observation", "knowledge"]
    assert attack.run is Attack.run and attack.check is Attack.check
    assert list(inspect.signature(Attack.run).parameters) == ["self", *held, "generator", "progress"]
    assert list(inspect.signature(attack.reconstruct).parameters) == ["self", *held, "generator", "progress"]
    assert list(inspect.signature(attack.check_requirements).parameters) == ["self", *held]
    assert list(inspect.signature(attack.with_options).parameters) == ["self", "knowledge"]
    for option in option_names(name):
        assert not isinstance(getattr(get_attack(name), option), torch.Tensor)


def test_an_attack_sees_no_more_than_run_was_given():
    """Nothing is added to the observation or to the public images on the way; the rest is told, inferred or assumed."""
    seen = []

    class Spy(Attack):
        name, infers = "spy", ("num_private", "pixel_mean")

        def reconstruct(self, observation, knowledge, generator, progress):
            seen.append((observation, knowledge))
            return Reconstruction(torch.zeros(0, 1, 2, 2), torch.zeros(0))

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    state = model.state_dict()
    given = Observation(model, ((state, {name: value + 1 for name, value in state.items()}),), (1, 2, 2))
    Spy().run(given, Knowledge(steps=3), torch.Generator())
    observation, knowledge = seen[0]
    assert observation.pairs is given.pairs and observation.model is not given.model
    assert knowledge.given() == {"num_private": 1, "pixel_mean": knowledge.pixel_mean, "steps": 3}


def test_what_an_adversary_holds_is_spelled_out():
    assert [f.name for f in fields(Observation)] == ["model", "pairs", "input_shape", "round", "client", "threat_model"]
    assert all(f.default is None for f in fields(Knowledge))  # unknown unless granted
    assert Knowledge().given() == {}
