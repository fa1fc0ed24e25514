"""The optimizers are torch.optim's to the bit, and nobody waits for PyTorch's compiler."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attacks.interface import torch_tools
from attacks.interface.torch_tools import without_subnormals

PROJECT = Path(__file__).parents[3]
SETTINGS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "Adam": {"lr": 0.1, "weight_decay": 0.01},
    "AdamW": {"lr": 0.1},
    "LBFGS": {"lr": 0.5, "max_iter": 3, "line_search_fn": "strong_wolfe"},
}

USED = """
import sys
import torch
from attacks.interface import torch_tools
from attacks.interface.torch_tools import without_subnormals

model = torch.nn.Linear(3, 2)
for name, settings in {settings}.items():
    optimizer = getattr(torch_tools, name)(model.parameters(), **settings)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)

    def loss():
        optimizer.zero_grad()
        value = model(torch.ones(4, 3)).square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    schedule.step()
    optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""


def steps(kind, settings):
    """The parameters after steps with a schedule, the optimizer's state loaded anew in between; the calls of hooks."""
    model, calls = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)), []
    inputs = torch.linspace(-1, 1, 30).reshape(6, 5)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 0.3)
    optimizer = kind(model.parameters(), **settings)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)

    def loss():
        optimizer.zero_grad()
        value = (model(inputs) - inputs.prod(1, keepdim=True)).square().mean()
        value.backward()
        return value

    for _ in range(4):
        optimizer.step(loss)
        schedule.step()
        optimizer.load_state_dict(optimizer.state_dict())
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in model.parameters())
    return [parameter.detach().clone() for parameter in model.parameters()], calls


@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_gives_the_same_bits_and_calls_the_same_hooks(name):
    ours, calls = steps(getattr(torch_tools, name), SETTINGS[name])
    theirs, their_calls = steps(getattr(torch.optim, name), SETTINGS[name])
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert calls == their_calls == ["before", "after"] * 4
    assert issubclass(getattr(torch_tools, name), getattr(torch.optim, name))


def test_nobody_here_steps_with_another():
    own = re.compile(r"torch\.optim\.(SGD|Adam|AdamW|LBFGS)\(")
    sources = [path for folder in ("attacks", "clients", "simulator") for path in (PROJECT / folder).rglob("*.py")]
    assert len(sources) > 200
    assert not [path for path in sources if own.search(path.read_text())]


def test_none_of_them_imports_the_compiler():
    done = subprocess.run(
        [sys.executable, "-c", USED.format(settings=SETTINGS)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False"]


def test_subnormal_numbers_are_zero_inside_and_as_they_were_outside():
    def are_zero():
        return not torch.tensor(1e-40).mul(1.0).any()

    before = are_zero()
    with without_subnormals():
        with without_subnormals():
            inside = are_zero()
        assert inside and are_zero()
    assert are_zero() == before
