"""What of a command looks wrong and is asked about."""

import pytest
import torch
from torch import nn

from attacks import InputError
from simulator.cli.inputs import notice_swapped, parse_owners, parse_shape


@pytest.mark.parametrize("shape", ["28,28,1", "32,32,3", "224,224,4"])
def test_a_shape_in_the_order_of_pictures_is_refused(shape):
    height, _, channels = shape.split(",")
    with pytest.raises(InputError, match=f"write channels,height,width, --shape {channels},{height},{height}"):
        parse_shape(shape)


@pytest.mark.parametrize("shape", ["1,28,28", "3,32,32", "12,1000,1", "1,1,3", "3,3,3", "64,8,8"])
def test_other_shapes_are_taken_as_they_are(shape):
    assert ",".join(map(str, parse_shape(shape))) == shape


def trained(*layers):
    """(network, its state before and after a few steps)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), *layers)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.rand(8, 1, 8, 8)), torch.arange(8)).backward()
        optimizer.step()
    return model, initial, model.state_dict()


def test_swapped_checkpoints_are_asked_about():
    model, initial, final = trained(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    assert notice_swapped(model, initial, final) == []
    assert notice_swapped(model, final, initial) == [
        "--final holds freshly initialized weights, --initial others: are the two swapped?"
    ]
    assert notice_swapped(model, final, final) == []


def test_batches_that_are_counted_backwards_are_refused():
    model, initial, final = trained(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 10))
    assert notice_swapped(model, initial, final) == []
    with pytest.raises(InputError, match="--final has seen fewer batches than --initial"):
        notice_swapped(model, final, initial)


def test_whose_a_folder_is():
    assert parse_owners(["12=alice", "0=a/b=c"]) == {"12": "alice", "0": "a/b=c"}
    with pytest.raises(InputError, match="--owner 'alice': write NODE=FOLDER"):
        parse_owners(["alice"])
