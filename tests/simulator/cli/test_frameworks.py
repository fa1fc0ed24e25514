"""Files in the forms that NVFLARE, OpenFL and FedML save are attacked as they are (docs/howto/other_frameworks.md)."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from tests.simulator.audit.recorded import digits

NETS = """
from torch import nn
def make_net():
    hidden = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(256, 10))
"""
FORMS = {  # what each framework's torch.save is given
    "nvflare": lambda state, _: OrderedDict(
        model=OrderedDict(state), meta_props={}, train_conf={"train": {"model": "Net"}}
    ),
    "openfl": lambda state, optimizer: {"model_state_dict": state, "optimizer_state_dict": optimizer.state_dict()},
    "fedml": lambda state, _: OrderedDict(state),
}


@pytest.mark.parametrize("framework", FORMS)
def test_files_of_other_frameworks_are_attacked(framework, tmp_path, fedspill):
    (tmp_path / "nets.py").write_text(NETS)
    torch.manual_seed(0)
    scope = {}
    exec(NETS, scope)
    model, (images, labels) = scope["make_net"](), digits(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for name in ("sent.pt", "returned.pt"):
        state = {key: value.clone() for key, value in model.state_dict().items()}
        torch.save(FORMS[framework](state, optimizer), tmp_path / name)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images - 0.3), labels).backward()
        optimizer.step()
    result = fedspill("attack", "--model", f"{tmp_path}/nets.py:make_net", "--initial", tmp_path / "sent.pt", "--final",
                      tmp_path / "returned.pt", "--shape", "1,8,8", "--mean", "0.3", "--attack", "span",
                      "--out", tmp_path / "found")  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert f"{len(images)} of {len(images)}" in result.stdout or f"{len(images)} images" in result.stdout, result.stdout
