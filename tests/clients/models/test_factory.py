import math

import pytest
import torch
from safetensors.torch import save_file

from attacks import InputError
from clients.config import ModelConfig
from clients.models import build_model, option_values

SHAPE = (1, 28, 28)


def build(outputs=10, shape=SHAPE, seed=0, **options):
    return build_model(ModelConfig(**options), shape, outputs, seed)


def test_mlp_layers_and_truncated_lecun_weights():
    model = build(width=1000, depth=2)
    shapes = [tuple(p.shape) for p in model.parameters()]
    assert shapes == [(1000, 784), (1000,), (1000, 1000), (1000,), (10, 1000), (10,)]
    first = model[1].weight
    assert float(first.detach().std()) == pytest.approx(1 / 28, rel=0.01)
    assert float(first.detach().abs().max()) <= 2 / 28 / 0.8796 + 1e-6
    assert not model[1].bias.any()


def test_plain_lecun_reaches_beyond_two_deviations():
    assert float(build(width=500, initialization="lecun")[1].weight.detach().abs().max()) > 3 / 28


def test_same_seed_same_weights():
    assert torch.equal(build(seed=3)[1].weight, build(seed=3)[1].weight)
    assert not torch.equal(build(seed=3)[1].weight, build(seed=4)[1].weight)


def test_ntk_parameterization_divides_by_the_root_of_fan_in():
    model = build(width=400, parameterization="ntk", depth=1)
    assert float(model[1].weight.detach().std()) == pytest.approx(1.0, rel=0.01)
    x = torch.randn(3, *SHAPE)
    hidden = torch.relu(x.flatten(1) @ model[1].weight.T / 28)
    assert torch.allclose(model(x), hidden @ model[3].weight.T / math.sqrt(400), atol=1e-5)


def test_output_activation_and_no_bias():
    model = build(width=8, bias=False, output_activation="softmax")
    assert torch.allclose(model(torch.randn(2, *SHAPE)).sum(1), torch.ones(2))
    assert all("bias" not in name for name, _ in model.named_parameters())


def test_a_bottleneck_is_the_middle_hidden_layer():
    shapes = [tuple(p.shape) for p in build(width=50, depth=3, bottleneck=4, bias=False).parameters()]
    assert shapes == [(50, 784), (4, 50), (50, 4), (10, 50)]


def test_maxout_takes_the_larger_of_two_units_by_hand():
    model = build(width=2, depth=1, activation="maxout", bias=False, shape=(1, 1, 1), outputs=1)
    assert [tuple(p.shape) for p in model.parameters()] == [(4, 1), (1, 2)]
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[1.0], [-2.0], [3.0], [5.0]]))
        model[3].weight.copy_(torch.tensor([[1.0, 10.0]]))
    assert model(torch.ones(1, 1, 1, 1)).item() == 1 + 50
    assert model(-torch.ones(1, 1, 1, 1)).item() == 2 - 30


def test_hidden_softmax_has_mean_one_at_any_width():
    for width in (8, 800):
        model = build(width=width, depth=1, activation="softmax")
        assert torch.allclose(model[2](model[1](torch.randn(3, 784))).mean(1), torch.ones(3), atol=1e-5)
    with pytest.raises(InputError, match="'activation' is 'maxout'"):
        build(name="lenet5", activation="maxout")


def test_lenet5_has_the_classic_number_of_parameters():
    # 28x28, one channel, multiplier 1: 156 + 2,416 + 48,120 + 10,164 + 850
    assert sum(p.numel() for p in build(name="lenet5").parameters()) == 61_706


def test_lenet5_refuses_tiny_images():
    with pytest.raises(InputError, match="8x8"):
        build(name="lenet5", shape=(1, 8, 8))


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


def test_own_factory_that_raises_shows_its_own_traceback(factory):
    name = factory("def make():\n    raise KeyError('no such net')")
    with pytest.raises(InputError) as caught:
        build(name=name)
    message = str(caught.value)
    assert "mine.py" in message and "no such net" in message and len(message.splitlines()) <= 5


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("def make():\n    return nn.Flatten()", "no parameters"),
        ("def make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 3))", "outputs of shape (3,)"),
        ("def make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(100, 10))", "cannot take images"),
        ("def make():\n    return 3", "returned int"),
        ("def other():\n    pass", "has no function 'make'"),
    ],
)
def test_factories_that_do_not_fit(factory, body, says):
    with pytest.raises(InputError) as caught:
        build(name=factory(body))
    assert says in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_unknown_model_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'lenet5'"):
        build(name="lenet")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "lenet5", "width": 1024}, "model 'lenet5': option 'width' is 1024"),
        ({"name": "mlp", "multiplier": 2}, "model 'mlp': option 'multiplier' is 2"),
        ({"name": "resnet18", "bias": False}, "option 'bias' is False"),
        ({"name": "mlp", "options": {"channels": 4}}, "option 'channels' is 4"),
        ({"name": "mlp", "width": "wide"}, "option 'width' is 'wide'"),
    ],
)
def test_options_of_another_model_are_refused(options, says):
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
    with pytest.raises(InputError, match="matches no parameter"):
        build(width=8, frozen=["conv*"])
    with pytest.raises(InputError, match="leaves no parameter"):
        build(width=8, frozen=["*"])


def test_a_module_with_frozen_parameters_only_is_refused(factory):
    body = "def make():\n    m = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n    return m.requires_grad_(False)"
    with pytest.raises(InputError, match="no parameter to train"):
        build(name=factory(body))
