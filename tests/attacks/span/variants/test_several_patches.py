"""Several images of a client that trains a vision transformer for one step, and one behind fixed positions."""

from dataclasses import replace

import pytest
import skimage.data
import torch
import torch.nn.functional as F
from torch import nn

from attacks import Knowledge, Observation
from attacks.base import silent
from attacks.networks.vision_transformer import find_patch_embedding
from attacks.span.maps.inversion import PixelSpace
from attacks.span.maps.search import Aim, find_maps, rho
from attacks.span.thresholds import SEVERAL_PATCHES
from attacks.span.variants.patch_embedding import PatchVariant
from attacks.span.variants.several_patches import SeveralVariant, networks_of
from tests.attacks.span.conftest import run
from tests.attacks.span.variants.test_patch_embedding import client, psnr

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


def observed(count, steps=1, frozen=False):
    model, private = Transformer(), photographs(count)
    model.positions.requires_grad_(not frozen)
    own = client(model, private, steps=steps)
    return Observation(own.model, own.pairs, SHAPE), private


def variant_of(observation):
    embedding = find_patch_embedding(observation.model.eval(), SHAPE)
    signals = PatchVariant(observation, embedding).read(torch.Generator())
    return SeveralVariant(observation, embedding, networks_of(observation, embedding), signals)


@pytest.mark.slow
def test_both_images_come_back_after_one_step_told_nothing():
    observation, private = observed(2)
    found = run(observation, Knowledge())
    assert len(found.images) == found.num_inferred == 2 and not len(found.held)
    away = torch.cdist(private.flatten(1), found.images.flatten(1)).square() / private[0].numel()
    assert bool((away.amin(1) < 1e-5).all())


@pytest.mark.slow
def test_an_image_behind_fixed_positions_comes_back_after_one_step():
    observation, private = observed(1, frozen=True)
    found = run(observation, Knowledge())
    assert len(found.images) == 1 and psnr(found, private) > 50


def test_several_steps_are_refused():
    found = run(observed(2, steps=4)[0], Knowledge())
    assert not len(found.images) and "not that of one step of SGD" in " ".join(found.warnings)


def test_the_last_image_follows_from_the_others():
    """Without a search: two of three images are known, and labels and loss are not."""
    observation, private = observed(3)
    variant = variant_of(observation)
    evidence = variant.read(torch.Generator())
    last = variant._last(variant.signals, evidence.maps, private[[0, 2]])
    assert evidence.maps.count == 3 and -10 * (last - private[1:2]).square().mean().log10() > 40


def test_a_patch_of_another_image_is_too_much_and_is_drawn_again():
    observation, private = observed(2)
    variant = variant_of(observation)
    maps = variant.read(torch.Generator()).maps
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        decoys = PixelSpace(SHAPE, None).decoys(20, generator)
        found = find_maps(
            maps, decoys, generator, silent, Aim(SEVERAL_PATCHES.accepting_share, SEVERAL_PATCHES.most, rounds=0)
        )
        mixed = private[:1].clone()
        mixed[..., :PATCH, :PATCH] = private[1:, :, :PATCH, :PATCH]
        right, wrong = rho(maps, private.flatten(1)), rho(maps, mixed.flatten(1))
        assert float(right.abs().max()) < found.bound < float(wrong)
        found = replace(found, maps=mixed, residual=wrong)
        moved = (variant._starts(maps, found, generator) - mixed).abs().amax(1) > 0
    assert moved[:, :PATCH, :PATCH].all() and not moved[:, PATCH:, PATCH:].any()
