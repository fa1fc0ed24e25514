"""Vision transformers laid out as their libraries lay them out, and clients whose only image comes back exactly."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import InputError, Knowledge, Observation
from attacks.networks.vision_transformer import find_patch_embedding
from tests.attacks.span.conftest import run

SIDE, PATCH, WIDTH, COUNT = 16, 4, 64, 16
SHAPE = (3, SIDE, SIDE)


class Transformer(nn.Module):
    """Blocks and a head behind tokens; layouts differ in what makes the tokens."""

    def __init__(self, zero_head: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(
            *(nn.TransformerEncoderLayer(WIDTH, 4, 96, 0.0, F.gelu, 1e-5, True, True) for _ in range(2))
        )
        self.head = nn.Linear(WIDTH, 10)
        if zero_head:
            nn.init.zeros_(self.head.weight)

    def forward(self, x):
        return self.head(self.blocks(self.tokens(x))[:, 0])


class Timm(Transformer):
    """timm: a class token in front, both given positions."""

    def __init__(self):
        super().__init__()
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, WIDTH, PATCH, PATCH)})
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, COUNT + 1, WIDTH))

    def tokens(self, x):
        x = self.patch_embed["proj"](x).flatten(2).transpose(1, 2)
        return torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed


class Torchvision(Transformer):
    """torchvision: a head of zeros, in which no signal reaches the tokens before its first step."""

    def __init__(self):
        super().__init__(zero_head=True)
        self.conv_proj = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embedding = nn.Parameter(0.02 * torch.randn(1, COUNT + 1, WIDTH))

    def tokens(self, x):
        x = self.conv_proj(x).reshape(len(x), WIDTH, -1).permute(0, 2, 1)
        return torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.pos_embedding


class HuggingFace(Transformer):
    """DeiT in transformers: two tokens in front, positions an attribute of the embeddings."""

    def __init__(self):
        super().__init__()
        self.projection = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.first_tokens = nn.Parameter(torch.randn(1, 2, WIDTH))
        self.position_embeddings = nn.Parameter(0.02 * torch.randn(1, COUNT + 2, WIDTH))

    def tokens(self, x):
        x = self.projection(x).flatten(2).transpose(1, 2)
        return torch.cat([self.first_tokens.expand(len(x), -1, -1), x], 1) + self.position_embeddings


class Rearranged(Transformer):
    """vit-pytorch: patches cut with colours last, a linear layer, and pixels normalized inside the network."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3 * PATCH**2, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(COUNT, WIDTH))

    def tokens(self, x):
        x = ((x - 0.1) / 0.5).unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)  # (N, C, rows, columns, height, width)
        return self.embed(x.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)) + self.positions


class Fixed(Rearranged):
    """Positions that are not learned."""

    def __init__(self):
        super().__init__()
        fixed = self.positions.detach()
        del self.positions
        self.register_buffer("positions", fixed)


class Crowded(Transformer):
    """As many patches as a token has numbers."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Conv2d(3, WIDTH, 2, 2)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 64, WIDTH))

    def tokens(self, x):
        return self.proj(x).flatten(2).transpose(1, 2) + self.positions


def images(count, seed=0):
    return torch.rand((count, *SHAPE), generator=torch.Generator().manual_seed(seed)) - 0.5


def client(model, private, exempt=(), optimizer=torch.optim.SGD, steps=4, batch=None, **options):
    """Local training in float32; `exempt`: names whose parameters have no weight decay."""
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    free = {name for name, _ in model.named_parameters() if any(part in name for part in exempt)}
    groups = [
        {"params": [p for name, p in model.named_parameters() if (name in free) == spared and p.requires_grad]}
        | ({"weight_decay": 0.0} if spared else {})
        for spared in (False, True)
    ]
    step = optimizer(groups, **{"lr": 0.05, **options})
    model.eval()
    for _ in range(steps):
        for part in torch.arange(len(private)).split(batch or len(private)):
            step.zero_grad()
            F.cross_entropy(model(private[part]), part % 10).backward()
            step.step()
    final = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return Observation(model, ((sent, final),), SHAPE)


def psnr(found, private):
    return float(-10 * (found.images - private).square().mean().log10())


@pytest.mark.parametrize("network", [Timm, Torchvision, HuggingFace, Rearranged])
def test_the_image_of_a_client_of_one_comes_back_whatever_the_layout(network):
    private = images(1)
    found = run(client(network(), private, momentum=0.9, weight_decay=5e-4), Knowledge())
    assert len(found.images) == found.num_inferred == 1 and psnr(found, private) > 55
    assert found.warnings == () or "mean" in found.warnings[0]


@pytest.mark.parametrize("exempt", [("bias",), ("pos_embed",), ("bias", "pos_embed")])
def test_weight_decay_is_read_off_where_biases_or_positions_are_exempt(exempt):
    private = images(1)
    found = run(client(Timm(), private, exempt, momentum=0.9, weight_decay=5e-3), Knowledge())
    assert found.facts["decay"] > 1e-3 and psnr(found, private) > 35


def test_batches_of_one_image_are_as_one():
    private = images(1).expand(4, -1, -1, -1)
    observation = client(Timm(), private, batch=1, steps=1)
    assert psnr(run(observation, Knowledge()), private[:1]) > 50


@pytest.mark.parametrize("count", [2, 3, 8])
def test_several_images_are_counted_where_the_rank_shows_them_and_not_returned_after_several_steps(count):
    found = run(client(Timm(), images(count), weight_decay=5e-4), Knowledge())
    assert not len(found.images) and "not that of one step of SGD" in " ".join(found.warnings)
    assert found.num_inferred == (2 if count == 2 else None)  # 2 · 16 patches of 48 pixels; 48 and more fill them


def as_sent(observation, end):
    (sent, returned), model = observation.pairs[0], observation.model
    kept = {name: sent[name] if name.endswith(end) else value for name, value in returned.items()}
    return Observation(model, ((sent, kept),), SHAPE)


def test_layers_that_come_back_as_they_were_sent_are_not_taken_for_adam():
    """The image needs no bias; without what patches and tokens change, the last layer alone tells of it."""
    private, observation = images(1), client(Timm(), images(1), steps=1)
    assert psnr(run(as_sent(observation, "bias"), Knowledge()), private) > 55
    found = run(as_sent(observation, ("proj.weight", "linear1.weight")), Knowledge())
    assert not len(found.images) and found.num_features == 1
    assert "or returned as sent" in " ".join(found.warnings)


def test_adam_is_told_by_the_bias():
    found = run(client(Timm(), images(1), optimizer=torch.optim.Adam, lr=1e-3), Knowledge())
    assert not len(found.images) and "Adam" in " ".join(found.warnings)


class Altering(torch.optim.SGD):
    """Changes gradients of weights ahead of a step."""

    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad.dim() in (2, 4):
                    one.grad = self.altered(one.grad.flatten(1)).view_as(one)
        super().step()


class Centralizing(Altering):
    def altered(self, gradient):
        return gradient - gradient.mean(1, keepdim=True)


class Muon(Altering):
    """With the polar factor in the place of five steps towards it."""

    def altered(self, gradient):
        left, values, right = torch.linalg.svd(gradient, full_matrices=False)
        kept = values > 1e-4 * values[0]
        return left[:, kept] @ right[kept]


@pytest.mark.parametrize(
    ("optimizer", "said"), [(Centralizing, "updates add up to zero, as where gradients"), (Muon, "are alike, as Muon")]
)
def test_the_image_is_held_where_the_embedding_s_gradient_was_altered(optimizer, said):
    """The least squares leave nothing, and 1 to 100 times the pixels are off."""
    found = run(client(Timm(), images(1), optimizer=optimizer, lr=1e-3, steps=1), Knowledge())
    assert not len(found.images) and said in " ".join(found.warnings)
    assert found.relative_residual < 1e-3


def test_rows_of_positions_are_found_behind_what_stands_in_front():
    found = find_patch_embedding(HuggingFace().eval(), SHAPE)
    assert found.positions == "position_embeddings" and found.rows.tolist() == list(range(2, COUNT + 2))


def frozen(*names, network=Timm):
    model = network()
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


@pytest.mark.usefixtures("without_last_layer")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: frozen("blocks.0.linear1.weight", "patch_embed.proj.weight"), "has patch_embed.proj.weight frozen"),
        (lambda: frozen("blocks.0.linear1.weight", network=Fixed), "needs positions that are learned"),
        (Crowded, "has 64 of 64 numbers"),
    ],
)
def test_a_network_without_the_least_squares_is_refused_by_name(make, reason):
    with pytest.raises(InputError, match=reason):
        run(client(make(), images(1)), Knowledge())
