"""What of a command looks wrong and is asked about."""

import pytest

from attacks import InputError
from simulator.audit.plan import AuditOptions
from simulator.cli.inputs import parse_fields, parse_numbers, parse_owners, parse_shape


@pytest.mark.parametrize("shape", ["28,28,1", "32,32,3", "224,224,4"])
def test_a_shape_in_the_order_of_pictures_is_refused(shape):
    height, _, channels = shape.split(",")
    with pytest.raises(InputError, match=f"write channels,height,width, --shape {channels},{height},{height}"):
        parse_shape(shape)


@pytest.mark.parametrize("shape", ["1,28,28", "3,32,32", "12,1000,1", "1,1,3", "3,3,3", "64,8,8"])
def test_other_shapes_are_taken_as_they_are(shape):
    assert ",".join(map(str, parse_shape(shape))) == shape


@pytest.mark.parametrize(("option", "text"), [("--std", "0"), ("--std", "0.2,-1"), ("--mean", "nan"), ("--mean", "a")])
def test_numbers_that_normalize_nothing_are_refused_by_the_name_of_the_flag(option, text):
    with pytest.raises(InputError, match=f"^{option} .*{text}"):
        parse_numbers(option, text)


def test_a_mean_in_units_of_255_is_refused_as_typed_and_in_python():
    assert parse_numbers("--mean", "0.13,1") == (0.13, 1.0) and parse_numbers("--std", "78.6") == (78.6,)
    for text in ("33.3", "0.4,125.3"):
        with pytest.raises(InputError, match=f"^--mean {text}: pixels are from 0 to 1 .* divide mean and std by 255"):
            parse_numbers("--mean", text)
    with pytest.raises(InputError, match=r"^mean 33.3: pixels are from 0 to 1"):
        AuditOptions.of("nets.py:Net", recording="", shape=(1, 28, 28), mean=(33.3,))


def test_a_field_of_knowledge_that_is_not_there_is_told_from_one_without_a_value():
    with pytest.raises(
        InputError, match=r"no field 'num_privat'; did you mean 'num_private'\? \(known: num_private, lab"
    ):
        parse_fields(["num_privat=16"])
    with pytest.raises(InputError, match="write FIELD=VALUE"):
        parse_fields(["num_private"])


def test_whose_a_folder_is():
    assert parse_owners(["12=alice", "0=a/b=c"]) == {"12": "alice", "0": "a/b=c"}
    with pytest.raises(InputError, match="--owner 'alice': write NODE=FOLDER"):
        parse_owners(["alice"])
