"""Several images of a client that trains a vision transformer for one step, and one behind fixed positions."""

import math
from dataclasses import replace

import pytest
import skimage.data
import torch
import torch.nn.functional as F
from torch import nn

from attacks import Knowledge, Observation, Reconstruction
from attacks.base import silent
from attacks.networks.token_layers import find_token_layers
from attacks.networks.vision_transformer import find_patch_embedding
from attacks.span.thresholds import TOKENS
from attacks.span.tokens import NONE, PlacedTokens
from attacks.span.variants.pixels import PixelVariant
from attacks.span.variants.several_patches import several_of
from tests.attacks.span.conftest import run
from tests.attacks.span.variants.test_patch_embedding import client

SIDE, PATCH, WIDTH = 32, 8, 96
SHAPE, PLACES = (3, SIDE, SIDE), (SIDE // PATCH) ** 2


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(0.02 * torch.randn(1, PLACES + 1, WIDTH))
        layers = (nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, F.gelu, 1e-5, True, True) for _ in range(2))
        self.blocks, self.head = nn.Sequential(*layers), nn.Linear(WIDTH, 10)

    def forward(self, x):
        tokens = self.embedding(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.positions
        return self.head(self.blocks(tokens)[:, 0])


def photographs(count):
    """Parts of a photograph of 256x256, in 32x32."""
    picture = torch.tensor(skimage.data.astronaut()).permute(2, 0, 1).float() / 255 - 0.5
    corners = ((0, 96), (256, 0), (256, 256))[:count]
    return torch.stack([F.avg_pool2d(picture[:, row : row + 256, column : column + 256], 8) for row, column in corners])


def observed(count, steps=1, frozen=(), weight_decay=0.0):
    model, private = Transformer(), photographs(count)
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    own = client(model, private, steps=steps, weight_decay=weight_decay)
    return Observation(own.model, own.pairs, SHAPE), private


def away(found, private):
    """Squared error (N,) of the nearest image, a pixel."""
    return (torch.cdist(private.flatten(1), found.images.flatten(1)).square() / private[0].numel()).amin(1)


def true_tokens(evidence, private):
    """What the first layer is fed, (N, T, D), and the images by the coordinates of their patches."""
    images = evidence.images
    return images.layers.run(images.state, private.double()).first, images.points(private.double())


@pytest.fixture(scope="module")
def two():
    observation, private = observed(2)
    embedding = find_patch_embedding(observation.model.eval(), SHAPE)
    with torch.no_grad():
        return several_of(observation, embedding).read(torch.Generator().manual_seed(0)), private


@pytest.mark.parametrize(("frozen", "decay"), [((), 0.0), (("positions",), 0.0), ((), 1e-2)])
def test_both_images_come_back_after_one_step_told_nothing(frozen, decay):
    observation, private = observed(2, frozen=frozen, weight_decay=decay)
    found = run(observation, Knowledge())
    assert len(found.images) == found.num_inferred == 2 and not len(found.held)
    assert bool((away(found, private) < 1e-5).all())


def test_patches_of_more_pixels_than_a_token_has_numbers_are_open_behind_a_frozen_embedding():
    observation, _ = observed(2, frozen=("embedding.weight", "embedding.bias"))
    found = run(observation, Knowledge())
    assert (
        not len(found.images) and found.num_inferred == 2 and "0 of them tell their places" in " ".join(found.warnings)
    )


def test_an_image_behind_fixed_positions_comes_back_after_one_step():
    observation, private = observed(1, frozen=("positions",))
    found = run(observation, Knowledge())
    assert len(found.images) == 1 and float(away(found, private)) < 1e-5


def test_several_steps_are_refused():
    found = run(observed(2, steps=4)[0], Knowledge())
    assert not len(found.images) and "not that of one step of SGD" in " ".join(found.warnings)


def test_what_lies_between_patches_and_the_two_layers_is_found_by_running_the_network():
    model = Transformer().eval()
    found = find_token_layers(model, SHAPE, find_patch_embedding(model, SHAPE))
    assert found.names == ("blocks.0.self_attn", "blocks.0.norm2", "blocks.0.linear1", "blocks.0.linear2")
    assert found.rows.tolist() == list(range(1, PLACES + 1)) and found.count == PLACES + 1
    assert found.projection == "blocks.0.self_attn.out_proj" and found.layers.activation == "gelu"


def test_a_token_tells_its_place_and_its_patch_and_another_vector_tells_none(two):
    evidence, private = two
    tokens, points = true_tokens(evidence, private)
    placed = evidence.images.placed(tokens.flatten(0, 1))
    assert placed.places.tolist() == 2 * list(range(PLACES + 1))
    found = evidence.images.space.points(placed.patches.unflatten(0, (2, -1))[:, 1:])
    assert float((found - points).norm() / points.norm()) < 1e-3
    mixtures = tokens[0] + tokens[1] + tokens[0].roll(1, 0)
    assert not len(evidence.images.placed(mixtures).places)


def test_tokens_are_grouped_by_what_attention_made_of_their_image(two):
    evidence, private = two
    tokens, _ = true_tokens(evidence, private)
    order = torch.randperm(2 * (PLACES + 1), generator=torch.Generator().manual_seed(0))
    placed = evidence.images.placed(tokens.flatten(0, 1)[order])
    groups = evidence.images.grouped(placed, 2, torch.Generator().manual_seed(0))
    of_images = order[groups] // (PLACES + 1)
    assert (groups != NONE).all() and bool((of_images == of_images[:, :1]).all())
    fewer = PlacedTokens(placed.tokens[3:], placed.places[3:], placed.patches[3:], placed.mixed[3:])
    assert int((evidence.images.grouped(fewer, 2, torch.Generator().manual_seed(0)) == NONE).sum()) == 3


def test_what_patches_share_with_positions_holds_the_private_ones(two):
    evidence, private = two
    space = evidence.images.space
    assert space.shape == (PLACES, PLACES)  # of 2 · 16 directions, 16 are known at each place
    patches = evidence.images.embedding.patches(private.double())
    assert float((space.patches(space.points(patches @ space.rows.T)) - patches).norm() / patches.norm()) < 1e-4


@pytest.mark.parametrize(("tokens", "returned", "held"), [(10, 2, 0), (2, 0, 2), (1, 0, 0)])  # the first is no patch's
def test_tokens_of_an_image_tell_the_patches_of_others_as_far_as_they_say(two, monkeypatch, tokens, returned, held):
    evidence, private = two
    observation = observed(2)[0]
    variant = several_of(observation, find_patch_embedding(observation.model.eval(), SHAPE))
    true, _ = true_tokens(evidence, private)
    found = Reconstruction(true[:, :tokens].flatten(0, 1)[:, None, None], torch.zeros(2 * tokens))
    monkeypatch.setattr(PixelVariant, "attack", lambda *given: found)
    generator = torch.Generator().manual_seed(0)
    candidates = variant.search(evidence, generator, silent)
    accepted = variant.accept(evidence, candidates, generator, silent)
    assert (len(accepted.images), len(accepted.held)) == (returned, held)
    assert accepted.facts["tokens"] == 2 * tokens
    assert not returned or bool((away(accepted, private) < 1e-7).all())


@pytest.mark.parametrize(("foreign", "whose"), [(0, 0), (1, 0), (10, 1)])
def test_tokens_of_another_image_are_left_out_if_they_are_few(two, foreign, whose):
    evidence, private = two
    images, (tokens, points) = evidence.images, true_tokens(evidence, private)
    placed = images.placed(tokens.flatten(0, 1))
    group = torch.arange(PLACES + 1)
    group[3 : 3 + foreign] += PLACES + 1
    found = images.likeliest(placed, group, torch.Generator().manual_seed(0))
    assert found.error < TOKENS.certain
    assert float((found.z - points[whose]).norm() / points[whose].norm()) < TOKENS.certain


def test_more_unknowns_than_are_solved_for_are_refused_before_the_search(two):
    """Nor where a step would take minutes, as of many small patches."""
    evidence, _ = two
    space = replace(evidence.images.space, base=torch.zeros(TOKENS.unknowns, 32))
    refusal = replace(evidence, images=replace(evidence.images, space=space)).refusal
    assert evidence.refusal is None
    assert f"leave {16 * TOKENS.unknowns} unknowns an image, and at most {TOKENS.unknowns}" in refusal.reason
    assert math.prod(evidence.images.space.shape) * evidence.images.numbers <= TOKENS.derivatives
    slow = replace(evidence.images.space, base=torch.zeros(64, 48), directions=torch.eye(48))
    of_small_patches = replace(evidence.images, space=slow, layers=replace(evidence.images.layers, count=130))
    refusal = replace(evidence, images=of_small_patches).refusal
    assert f"at most {TOKENS.derivatives // (130 * WIDTH)} are solved for" in refusal.reason


def test_crowded_tokens_are_grouped_first(two):
    """As where images are many: nothing is asked of what attention mixed, but how it differs between other images."""
    evidence, private = two
    tokens, points = true_tokens(evidence, private)
    crowded = replace(evidence.images, mixed=torch.eye(WIDTH, dtype=torch.float64))
    assert crowded.crowded and not evidence.images.crowded
    placed, groups = crowded.put_together(tokens.flatten(0, 1), 2, torch.Generator().manual_seed(0))
    assert placed.places[groups].tolist() == 2 * [list(range(PLACES + 1))]
    near = torch.cdist(crowded.of_groups(placed, groups).flatten(1), points.flatten(1)).amin(0)
    assert float(near.max()) < 0.5 * float(points.flatten(1).norm(dim=1).min())
