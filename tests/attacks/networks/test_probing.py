import pytest
import torch
from torch import nn

from attacks import Knowledge, Observation
from attacks.baselines import first_layer_residual, gradient_residual
from attacks.interface.observation import unwrapped
from attacks.interface.torch_tools import cast_state
from attacks.kernel.empirical import (
    affordable_images,
    empirical_ntk,
    has_linear_output,
    kernel_drift,
    linearization_error,
    relative_residual,
)
from attacks.kernel.hessian import hessian_norms
from attacks.kernel.regime import OnImages, UpdateFacts
from attacks.membership import MembershipTest
from attacks.networks.front_layers import find_dense_network
from attacks.networks.probing import (
    count_outputs,
    evaluating,
    find_input_layer,
    find_output_layer,
    linear_layers,
    probe,
    random_images,
    run_network,
)
from attacks.update.labels import estimate_label_counts
from tests.attacks.conftest import NTKLinear, client, digits, generator, mlp, untouched

SHAPE = (1, 8, 8)


def convolutional():
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Dropout()]
    return nn.Sequential(*body, nn.Linear(144, 10)).eval()


def double(state):
    return cast_state(state, torch.device("cpu"), torch.float64)


READERS = {
    "empirical_ntk": lambda o, x: empirical_ntk(o.model, o.initial, x),
    "kernel_drift": kernel_drift,
    "affordable_images": lambda o, x: affordable_images(o),
    "hessian_norms": lambda o, x: hessian_norms(o.model, o.initial, x, generator(), iterations=2),
    "linearization_error": lambda o, x: linearization_error(o.model, o.initial, o.final, x),
    "relative_residual": lambda o, x: relative_residual(o.model, double(o.initial), o.delta(), x.double()),
    "has_linear_output": lambda o, x: has_linear_output(o.model, double(o.initial), x.double()),
    "linearity": lambda o, x: (OnImages.of(o, x, generator()), UpdateFacts.of(o, generator())),
    "membership": lambda o, x: MembershipTest.of(o, Knowledge(num_private=2)).residual(x),
    "label counts": lambda o, x: estimate_label_counts(o, Knowledge(num_private=2, learning_rate=0.05, steps=5)),
    "first_layer_residual": lambda o, x: first_layer_residual(o, x, 2),
    "gradient_residual": gradient_residual,
    "find_dense_network": lambda o, x: find_dense_network(o.model, SHAPE),
    "probing": lambda o, x: (find_input_layer(o.model, SHAPE), find_output_layer(o.model, SHAPE)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("make", [mlp, convolutional])
def test_whoever_reads_a_network_leaves_it_as_it_was_and_reads_it_in_evaluation_mode(reader, make):
    images = digits(2)
    observation = client(make(), images)
    expected = READERS[reader](Observation(observation.model.eval(), observation.pairs, SHAPE), images)
    with untouched(observation.model):
        assert same(READERS[reader](observation, images), expected)


def same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, tuple):
        return all(map(same, left, right))
    if hasattr(left, "__dict__"):
        return all(map(same, vars(left).values(), vars(right).values()))
    return left == right or (left != left and right != right)


def test_layers_are_found_by_what_they_are_given_and_give():
    scaled = mlp(16, depth=1, linear=NTKLinear)
    layer = find_input_layer(scaled, SHAPE)
    assert (layer.weight, layer.bias) == ("1.weight", "1.bias") and layer.scale == pytest.approx(1 / 8)
    assert find_output_layer(scaled, SHAPE) == "3" and count_outputs(scaled, SHAPE) == 10
    assert find_input_layer(convolutional(), SHAPE) is None
    # something in place follows: what the layer gave is not what the network gives
    assert find_output_layer(nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.ReLU(inplace=True)), SHAPE) is None


def test_a_probe_sees_every_call_before_it_can_be_changed_in_place():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(inplace=True))
    images = random_images((1, 2, 2), count=5)
    outputs, (call,) = probe(model, images, linear_layers(model))
    assert call.name == "1" and torch.equal(call.given, images.flatten(1))
    assert torch.equal(call.gave.relu(), outputs) and (call.gave < 0).any()
    assert torch.equal(images, random_images((1, 2, 2), count=5))
    assert not any(module._forward_hooks for module in model.modules())


def test_modes_come_back_even_after_an_error():
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)).train()
    model[1].eval()
    with pytest.raises(RuntimeError), evaluating(model):
        assert not any(module.training for module in model.modules())
        model(torch.zeros(2, 3))
    assert [module.training for module in model.modules()] == [True, True, False]


def test_a_network_of_the_user_s_that_is_called_as_a_wrapper_is_none():
    named = type("OptimizedModule", (nn.Linear,), {})(2, 2)
    assert unwrapped(named) == (named, "")
    assert unwrapped(nn.DataParallel(named)) == (named, "module.")


def test_a_weight_that_two_layers_share_is_one_whatever_names_a_state_has_for_it():
    """2 · (2 · 3) = 12; the values of the second name, as a state dict has it, are another tensor."""
    first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    second.weight = first.weight
    model = nn.Sequential(nn.Flatten(), first, second)
    state = {"1.weight": torch.tensor([[2.0]], requires_grad=True), "2.weight": torch.tensor([[2.0]])}
    output = run_network(model, state, torch.full((1, 1, 1, 1), 3.0))
    assert output.item() == 12
    assert torch.autograd.grad(output.sum(), state["1.weight"])[0].item() == 12  # d(3 w²)/dw at 2


def test_a_layer_of_two_names_is_run_at_the_parameters_given_and_left_as_it_was():
    """As where a network keeps its layers by name, and in a list that it runs."""
    model = nn.Sequential(nn.Flatten(), inner := nn.Linear(4, 4), inner)
    images = torch.randn(2, 1, 2, 2)
    state = {name: 2 * value.double() for name, value in model.state_dict().items()}
    assert set(state) == {"1.weight", "1.bias", "2.weight", "2.bias"}
    before = dict(model.named_parameters())
    found = run_network(model, state, images.double())
    weight, bias = state["1.weight"], state["1.bias"]
    assert torch.allclose(found, (images.double().flatten(1) @ weight.T + bias) @ weight.T + bias)
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert torch.equal(run_network(model, model.state_dict(), images), model(images))
