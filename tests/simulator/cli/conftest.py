"""Scenarios and pairs of checkpoints in files."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.simulator.cli.nets import FACTORY


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "nets.py").write_text(FACTORY)

    def write(text, name="s.yaml"):
        path = tmp_path / name
        path.write_text(text.replace("NETS", str(tmp_path / "nets.py")))
        return path

    return write


@pytest.fixture
def pair(tmp_path):
    """Options of two checkpoints of a client with three images, made by plain PyTorch, and of their network."""
    (tmp_path / "nets.py").write_text(FACTORY)
    scope = {}
    exec(FACTORY, scope)
    torch.manual_seed(0)
    model, images = scope["make"](), torch.rand(3, 1, 8, 8) - 0.5
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), torch.tensor([1, 2, 3])).backward()
        optimizer.step()
    save_file(model.state_dict(), tmp_path / "b.safetensors")
    files = ["--initial", tmp_path / "a.safetensors", "--final", tmp_path / "b.safetensors"]
    return ["--model", f"{tmp_path / 'nets.py'}:make", *files, "--shape", "1,8,8"]
