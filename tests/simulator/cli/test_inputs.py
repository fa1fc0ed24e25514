"""What of a command looks wrong and is asked about."""

import pytest

from attacks import InputError
from simulator.cli.inputs import parse_owners, parse_shape


@pytest.mark.parametrize("shape", ["28,28,1", "32,32,3", "224,224,4"])
def test_a_shape_in_the_order_of_pictures_is_refused(shape):
    height, _, channels = shape.split(",")
    with pytest.raises(InputError, match=f"write channels,height,width, --shape {channels},{height},{height}"):
        parse_shape(shape)


@pytest.mark.parametrize("shape", ["1,28,28", "3,32,32", "12,1000,1", "1,1,3", "3,3,3", "64,8,8"])
def test_other_shapes_are_taken_as_they_are(shape):
    assert ",".join(map(str, parse_shape(shape))) == shape


def test_whose_a_folder_is():
    assert parse_owners(["12=alice", "0=a/b=c"]) == {"12": "alice", "0": "a/b=c"}
    with pytest.raises(InputError, match="--owner 'alice': write NODE=FOLDER"):
        parse_owners(["alice"])
