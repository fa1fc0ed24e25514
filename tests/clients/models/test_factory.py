import math
import os

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from attacks import InputError
from clients.config import ModelConfig
from clients.models import build_model, option_values
from clients.models.factory import check_left_out, construct, count_scores

SHAPE = (1, 28, 28)


def build(outputs=10, shape=SHAPE, seed=0, **options):
    return build_model(ModelConfig(**options), shape, outputs, seed)


@pytest.fixture
def factory(tmp_path):
    def write(body):
        path = tmp_path / "mine.py"
        path.write_text(f"import torch.nn as nn\n{body}\n")
        return f"{path}:make"

    return write


def test_own_factory_with_options_keeps_its_own_initialization(factory):
    name = factory(
        "def make(width):\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.Linear(width, 10))"
    )
    model = build(name=name, options={"width": 5})
    assert model[1].weight.shape == (5, 784)
    assert model[1].bias.any()  # PyTorch's default, not zero
    assert torch.equal(model[1].weight, build(name=name, options={"width": 5})[1].weight)


def test_own_factory_that_needs_arguments_says_so_in_one_line(factory):
    name = factory("def make(width, depth=2):\n    return nn.Linear(width, 10)")
    with pytest.raises(InputError) as caught:
        build(name=name)
    assert "is called without arguments: missing a required argument: 'width'; name a function" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("answer", ["{'logits': x}", "SimpleNamespace(loss=None, logits=x)", "(x,)"])
def test_class_scores_in_a_dictionary_or_an_object_are_found(factory, answer):
    name = factory(
        "from types import SimpleNamespace\nclass Net(nn.Sequential):\n    def forward(self, x):\n"
        f"        x = super().forward(x)\n        return {answer}\n"
        "def make():\n    return Net(nn.Flatten(), nn.Linear(784, 10))"
    )
    assert build(name=name)(torch.zeros(3, *SHAPE)).shape == (3, 10)


def test_several_heads_without_logits_are_refused(factory):
    name = factory(
        "class Net(nn.Linear):\n    def forward(self, x):\n        x = super().forward(x.flatten(1))\n"
        "        return {'a': x, 'b': x}\ndef make():\n    return Net(784, 10)"
    )
    with pytest.raises(InputError, match="returns a dict without `logits`"):
        build(name=name)


def test_own_factory_that_raises_shows_its_own_traceback(factory):
    name = factory("def make():\n    raise KeyError('no such net')")
    with pytest.raises(InputError) as caught:
        build(name=name)
    message = str(caught.value)
    assert "mine.py" in message and "no such net" in message and len(message.splitlines()) <= 5


def test_a_model_of_a_dict_is_told_what_attacks_give(factory):
    name = factory("class Net(nn.Linear):\n    def forward(self, x):\n        return super().forward(x['image'])\n"
                   "def make():\n    return Net(784, 10)")  # fmt: skip
    with pytest.raises(InputError, match=r"one tensor of floats \(N, C, H, W\); wrap a model that takes anything else"):
        build(name=name)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("def make():\n    return nn.Flatten()", "no parameters"),
        ("def make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 3))", "outputs of shape (3,)"),
        (
            "def make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(100, 10))",
            "its layer '1' takes 100 numbers and gets 784",
        ),
        ("def make():\n    return nn.Conv2d(28, 2, 3)", "takes 28 channels and gets 1; name in `model` a network that"),
        ("def make():\n    return nn.Embedding(9, 2)", "takes text, which is not attacked"),
        ("def make():\n    return nn.Sequential(nn.Conv2d(1, 4, 50))", "can't be greater than actual input size"),
        ("def make():\n    return 3", "returned int"),
        ("def other():\n    pass", "has no function 'make'"),
        (
            "def make():\n    m = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n    return m.requires_grad_(False)",
            "no parameter to train",
        ),
    ],
)
def test_factories_that_do_not_fit(factory, body, says):
    with pytest.raises(InputError) as caught:
        build(name=factory(body))
    assert says in str(caught.value) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(("shape", "remedy"), [((), r"return \(N, 1\)"), ((1, 28, 28), r"outputs\.flatten\(1\)")])
def test_outputs_that_are_no_row_of_scores_are_refused_with_the_remedy(shape, remedy):
    """Of a regression that squeezes its outputs, and of an autoencoder or a segmentation."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, math.prod(shape)), nn.Unflatten(1, (*shape, 1)), nn.Flatten(-2))
    model.append(nn.Flatten(0) if not shape else nn.Identity())
    with pytest.raises(InputError, match=remedy):
        count_scores(model, "net", (1, 28, 28))
    assert count_scores(model[:2], "net", (1, 28, 28)) == math.prod(shape)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"name": "lenet5", "width": 1024},
            "model.width is 1024: Extra inputs are not permitted (the options of model 'lenet5' are multiplier, bias",
        ),
        ({"name": "mlp", "multiplier": 2}, "model.multiplier is 2"),
        ({"name": "resnet18", "bias": False}, "model.bias is False"),
        ({"name": "mlp", "options": {"channels": 4}}, "model.channels is 4"),
        ({"name": "mlp", "width": "wide"}, "model.width is 'wide'"),
        ({"name": "lenet"}, "did you mean 'lenet5'"),
        ({"width": 8, "frozen": ["conv*"]}, "matches no parameter"),
        ({"width": 8, "frozen": ["*"]}, "leaves no parameter"),
    ],
)
def test_names_and_options_that_a_model_does_not_have_are_refused(options, says):
    with pytest.raises(InputError) as caught:
        build(**options)
    assert says in str(caught.value)


def test_options_may_stand_beside_the_name_or_below_it_and_null_takes_them_back():
    flat = ModelConfig(name="mlp", width=7, bottleneck=None)
    assert flat == ModelConfig.model_validate({"options": {"width": 7}}) == ModelConfig(**flat.model_dump())
    assert ModelConfig.model_validate({**flat.model_dump(), "width": 9}).options == {"width": 9}
    assert ModelConfig.model_validate({**flat.model_dump(), "width": None}).options == {}
    assert option_values(flat)["width"] == 7 and option_values(flat)["depth"] == 2


def test_an_option_beside_an_own_factory_is_refused():
    with pytest.raises(ValueError, match=r"keyword arguments under model\.options"):
        ModelConfig(name="nets.py:make", width=64)


def test_checkpoint_is_loaded_and_a_wrong_one_refused(tmp_path):
    model = build(width=8, seed=1)
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    assert torch.equal(build(width=8, seed=2, checkpoint=str(tmp_path / "a.safetensors"))[1].weight, model[1].weight)
    with pytest.raises(InputError, match="does not fit"):
        build(width=9, checkpoint=str(tmp_path / "a.safetensors"))
    with pytest.raises(InputError, match="does not exist"):
        build(checkpoint=str(tmp_path / "none.safetensors"))
    (tmp_path / "b.safetensors").write_text("nonsense")
    with pytest.raises(InputError, match="no safetensors file"):
        build(checkpoint=str(tmp_path / "b.safetensors"))


def test_frozen_patterns():
    model = build(width=8, frozen=["1.*"])
    assert next(n for n, p in model.named_parameters() if p.requires_grad) == "3.weight"


@pytest.mark.parametrize("options", [{"depth": 1000}, {"width": 10**9}, {"name": "resnet18", "channels": 10**9}])
def test_a_network_beyond_the_memory_of_the_machine_is_refused_before_it_is_built(options, monkeypatch):
    of_eight_gibibytes = {"SC_PAGE_SIZE": 2**12, "SC_PHYS_PAGES": 2**21}
    monkeypatch.setattr(os, "sysconf", of_eight_gibibytes.__getitem__)
    # a dozen copies in float32: 8 * 2^30 / 48
    with pytest.raises(
        InputError, match=r"would have .* parameters, and the memory .* is enough for 178,956,970: lower"
    ):
        build(**options)


@pytest.mark.parametrize("wrapped", ["nn.DataParallel(net)", "torch.compile(net, backend='eager')"])
def test_wrappers_of_a_network_are_taken_off(factory, wrapped):
    body = "net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))"
    model = build(name=factory(f"import torch\ndef make():\n    {body}\n    return {wrapped}"))
    assert list(model.state_dict()) == ["1.weight", "1.bias"]


@pytest.mark.parametrize("first", ["", "import torch; torch.manual_seed(0); "])
def test_frozen_layers_that_neither_the_checkpoint_nor_the_function_fixes_are_refused(factory, first):
    body = "net = nn.Sequential(nn.Flatten(), nn.Linear(784, 5), nn.Linear(5, 10)); net[1].requires_grad_(False)"
    name = factory(f"def make():\n    {first}{body}\n    return net")
    model = build(name=name)
    check_left_out(model, name, SHAPE, model.state_dict())  # brings all
    head = {"2.weight": model[2].weight, "2.bias": model[2].bias}
    if first:
        return check_left_out(construct(ModelConfig(name=name), SHAPE, 0), name, SHAPE, head)
    with pytest.raises(InputError, match=r"^the checkpoint has no '1.weight', and model '.*make' draws it anew"):
        check_left_out(model, name, SHAPE, head)
