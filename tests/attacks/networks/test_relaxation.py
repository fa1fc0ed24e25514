import math

import pytest
import torch
from torch import nn

from attacks.networks.relaxation import relaxed
from attacks.ntk.objective import SoftplusForReLU


def gradient(function, leak):
    x = torch.tensor([-2.0, 3.0], requires_grad=True)
    with relaxed(leak):
        value = function(x.clone())  # as networks are fed: a leaf cannot be changed in place
    return value, torch.autograd.grad(value.sum(), x)[0]


def test_a_relu_keeps_its_value_and_passes_a_share_where_it_is_off():
    for relu in (nn.ReLU(), nn.Sequential(nn.Identity(), nn.ReLU(inplace=True)), torch.relu, lambda x: x.relu()):
        value, slope = gradient(relu, 0.25)
        assert value.tolist() == [0, 3] and slope.tolist() == [0.25, 1]


def in_statements(change):
    """What is left of 2x, of whose ReLU in place nobody looks at the result."""

    def function(x):
        y = 2 * x
        change(y)
        return y

    return function


IN_PLACE = (
    torch.relu_,
    lambda x: x.relu_(),
    lambda x: nn.functional.relu(x, True),
    lambda x: nn.functional.relu(x, inplace=True),
)


@pytest.mark.parametrize("change", IN_PLACE)
def test_a_relu_in_place_changes_what_it_is_given(change):
    value, slope = gradient(in_statements(change), 0.25)
    assert value.tolist() == [0, 6] and slope.tolist() == [0.5, 2]
    x = torch.tensor([-2.0, 3.0])
    with SoftplusForReLU(1.5):
        smooth = in_statements(change)(x)
    torch.testing.assert_close(smooth, (3 * x).exp().log1p() / 1.5)


def test_without_a_leak_and_outside_nothing_changes():
    assert gradient(nn.ReLU(), 0.0)[1].tolist() == [0, 1]
    x = torch.tensor([-2.0, 3.0], requires_grad=True)
    assert torch.autograd.grad(torch.relu(x).sum(), x)[0].tolist() == [0, 1]


def test_other_functions_are_left_alone():
    x = torch.tensor([-2.0, 3.0], requires_grad=True)
    with relaxed(0.25):
        (slope,) = torch.autograd.grad(nn.LeakyReLU(0.5)(x).sum(), x)
    assert slope.tolist() == [0.5, 1]


def pooled(pool, sharpness):
    """Two windows, one of them constant, of maps whose standard deviation is 1."""
    x = torch.tensor([[1.0, 1.0, -1.0, 1.0], [1.0, 1.0, -1.0, -3.0]])
    x = (x / x.std()).view(1, 1, 2, 4)
    with relaxed(0.0, sharpness):
        return x, pool(x)


def test_max_pooling_goes_from_the_mean_to_the_maximum():
    for pool in (nn.MaxPool2d(2), lambda x: nn.functional.max_pool2d(x, 2), lambda x: torch.max_pool2d(x, 2)):
        x, hard = pooled(pool, math.inf)
        assert torch.equal(hard, nn.MaxPool2d(2)(x))
        assert torch.allclose(pooled(pool, 1e4)[1], hard, atol=1e-3)
        assert torch.allclose(pooled(pool, 1e-3)[1], nn.AvgPool2d(2)(x), atol=1e-2)
        assert pooled(pool, 1.0)[1][0, 0, 0, 0] == pytest.approx(float(hard[0, 0, 0, 0]))


def test_strides_padding_and_dilation_are_those_of_the_pooling():
    x = torch.randn(2, 3, 9, 7, generator=torch.Generator().manual_seed(0))
    for pool in (nn.MaxPool2d(3, 2, 1), nn.MaxPool2d((2, 3), (1, 2), dilation=2), nn.MaxPool2d(2, ceil_mode=True)):
        with relaxed(0.0, 1e5):
            smooth = pool(x)
        assert torch.allclose(smooth, pool(x), atol=1e-3)
