"""What of a command looks wrong and is asked about."""

import pytest
import torch
from torch import nn

from attacks import InputError
from simulator.audit.plan import AuditOptions
from simulator.cli.inputs import check_model, parse_fields, parse_numbers, parse_owners, parse_shape


@pytest.mark.parametrize("shape", ["28,28,1", "32,32,3", "224,224,4", "64,48,1", "16,64,3"])
def test_a_shape_in_the_order_of_pictures_is_refused(shape):
    height, width, channels = shape.split(",")
    with pytest.raises(InputError, match=f"write channels,height,width, --shape {channels},{height},{width}"):
        parse_shape(shape)


def test_the_shape_of_a_row_is_that_of_an_image_of_one_line():
    with pytest.raises(InputError, match=r"--shape '30': .*; for rows of a table 1,1,30"):
        parse_shape("30")


@pytest.mark.parametrize("shape", ["28,1,28", "32,3,32"])
def test_channels_in_the_middle_are_refused(shape):
    height, channels, _ = shape.split(",")
    with pytest.raises(InputError, match=f"in the middle: write .*, --shape {channels},{height},{height}"):
        parse_shape(shape)


@pytest.mark.parametrize("shape", ["1,28,28", "3,32,32", "12,1000,1", "1,1,3", "3,3,3", "64,8,8", "28,2,28"])
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


def test_checkpoints_of_another_model_are_named_and_names_are_suggested_only_for_a_slip():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    own, other = model.state_dict(), {"conv1.weight": torch.zeros(1), "conv1.bias": torch.zeros(1)}
    check_model("n.py:Net", model, {"--initial 'a'": own, "--final 'b'": own})
    files = {"--initial 'a'": other, "--final 'b'": other}
    with pytest.raises(InputError) as both:
        check_model("n.py:Net", model, files)
    assert str(both.value) == (
        "--initial 'a' and --final 'b' have no tensor '0.weight', but 'conv1.weight', 'conv1.bias': "
        "--model 'n.py:Net' is another model than the one that was saved"
    )
    with pytest.raises(InputError, match=r"^--final 'b' has no tensor '0.weight', but 'conv1.weight'"):
        check_model("n.py:Net", model, files | {"--initial 'a'": own})
    with pytest.raises(InputError, match=r"'6.weight', but '0.weight'.*; where clients keep layers, name a model of"):
        deep = nn.Sequential(*model, nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        check_model("n.py:Net", deep, {"--final 'b'": {k: v for k, v in deep.state_dict().items() if k[0] != "6"}})
    slip = {name.replace("2.bias", "2.bias_"): value for name, value in own.items()}
    with pytest.raises(InputError, match=r"^--final 'b' has no tensor '2.bias'; did you mean '2.bias_'\?: .* saved$"):
        check_model("n.py:Net", model, {"--initial 'a'": own, "--final 'b'": slip})


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
