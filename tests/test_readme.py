"""Every command and example of the README is run, in its order, in a folder that holds what it names."""

import importlib
import os
import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.simulator import conftest
from tests.simulator.audit.recorded import MODEL, digits, record

PROJECT = Path(__file__).resolve().parents[1]
README = (PROJECT / "README.md").read_text()
ELSEWHERE = {  # what is no command of fedspill's, and where it is run
    "git clone <this repository> fedspill-project && cd fedspill-project": "continuous integration",
    ". .venv/bin/activate": "continuous integration",
    "make test": "continuous integration",
    "make test-all": "continuous integration",
    "make demo": "its recipe, below",
}
ONE_CLIENT_AT_A_TIME = ("--set", f"engine.cpus={os.cpu_count()}")  # a second one imports for longer than it works
SHORTER = {  # what each would take minutes for
    "run mine.yaml": ("--set", "sweep={}", *ONE_CLIENT_AT_A_TIME),
    "benchmark": ("--set", "benchmark.defenses=[none]", "--set", "federation={rounds: 1, clients: 4, fraction: 0.5}",
                  "--set", "adversary.when=[1]", "--set", "adversary.attacks=[mean_image]", *ONE_CLIENT_AT_A_TIME),
    "audit": ("--attack", "span", "--workers", "1"),
}  # fmt: skip
NETS = """
from torch import nn
def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
"""

pytestmark = pytest.mark.slow
fedspill = conftest.fedspill


def commands():
    """The lines of indented blocks that are commands, continued lines joined, comments cut off."""
    text = README.replace("\\\n", " ")
    blocks = re.findall(r"^    ((?:fedspill|make|flwr|python|git|\. )[^\n#]*)", text, re.MULTILINE)
    return [" ".join(line.split()) for line in blocks]


def block(language, holding):
    return next(text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if holding in text)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With a recording, two checkpoints and the code of a network, as a reader would have them."""
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "runs" / "mine")
    (tmp_path / "task.py").write_text(f"{MODEL}\nNet = net\n")
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "mine.yaml").write_text(block("yaml", "name: mine"))
    (tmp_path / "scenarios").symlink_to(PROJECT / "scenarios")
    torch.manual_seed(0)
    model = runpy.run_path("nets.py")["make"]()
    save_file(model.state_dict(), "sent.safetensors")
    images = nn.functional.interpolate(digits(0)[0], (28, 28))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nn.functional.cross_entropy(model((images - 0.1307) / 0.3081), digits(0)[1]).backward()
    optimizer.step()
    save_file(model.state_dict(), "returned.safetensors")
    np.savez("mine.npz", images=images.clamp(0, 1).numpy())
    return tmp_path


def test_commands_run(folder, fedspill):
    found = commands()
    assert len(found) >= 12
    for command in found:
        program, *arguments = shlex.split(command)
        if command in ELSEWHERE:
            continue
        assert program == "fedspill", command
        extra = next((more for start, more in SHORTER.items() if " ".join(arguments).startswith(start)), ())
        result = fedspill(*arguments, *extra)
        assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    assert fedspill("paper", "--list").returncode == 0
    assert (folder / "runs" / "mine-audit" / "report.html").exists()
    assert (folder / "found").is_dir() and (folder / "member").is_dir() and (folder / "why").is_dir()


def test_the_demo_is_a_scenario(fedspill):
    recipe = re.search(r"^demo:.*\n\t(.*)$", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None and recipe[1] == "$(BIN)/fedspill run scenarios/quickstart.yaml --out runs/demo"
    assert fedspill("check", PROJECT / "scenarios" / "quickstart.yaml").returncode == 0


def test_two_checkpoints_in_python(folder):
    names = {
        "model": runpy.run_path("nets.py")["make"](),
        "sent": load_file("sent.safetensors"),
        "returned": load_file("returned.safetensors"),
    }
    exec(block("python", "told).pixels()"), names)
    assert names["found"].shape[1:] == (1, 28, 28)


def test_the_strip_is_drawn_from_the_demo(folder, fedspill):
    demo = PROJECT / "scenarios" / "quickstart.yaml"
    short = "--set", "federation.rounds=1", "--set", "adversary.attacks=[span]", *ONE_CLIENT_AT_A_TIME
    result = fedspill("run", demo, "--out", "runs/demo", *short)
    assert result.returncode == 0, result.stderr
    rows = importlib.import_module("fedspill").load("runs/demo").leakage
    assert (rows.recovered_fraction == 1).all() and (rows.floor_leakage < 0.3).all()
    exec(block("python", "strip.png"), {"fedspill": importlib.import_module("fedspill")})
    assert (folder / "strip.png").exists()
