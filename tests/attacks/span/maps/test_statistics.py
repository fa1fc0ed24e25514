import torch
from torch import nn

from attacks.span.maps.network import batch_statistics

SHAPE = (1, 6, 6)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, momentum=0.2), nn.ReLU(), nn.Flatten())


def after(network, batches):
    """The states before and after forward passes in training mode."""
    initial = {name: value.clone() for name, value in network.state_dict().items()}
    network.train()
    for batch in batches:
        network(batch)
    final = {name: value.clone() for name, value in network.state_dict().items()}
    network.load_state_dict(initial)
    network.eval()
    return initial, final


def test_one_step_tells_the_statistics_of_its_batch():
    network, batch = model(), torch.randn(4, 1, 6, 6)
    state = batch_statistics(network, *after(network, [batch]), SHAPE, 4)
    fed = network[0](batch).transpose(0, 1).flatten(1)
    assert torch.allclose(state["1.running_mean"], fed.mean(1), atol=1e-6)
    assert torch.allclose(state["1.running_var"], fed.var(1, unbiased=False), atol=1e-6)
    seen = torch.func.functional_call(network, state, (batch,))
    network.train()
    assert torch.allclose(seen, network(batch), atol=1e-5)


def test_several_steps_tell_a_weighted_mean_of_theirs():
    """Weights 0.2 · 0.8^(T − 1 − t), over their sum 1 − 0.8^T."""
    network, batches = model(), list(torch.randn(3, 4, 1, 6, 6))
    found = batch_statistics(network, *after(network, batches), SHAPE, 4)
    means = torch.stack([network[0](batch).mean((0, 2, 3)) for batch in batches])
    weights = torch.tensor([0.64, 0.8, 1.0]) * 0.2 / (1 - 0.8**3)
    assert torch.allclose(found["1.running_mean"], (weights[:, None] * means).sum(0), atol=1e-5)


def test_a_plain_mean_over_all_batches_tells_those_of_training():
    """Three batches were seen before: (3 · old + 2 · mean) / 5."""
    network, batches = model(), list(torch.randn(5, 4, 1, 6, 6))
    network[1].momentum = None
    network.train()
    for batch in batches[:3]:
        network(batch)
    found = batch_statistics(network, *after(network, batches[3:]), SHAPE, 4)
    means = torch.stack([network[0](batch).mean((0, 2, 3)) for batch in batches[3:]])
    assert torch.allclose(found["1.running_mean"], means.mean(0), atol=1e-5)


def test_statistics_that_did_not_move_tell_nothing():
    network = model()
    state = network.state_dict()
    assert batch_statistics(network, state, state, SHAPE, 4) is None
