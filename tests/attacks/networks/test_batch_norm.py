import copy

import pytest
import torch
from torch import nn

from attacks import Knowledge, Observation, get_attack
from attacks.networks.probing import as_trained

LR, SHAPE = 0.1, (1, 6, 6)


def client(training):
    """One step of plain torch: (the network at its first parameters, three images, labels, the pair of checkpoints)."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5)]
    model = nn.Sequential(*layers).double().train(training)
    images, labels = torch.rand(3, *SHAPE, dtype=torch.float64), torch.tensor([0, 1, 2])
    initial = copy.deepcopy(model.state_dict())
    nn.functional.cross_entropy(model(images), labels).backward()
    torch.optim.SGD(model.parameters(), LR).step()
    final = copy.deepcopy(model.state_dict())
    model.load_state_dict(initial)
    return model.eval(), images, labels, (initial, final)


@pytest.mark.parametrize("training", [True, False])
def test_gradient_matching_simulates_the_mode_that_the_statistics_tell(training):
    """At the private images nothing is left of the distance; in the other mode much is."""
    model, images, labels, pair = client(training)
    kept = copy.deepcopy(pair[0])
    known = Knowledge(num_private=3, pixel_mean=(0.0,), learning_rate=LR, steps=1, labels=tuple(labels.tolist()))
    attack = get_attack("gradient_matching", precision="float64", total_variation=0.0, device="cpu")

    def distance(final):
        problem, _ = attack.matching(Observation(model, ((pair[0], final),), SHAPE), known, torch.Generator())
        return float(problem.objective(images, nn.functional.one_hot(labels, 5).double()).detach())

    other = dict(pair[1])
    for name in other:
        if "running" in name:
            other[name] = pair[0][name] + (0.0 if training else 0.1)
    assert distance(pair[1]) < 1e-12 and distance(other) > 1e-3
    alone = {name: value for name, value in pair[1].items() if "running" not in name}  # a reply of parameters
    assert training or distance(alone) < 1e-12
    assert all(torch.equal(value, kept[name]) for name, value in pair[0].items())


def test_a_network_whose_statistics_stay_is_returned_as_it_is():
    model, _, _, (initial, final) = client(False)
    assert as_trained(model, initial, final) is model


def test_a_single_value_per_channel_keeps_the_running_statistics():
    model, images, _, (initial, final) = client(True)
    found = as_trained(model, initial, final)
    alone = found[5](torch.ones(1, 5, dtype=torch.float64))
    torch.testing.assert_close(alone, model[5](torch.ones(1, 5, dtype=torch.float64)))
    with torch.no_grad():
        torch.testing.assert_close(found(images)[:, 0].mean(), torch.zeros((), dtype=torch.float64), atol=1e-12, rtol=0)
