"""A wheel as users install it: everything is in it, and it works away from the repository."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

from tests.app_folder import PACKAGES, PROJECT, copy_app

USE = """
import torch, fedspill
from torch import nn

assert "site-packages" in fedspill.__file__, fedspill.__file__
model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8))
state = model.state_dict()
moved = {name: value + 0.1 for name, value in state.items()}
observation = fedspill.Observation(model, ((state, moved),), (1, 4, 4))
print(len(fedspill.attack("mean_image", observation, fedspill.Knowledge(pixel_mean=(0.5,))).images))
"""

pytestmark = pytest.mark.slow


def run(command, folder, **environment):
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = {"capture_output": True, "text": True, "timeout": 300}
    ran = subprocess.run([str(part) for part in command], cwd=folder, env=clean | environment, **said)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_app(folder / "source")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run((*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source), folder)
    return next(folder.glob("fedspill-*.whl"))


def test_everything_that_is_no_code_is_in_it(wheel):
    """Markers of types, stubs, templates, styles: what `package-data` forgets works in a checkout only."""
    inside = set(zipfile.ZipFile(wheel).namelist())
    files = [path.relative_to(PROJECT) for package in PACKAGES for path in (PROJECT / package).rglob("*")]
    wanted = {path.as_posix() for path in files if (PROJECT / path).is_file() and "__pycache__" not in path.parts}
    stubs = "simulator/front_door/"
    assert {path.removeprefix(stubs) for path in wanted} - inside == set()
    assert "fedspill.py" in inside and "fedspill-stubs/__init__.pyi" in inside
    assert not [path for path in inside if path.startswith(("tests/", "docs/"))]


def test_it_works_in_a_fresh_environment_from_another_folder(wheel, tmp_path):
    """Its dependencies are those of this environment, by a .pth file: nothing is downloaded."""
    environment = tmp_path / "env"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    site = next(environment.glob("lib/python*/site-packages"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run((*pip, "install", "--quiet", "--no-deps", "--no-index", wheel), tmp_path)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert run((python, "-c", USE), elsewhere) == "1"
    assert "span" in run((environment / "bin" / "fedspill", "list"), elsewhere)
