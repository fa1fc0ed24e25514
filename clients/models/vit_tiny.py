"""A small vision transformer (Dosovitskiy et al. 2021), its layers named as in timm's VisionTransformer but
for the class token and the positions, which stand in `tokens`.

Attention is written out: torch's fused kernels have no second derivative and no forward mode, which attacks need. Every
parameter stands in a module without others inside, which is where opacus takes gradients of single images.
"""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from attacks.interface.errors import InputError
from clients.config import Count, ModelOptions
from clients.models.input_scale import INPUT_SCALE, InputScale, InputScaleOption

EPSILON = 1e-6  # of LayerNorm, as timm has it
SPREAD = 0.02  # standard deviation of initial positions and of the class token
EXPANSION = 4  # hidden units of a block per unit of the embedding


class Attention(nn.Module):
    """Softmax attention of every token to all, in several heads."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, T, D) -> (N, T, D)."""
        queries, keys, values = self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        scores = queries @ keys.transpose(-2, -1) / queries.shape[-1] ** 0.5
        return self.proj((scores.softmax(-1) @ values).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int):
        super().__init__()
        self.fc1 = nn.Linear(width, EXPANSION * width)
        self.fc2 = nn.Linear(EXPANSION * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, T, D) -> (N, T, D)."""
        return self.fc2(F.gelu(self.fc1(tokens)))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, EPSILON)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, EPSILON)
        self.mlp = MLP(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, T, D) -> (N, T, D)."""
        tokens = tokens + self.attn(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class PatchEmbedding(nn.Module):
    """Every patch of the image, linearly mapped to one token."""

    def __init__(self, in_channels: int, width: int, patch: int):
        super().__init__()
        self.proj = nn.Conv2d(in_channels, width, patch, patch)

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, HW / patch², D)."""
        return self.proj(images).flatten(2).transpose(1, 2)


class Tokens(nn.Module):
    """A class token before the patches, and a learned position for each of them."""

    def __init__(self, patches: int, width: int):
        super().__init__()
        self.cls_token = nn.Parameter(SPREAD * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(SPREAD * torch.randn(1, patches + 1, width))

    def forward(self, patches: Tensor) -> Tensor:
        """(N, P, D) -> (N, P + 1, D)."""
        return torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], 1) + self.pos_embed


class ViTTiny(nn.Module):
    """Patches and a class token with learned positions, blocks, and a linear head on what the class token became."""

    def __init__(self, shape: tuple[int, int, int], outputs: int, options: "ViTTinyOptions"):
        """shape: (C, H, W) of an image, its sides multiples of the patch."""
        super().__init__()
        width, patch = options.width, options.patch
        self.scale = InputScale(options.input_scale, shape[0])
        self.patch_embed = PatchEmbedding(shape[0], width, patch)
        self.tokens = Tokens((shape[1] // patch) * (shape[2] // patch), width)
        self.blocks = nn.Sequential(*(Block(width, options.heads) for _ in range(options.depth)))
        self.norm = nn.LayerNorm(width, EPSILON)
        self.head = nn.Linear(width, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, outputs)."""
        tokens = self.tokens(self.patch_embed(self.scale(images)))
        return self.head(self.norm(self.blocks(tokens))[:, 0])


class ViTTinyOptions(ModelOptions):
    """A vision transformer of the dimensions of ViT-Tiny, for small images. Its LayerNorm needs no statistics."""

    patch: Literal[4, 8] = Field(4, description="pixels of a patch's side")
    width: Count = Field(192, description="entries of a token")
    depth: Annotated[int, Field(ge=1, le=1000)] = Field(12, description="blocks")
    heads: Count = Field(3, description="of attention; width is a multiple of it")
    input_scale: InputScaleOption = INPUT_SCALE

    def build(self, shape: tuple[int, int, int], outputs: int) -> ViTTiny:
        if shape[1] % self.patch or shape[2] % self.patch:
            raise InputError(
                f"model 'vit_tiny' cuts images into patches of {self.patch}x{self.patch} pixels, these have "
                f"{shape[1]}x{shape[2]}: choose model.patch 4 or 8, or another network"
            )
        if self.width % self.heads:
            raise InputError(f"model.width is {self.width}, it has to be a multiple of model.heads = {self.heads}")
        return ViTTiny(shape, outputs, self)
