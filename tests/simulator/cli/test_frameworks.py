"""Files in the forms that other frameworks save are attacked as they are (docs/howto/other_frameworks.md)."""

import json
import os
import re
import textwrap
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import SimpleClientManager
from flwr.server.strategy import FedAvg
from torch import nn

from tests.simulator.audit.recorded import MODEL, digits, network, trained

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


def test_replies_without_batchnorm_are_attacked_and_it_is_said(tmp_path, fedspill):
    """Clients of FedBN keep it. A layer of another kind that is not there is that of another model."""
    (tmp_path / "nets.py").write_text(NETS.replace("nn.ReLU(), nn.Linear(256, 256)", "nn.BatchNorm1d(256), nn.ReLU()"))
    scope = {}
    exec((tmp_path / "nets.py").read_text(), scope)
    model, (images, labels) = scope["make_net"]().eval(), digits(0)
    for name in ("sent.pt", "returned.pt"):
        kept = ("2.",) if name == "returned.pt" else ()
        torch.save(
            {key: value for key, value in model.state_dict().items() if not key.startswith(kept)}, tmp_path / name
        )
        model.zero_grad()
        nn.functional.cross_entropy(model(images - 0.3), labels).backward()
        torch.optim.SGD(model.parameters(), lr=0.05).step()
    result = fedspill("attack", "--model", f"{tmp_path}/nets.py:make_net", "--initial", tmp_path / "sent.pt", "--final",
                      tmp_path / "returned.pt", "--shape", "1,8,8", "--mean", "0.3", "--attack", "span",
                      "--out", tmp_path / "found")  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "BatchNorm that clients keep" in " ".join(result.stdout.split()), result.stdout
    assert "10 images" in result.stdout


PAGE = Path(__file__).parents[3] / "docs" / "howto" / "other_frameworks.md"


def nvflare(code, sent, net):
    """NVFLARE hands a site NumPy arrays unless its job asks for tensors."""
    model = SimpleNamespace(params={name: value.numpy() for name, value in sent.items()}, current_round=0)
    flare = SimpleNamespace(receive=lambda: model, get_site_name=lambda: "site-1")
    exec(code, {"flare": flare, "net": net, "torch": torch, "os": os})


def openfl(code, sent, net):
    flow = SimpleNamespace(current_round=0, model=SimpleNamespace(state_dict=lambda: sent))
    inputs = [SimpleNamespace(input="site-1", model=net)]
    exec(code, {"self": flow, "inputs": inputs, "torch": torch, "os": os})


class ServerAggregator:
    round = 1

    def __init__(self, sent):
        self.get_model_params = lambda: sent

    def on_before_aggregation(self, raw_client_model_or_grad_list):
        return raw_client_model_or_grad_list


def fedml(code, sent, net):
    names = {"ServerAggregator": ServerAggregator, "torch": torch, "os": os}
    exec(f"class Own(ServerAggregator):\n{textwrap.indent(code, '    ')}", names)
    names["Own"](sent).on_before_aggregation([(10, net.state_dict())])


def flower(code, sent, net):
    names = {"json": json, "np": np, "os": os, "FedAvg": FedAvg, "parameters_to_ndarrays": parameters_to_ndarrays}
    exec(f"class Own(FedAvg):\n{textwrap.indent(code, '    ')}", names)
    parameters, returned = (ndarrays_to_parameters([*map(np.asarray, s.values())]) for s in (sent, net.state_dict()))
    strategy, manager = names["Own"](min_fit_clients=1, min_available_clients=1), SimpleClientManager()
    manager.register(proxy := SimpleNamespace(cid="7"))
    strategy.configure_fit(1, parameters, manager)
    reply = FitRes(Status(Code.OK, ""), returned, num_examples=10, metrics={})
    assert strategy.aggregate_fit(1, [(proxy, reply)], [])[0] is not None


PAGES = {"Flower before its Message API": flower, "NVFLARE": nvflare, "OpenFL": openfl, "FedML": fedml}


@pytest.mark.parametrize("snippet", PAGES.values(), ids=PAGES)
def test_what_the_page_s_snippet_saves_is_audited(snippet, tmp_path, monkeypatch, fedspill, request):
    framework = request.node.callspec.id
    code = re.search(rf"## {framework}\n.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(MODEL, encoding="utf-8")
    net, model = network(), network()
    sent = {name: value.clone() for name, value in net.state_dict().items()}
    net.load_state_dict(trained(model, sent, 0))
    snippet(code, sent, net)
    result = fedspill("audit", "seen", "--model", "task.py:net", "--shape", "1,8,8", "--mean", "0.3", "--std", "0.4",
                      "--attack", "span", "--workers", "1")  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert pd.read_csv("seen-recording-audit/leakage.csv").num_vouched[0] == len(digits(0)[0])
