"""The card that is not there: it refuses what CUDA refuses, notes every wait, and computes what the CPU computes."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, jvp, vmap

from tests.device.card import MixedDevices, card

MIXED = {
    "two matrices": lambda on: on + torch.ones(2, 3),
    "a product": lambda on: on @ torch.ones(3),
    "parts of one tensor": lambda on: torch.cat([on, torch.zeros(1, 3)]),
    "scalars that are joined": lambda on: torch.stack([on.sum(), torch.zeros(())]),
    "what is written lies on the host": lambda on: torch.ones(2, 3).add_(on),
    "a scalar that is written lies on the host": lambda on: torch.zeros(()).add_(on.sum()),
    "a mask from the card for a tensor of the host": lambda on: torch.ones(2, 3)[on > 0],
    "indices for gather": lambda on: on.gather(1, torch.zeros(2, 1, dtype=torch.long)),
    "a layer that was left behind": lambda on: nn.Linear(3, 2)(on),
    "values that are set": lambda on: on.index_put_((torch.tensor([0]),), torch.ones(1, 3)),
    "random numbers of the host, made there": lambda on: torch.rand(3, generator=torch.Generator(), device="cuda"),
    "random numbers of the host, filled in": lambda on: on.normal_(generator=torch.Generator()),
    "a permutation": lambda on: torch.randperm(3, generator=torch.Generator(), device=on.device),
}


@pytest.mark.parametrize("name", MIXED)
def test_two_devices_in_one_operation_are_refused_where_it_stands(name):
    with card(), pytest.raises(MixedDevices, match=r"test_card\.py:<lambda>"):
        MIXED[name](torch.zeros(2, 3, device="cuda"))


def test_what_cuda_allows_passes():
    with card() as waits:
        on = torch.ones(2, 3, device="cuda")
        waits.seen.clear()
        made = [on * torch.tensor(2.0), torch.tensor(2.0) - on, torch.where(on > 0, on, torch.tensor(0.0))]
        made += [on.masked_fill(on > 0, torch.tensor(3.0)), on.new_zeros(2), torch.zeros_like(on), torch.eye(2).to(on)]
        made[0][0] = 5.0
        assert {tensor.device for tensor in made} == {torch.device("cuda:0")} and made[0].is_cuda
        assert made[0].cpu().tolist() == [[5, 5, 5], [2, 2, 2]]
        assert [wait.kind for wait in waits.seen] == ["upload", "download"]  # of the identity, and the last line


WAITS = {
    "item": (lambda on: on.sum().item(), ["_local_scalar_dense"]),
    "float": (lambda on: float(on.sum()), ["_local_scalar_dense"]),
    "a decision": (lambda on: bool((on > 0).all()), ["_local_scalar_dense"]),
    "a list": (lambda on: on.tolist(), ["download"]),
    "back": (lambda on: on.cpu(), ["download"]),
    "into a tensor of the host": (lambda on: torch.zeros(2, 3).copy_(on), ["download"]),
    "from numbers": (lambda on: torch.tensor([1.0, 2.0], device=on.device), ["upload"]),
    "a number that is set": (lambda on: on.__setitem__((0, 1), 2.0), ["upload"]),
    "new_tensor": (lambda on: on.new_tensor([1.0, 2.0]), ["upload"]),
    "there": (lambda on: torch.ones(2).to(on.device), ["upload"]),
    "a list of indices": (lambda on: on[[0, 1]], ["upload"]),
    "a mask": (lambda on: on[on > 0], ["mask"]),
    "a mask that is written by": (lambda on: on.clone().index_put_((on > 0,), on.new_ones(6)), ["mask"]),
    "nonzero": (lambda on: on.nonzero(), ["nonzero"]),
    "are they equal": (lambda on: torch.equal(on, on), ["equal"]),
    "an index that is a tensor": (lambda on: on[on.sum().long() - 6], ["_local_scalar_dense"]),
    "nothing": (lambda on: (on @ on.T).softmax(1).sum(), []),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_host_and_card_wait_for_is_noted_with_its_place(name):
    call, kinds = WAITS[name]
    with card() as waits:
        on = torch.ones(2, 3, device="cuda")
        waits.seen.clear()
        call(on)
    assert [wait.kind for wait in waits.seen] == kinds
    assert all(
        wait.place == "test_card.py:<lambda>" and wait.line == call.__code__.co_firstlineno for wait in waits.seen
    )


def test_numpy_and_generators_of_the_card_are_refused():
    with card():
        on = torch.ones(2, device="cuda")
        for call in (on.numpy, lambda: np.asarray(on)):
            with pytest.raises(TypeError, match="can't convert cuda:0"):
                call()
        with pytest.raises(RuntimeError, match="CUDA"):
            torch.Generator(device="cuda")
    with pytest.raises(RuntimeError, match="outside"):
        on + 1


def network():
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(36, 5))


def trained(device):
    model, images = network().to(device), torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)).to(device)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        adam.zero_grad()
        nn.functional.cross_entropy(model(images), torch.arange(6, device=device) % 5).backward()
        adam.step()
    return model.eval(), images


def results(device):
    """What training, autograd, `torch.func` and linear algebra give, on the CPU."""
    model, images = trained(device)
    state = dict(model.named_parameters()) | dict(model.named_buffers())

    def outputs(image):
        return functional_call(model, state, (image[None],))[0]

    images = images.requires_grad_()
    (first,) = torch.autograd.grad(model(images).square().sum(), images, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), images)
    jacobian = vmap(jacrev(outputs))(images.detach())
    tangent = jvp(outputs, (images[0].detach(),), (images[1].detach(),))[1]
    rows = jacobian.flatten(0, 1).flatten(1).detach().double()
    values = torch.linalg.svdvals(rows)
    solved = torch.linalg.solve(rows @ rows.T + torch.eye(len(rows), device=device), rows[:, :1])
    eigenvalues = torch.linalg.eigh(rows @ rows.T)[0]
    made = [*model.state_dict().values(), second, jacobian, tangent, values, solved, eigenvalues]
    return [tensor.detach().cpu() for tensor in made]


def test_training_autograd_func_and_linear_algebra_give_what_the_cpu_gives():
    with card():
        there = results("cuda")
    for here, same in zip(results("cpu"), there, strict=True):
        torch.testing.assert_close(here, same)


def test_views_and_writes_in_place_are_those_of_one_memory():
    with card():
        on = torch.arange(6.0, device="cuda").view(2, 3)
        on.T[0] = 7.0
        on[:, 1:].mul_(2)
        assert on.tolist() == [[7, 2, 4], [7, 8, 10]]


def test_a_graph_runs_again_what_was_captured_on_the_values_of_now():
    with card() as waits:
        total, step = torch.zeros((), device="cuda"), torch.ones((), device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            total.add_(step * 2)
        assert total.tolist() == 0  # a capture runs nothing
        for value in (1.0, 10.0):
            step.fill_(value)
            graph.replay()
        assert total.tolist() == 22
        with pytest.raises(RuntimeError, match="not permitted when the stream is capturing"), torch.cuda.graph(graph):
            total.add_(total.new_tensor(1.0))
        assert len(waits.seen) == 3


def test_nothing_of_it_stays():
    with card():
        assert torch.cuda.is_available()
    assert not torch.cuda.is_available() or torch.cuda.device_count()
    weight = torch.ones(2, requires_grad=True)
    (weight * torch.tensor([1.0, 2.0])).sum().backward()
    assert weight.grad.tolist() == [1, 2]
    with torch.random.fork_rng():
        torch.manual_seed(0)
