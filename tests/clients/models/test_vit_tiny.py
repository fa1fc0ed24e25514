import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge, Observation, get_attack
from clients.chain import ChainedDefense
from clients.config import ModelConfig, ModelOptionError, TrainingConfig
from clients.models import build_model
from clients.training import train
from tests.clients.defenses.parts import context, make

SHAPE = (1, 8, 8)
SMALL = {"width": 12, "depth": 2, "heads": 3}


def build(outputs=3, shape=SHAPE, **options):
    return build_model(ModelConfig(name="vit_tiny", **({**SMALL, "precision": "float64"} | options)), shape, outputs, 0)


def trained(model, shape=SHAPE, count=2, hooks=(), **training):
    """(what the client's update shows, its images)."""
    images = torch.rand(count, *shape, generator=torch.Generator().manual_seed(1)) - 0.5
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    config = TrainingConfig(**({"steps": 1, "learning_rate": 0.1} | training))
    train(model, images, torch.arange(count), config, torch.Generator().manual_seed(0), hooks)
    return Observation(model, ((initial, dict(model.state_dict())),), shape, 1, 0), images


def test_by_default_it_has_the_keys_and_the_parameters_of_timm_s_vit_tiny_with_patches_of_4():
    """VisionTransformer(img_size=32, patch_size=4, embed_dim=192, depth=12, num_heads=3, num_classes=10)."""
    d, tokens = 192, 1 + 64
    block = 2 * 2 * d + (3 * d * d + 3 * d) + (d * d + d) + (4 * d * d + 4 * d) + (4 * d * d + d)
    expected = d + tokens * d + (3 * 16 * d + d) + 12 * block + 2 * d + 10 * d + 10
    model = build_model(ModelConfig(name="vit_tiny"), (3, 32, 32), 10, 0)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected == 5_362_762
    names = list(model.state_dict())
    assert names[:4] == ["patch_embed.proj.weight", "patch_embed.proj.bias", "tokens.cls_token", "tokens.pos_embed"]
    layers = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
    assert names[4:16] == [f"blocks.0.{layer}.{part}" for layer in layers for part in ("weight", "bias")]
    assert names[-4:] == ["norm.weight", "norm.bias", "head.weight", "head.bias"]


def test_forward_is_that_of_torch_s_encoder_on_patches_in_reading_order():
    model = build(shape=(3, 16, 24), patch=8, input_scale=[0.5, 0.25, 2.0])
    images = torch.randn(2, 3, 16, 24, dtype=torch.float64)
    scaled = images / torch.tensor([0.5, 0.25, 2.0]).view(1, 3, 1, 1)
    rows = [scaled[:, :, i : i + 8, j : j + 8].flatten(1) for i in (0, 8) for j in (0, 8, 16)]
    projection = model.patch_embed.proj
    patches = torch.stack(rows, 1) @ projection.weight.flatten(1).T + projection.bias
    x = torch.cat([model.tokens.cls_token.expand(2, 1, 12), patches], 1) + model.tokens.pos_embed
    for block in model.blocks:
        theirs = nn.TransformerEncoderLayer(
            12, 3, 48, 0.0, "gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True, dtype=torch.float64
        )
        pairs = [(theirs.self_attn.out_proj, block.attn.proj), (theirs.linear1, block.mlp.fc1)]
        pairs += [(theirs.linear2, block.mlp.fc2), (theirs.norm1, block.norm1), (theirs.norm2, block.norm2)]
        for layer, own in pairs:
            layer.load_state_dict(own.state_dict())
        theirs.self_attn.in_proj_weight.data = block.attn.qkv.weight.data
        theirs.self_attn.in_proj_bias.data = block.attn.qkv.bias.data
        x = theirs(x)
    normal = nn.functional.layer_norm(x[:, 0], (12,), model.norm.weight, model.norm.bias, 1e-6)
    torch.testing.assert_close(model(images), normal @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize("name", ["ntk", "gradient_matching", "kkt"])
def test_attacks_run_and_come_nearer_to_the_update(name):
    observation, _ = trained(build(outputs=10))
    told = {"learning_rate": 0.1, "steps": 1, "labels": (0, 1)} if name == "gradient_matching" else {}
    known = Knowledge(num_private=2, pixel_mean=(0.5,), **told)
    options = {"total_variation": 0.0} if told else {}
    early, late = (
        get_attack(name, iterations=count, **options).run(observation, known, torch.Generator().manual_seed(0))
        for count in (1, 30)
    )
    assert late.images.shape[1:] == SHAPE and bool(late.images.isfinite().all())
    assert late.relative_residual < early.relative_residual


def test_span_recovers_the_image_of_a_client_that_has_one_and_nothing_of_two():
    for count in (1, 2):
        observation, images = trained(build(), count=count, steps=3)
        found = get_attack("span").run(observation, Knowledge(), torch.Generator().manual_seed(0))
        assert len(found.images) == (count == 1)
        assert not len(found.images) or float((found.images - images).abs().max()) < 1e-4


def test_its_linearization_is_exact_to_first_order():
    """One step, in which the gradients of both are the same."""
    plain, linearized = build(), build()
    trained(plain)
    trained(linearized, dynamics="linearized")
    for one, other in zip(plain.parameters(), linearized.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_of_single_images_can_be_taken():
    """DP-SGD without noise, and with a bound that nothing reaches, is SGD."""
    plain, private = build(precision="float32"), build(precision="float32")
    where = context(model=private, steps=2, epochs=None, batch_size=None)
    defense = make("dp_sgd", noise_multiplier=1e-9, max_grad_norm=100.0)
    defense.check(where)
    trained(plain, steps=2)
    trained(private, hooks=[ChainedDefense(defense, where)], steps=2)
    for one, other in zip(plain.parameters(), private.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shape": (1, 10, 8)}, "patches of 4x4 pixels, these have 10x8"),
        ({"heads": 5}, "model.width is 12, it has to be a multiple of model.heads = 5"),
        ({"input_scale": [1.0, 2.0]}, "model.input_scale has 2 numbers, the images have 1 channels"),
    ],
)
def test_what_does_not_fit_is_said(options, says):
    with pytest.raises(InputError, match=says):
        build(**options)


def test_other_patches_are_refused():
    with pytest.raises(ModelOptionError, match="patch"):
        build(patch=5)
