"""Read a body of convolutions, each followed by a ReLU and max pooling, by running it: `pooled_layers`.

Once the winner of each pooling window is known, the output of such a layer is linear in its input, and so is its update
after one step on a single image, ΔW = Σ_w δ_w (patch at the winner of w)ᵀ.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import one_hot

from attacks.interface.observation import State
from attacks.networks.probing import probe, random_images
from attacks.span.feature_space.network import FeatureNetwork


@dataclass(frozen=True)
class PooledLayer:
    """A convolution, a ReLU and max pooling over windows that do not overlap.

    name: of the convolution.
    weight: (O, T), T entries of a patch.
    bias: (O,).
    patches: (Q, T), indices into the flattened input of the patch at each output position; index D stands for the zero
        around the image.
    windows: (P, K), the output positions in each window.
    shape: (C, H, W) of the input.
    """

    name: str
    weight: Tensor
    bias: Tensor
    patches: Tensor
    windows: Tensor
    shape: tuple[int, ...]

    @property
    def inputs(self) -> int:
        """D = C · H · W."""
        return self.shape[0] * self.shape[1] * self.shape[2]

    def forward(self, inputs: Tensor, signals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (winner (M, O, P), pooled (M, O, P) before the ReLU, update (M, O, T)) for inputs (M, D).

        winner: its place in the window, 0 to K − 1. update: the change of the weights if `signals` (O, P) arrive at the
        outputs of the pooling.
        """
        patches = functional.pad(inputs, (0, 1))[:, self.patches]
        given = (patches @ self.weight.T + self.bias)[:, self.windows]
        pooled, winner = (part.mT for part in given.max(2))
        places = self.windows[torch.arange(len(self.windows), device=inputs.device), winner]
        spread = inputs.new_zeros(*winner.shape[:2], len(self.patches))
        spread.scatter_add_(2, places, signals.expand_as(pooled))
        return winner, pooled, spread @ patches

    def rows(self, shares: Tensor, signals: Tensor) -> tuple[Tensor, Tensor]:
        """Return the linear maps from the input to the outputs of the pooling, without bias, (O, P, D), and to the
        update, (O, T, D). shares: (O, P, K), the weight of each position in its window."""
        channels, count = shares.shape[:2]
        pooled = shares.new_zeros(channels, count, self.inputs + 1)
        places = self.patches[self.windows].flatten(1)
        values = (shares[..., None] * self.weight[:, None, None]).flatten(2)
        pooled.scatter_add_(2, places.expand(channels, -1, -1), values)
        spread = shares.new_zeros(channels, len(self.patches))
        spread.scatter_add_(1, self.windows.flatten().expand(channels, -1), (shares * signals[..., None]).flatten(1))
        update = shares.new_zeros(channels, self.patches.shape[1], self.inputs + 1)
        places = self.patches.T.expand(channels, -1, -1)
        update.scatter_add_(2, places, spread[:, None].expand_as(places).contiguous())
        return pooled[..., :-1], update[..., :-1]

    def back(self, inputs: Tensor, signals: Tensor) -> Tensor:
        """Return the signals (D,) at inputs (D,) if `signals` (O, P) arrive at the nonzero outputs of the pooling."""
        winner, pooled, _ = self.forward(inputs[None], signals)
        shares = one_hot(winner[0], self.windows.shape[1]).double() * (pooled[0] > 0)[..., None]
        return torch.einsum("op,opd->d", signals, self.rows(shares, signals)[0])


def pooled_layers(network: FeatureNetwork, state: State, shape: tuple[int, int, int]) -> list[PooledLayer] | None:
    """Return the layers from images (C, H, W) to the network's features, in order, in float64 on the CPU. None unless
    the body is a chain of such layers and of nothing else."""
    state = {name: value.cpu() for name, value in state.items()}
    convolutions = {name: m for name, m in network.model.named_modules() if isinstance(m, nn.Conv2d)}
    seen: list[tuple[str, Tensor, Tensor]] = []
    images = random_images(shape)
    features = network.features(state, images.to(state[f"{network.layers[0]}.weight"]))
    probe(network.model, images, convolutions, lambda *call: seen.append(call), state)
    names = [name for name, _, _ in seen]
    if not seen or len(set(names)) < len(names) or not torch.equal(seen[0][1], images.to(seen[0][1])):
        return None
    layers = []
    for (name, fed, given), after in zip(seen, [*(fed for _, fed, _ in seen[1:]), features], strict=True):
        module, side = convolutions[name], _window(given, after)
        plain = module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
        if side is None or not plain or module.bias is None:
            return None
        layers.append(_layer(name, module, state, fed.shape[1:], given.shape[2:], side))
    return layers


def _window(given: Tensor, after: Tensor) -> int | None:
    """Return the side of the pooling windows that make `after` of a ReLU of `given`, 1 without pooling; else None."""
    for side in range(1, min(given.shape[2:]) + 1):
        pooled = functional.max_pool2d(given.relu(), side)
        if pooled[0].numel() == after[0].numel() and torch.allclose(pooled.flatten(1), after.flatten(1), atol=1e-5):
            return side
    return None


def _layer(name: str, module: nn.Conv2d, state: State, shape: torch.Size, given: torch.Size, side: int) -> PooledLayer:
    weight, bias = (state[f"{name}.{part}"].double() for part in ("weight", "bias"))
    places = 1 + torch.arange(shape.numel(), dtype=torch.float64).reshape(1, *shape)
    assert not isinstance(module.padding, str)  # refused by `pooled_layers`
    patches = functional.unfold(places, module.kernel_size, module.dilation, module.padding, module.stride)
    patches = patches[0].T.long() - 1
    patches[patches < 0] = shape.numel()  # the zero around the image
    height, width = (length // side for length in given)
    positions = torch.arange(given.numel()).reshape(given)[: height * side, : width * side]
    windows = positions.reshape(height, side, width, side).permute(0, 2, 1, 3).reshape(height * width, side**2)
    return PooledLayer(name, weight.flatten(1), bias, patches, windows, tuple(shape))
