import itertools
import math

import pytest
import torch
from torch import nn

from attacks import Knowledge, Observation, get_attack
from attacks.ntk.adam_graph import GraphedAdam
from attacks.ntk.objective import TRACE_EVERY


def test_the_step_is_that_of_torch_adam():
    torch.manual_seed(0)
    matrix = torch.randn(6, 4, dtype=torch.float64)
    start = [torch.randn(4, dtype=torch.float64), torch.randn(6, dtype=torch.float64)]
    temperatures, decays = [11.0 + i for i in range(50)], [0.5 + 0.5 * math.cos(i / 20) for i in range(50)]

    def loss(x, y, beta):
        return ((matrix @ x - y) ** 2).sum() * beta + (x**4).sum()

    ours = [value.clone().requires_grad_() for value in start]

    def backward(beta):
        value = loss(*ours, beta)
        value.backward()
        return value.detach()

    descent = GraphedAdam(backward, ours, [0.02, 0.3])
    theirs = [value.clone().requires_grad_() for value in start]
    adam = torch.optim.Adam([{"params": [theirs[0]], "lr": 0.02}, {"params": [theirs[1]], "lr": 0.3}])
    total = 0.0
    for beta, decay in zip(temperatures, decays, strict=True):
        descent.step(beta, decay)
        adam.zero_grad()
        value = loss(*theirs, beta)
        value.backward()
        total += value.item()
        for group, rate in zip(adam.param_groups, (0.02, 0.3), strict=True):
            group["lr"] = rate * decay
        adam.step()
        assert float(descent.loss) == pytest.approx(value.item(), rel=1e-12)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)
    assert float(descent.total) == pytest.approx(total, rel=1e-12)


@pytest.fixture
def host_reads(monkeypatch):
    """Every operation that would wait for a GPU appends its name."""
    reads = []
    for name in ("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__", "__index__"):
        original = getattr(torch.Tensor, name)

        def watched(self, *args, _original=original, _name=name, **kwargs):
            reads.append(_name)
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, watched)
    return reads


@pytest.mark.parametrize("options", [{}, {"kernel": "hybrid"}, {"batch_size": 3}], ids=["final", "hybrid", "batches"])
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("dense", [True, False], ids=["closed form", "autograd"])
def test_nothing_waits_for_the_device_between_two_looks_at_the_loss(host_reads, options, rounds, dense):
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(16, 12)] if dense else [nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(12, 12)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(12, 2))
    states = [{name: value + 0.01 * i * torch.randn_like(value) for name, value in model.state_dict().items()}
              for i in range(rounds + 1)]  # fmt: skip
    observation = Observation(model, tuple(itertools.pairwise(states)), (1, 4, 4))
    attack = get_attack("ntk", iterations=2 * TRACE_EVERY + 1, patience=0, **options)
    between = []

    def progress(done, total, loss):
        between.append(len(host_reads))
        host_reads.clear()

    told = Knowledge(num_private=2, pixel_mean=(0.5,))
    attack.run(observation, told, torch.Generator().manual_seed(0), progress)
    assert between[1:3] == [1, 1]  # the look itself; what comes before the first one sets the attack up
