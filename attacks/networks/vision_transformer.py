"""Find the patch embedding of a vision transformer of any class, and its learned positions, by running the network.

A layer is a patch embedding if it is fed each pixel exactly once, and nothing else. A parameter holds learned positions
if its gradient for one image has, in any order, the rows of the gradient at the output of the embedding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.interface.observation import State
from attacks.networks.probing import parameter_names, probe, probe_generator, random_images, run_network, watched

PERTURBATION = 0.02  # of the parameters of a probed network: a head of zeros would leave all gradients zero
SAME_ROW = 1e-3  # of a gradient: the distance of equal rows, which float32 adds up in different orders


@dataclass(frozen=True)
class PatchEmbedding:
    """The layer that embeds patches, and the positions that are added to its output.

    weight, bias: names of its parameters; the weight is (D, n) once flattened, n pixels in a patch.
    source: (P, n), index of each entry of a patch among the image's flattened pixels.
    scale, offset: (P, n), the layer is fed scale · pixel + offset.
    positions: name of the parameter that is added to the P tokens.
    rows: (P,), their rows in it, flattened to (…, D). Both are None if no positions are learned.
    """

    weight: str
    bias: str | None
    source: Tensor
    scale: Tensor
    offset: Tensor
    positions: str | None = None
    rows: Tensor | None = None

    def images(self, patches: Tensor, shape: tuple[int, int, int]) -> Tensor:
        """Return the images (M, C, H, W) of which the layer is fed `patches` (M, P, n)."""
        scale, offset = self.scale.to(patches), self.offset.to(patches)
        order = self.source.flatten().argsort().to(patches.device)
        return ((patches - offset) / scale).flatten(1)[:, order].reshape(-1, *shape)

    def patches(self, images: Tensor) -> Tensor:
        """Return what the layer is fed of images (M, C, H, W): (M, P, n)."""
        pixels = images.flatten(1)[:, self.source.to(images.device)]
        return self.scale.to(images) * pixels + self.offset.to(images)

    def embedded(self, state: State, images: Tensor) -> Tensor:
        """Return E x of the patches of images (M, C, H, W), without bias: (M, P, D)."""
        return self.patches(images) @ state[self.weight].flatten(1).T.to(images)


def find_patch_embedding(model: nn.Module, input_shape: tuple[int, int, int]) -> PatchEmbedding | None:
    """Find the first layer that is fed the pixels, patch by patch, and nothing else; None if there is none."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)}
    images = _placing_images(input_shape)
    fed: dict[str, list[Tensor]] = {}
    for name, given, _ in probe(model, images, layers)[1]:
        patches = _patches(layers[name], given)
        if patches is not None and patches.shape[0] == len(images) and patches[0].numel() == images[0].numel():
            fed.setdefault(name, []).append(patches.double().cpu())
    for name, calls in fed.items():
        if len(calls) == 1 and calls[0].shape[1] > 1 and (placed := _placed(calls[0], images)) is not None:
            weight, bias = parameter_names(name)
            own = bias if layers[name].bias is not None else None
            return PatchEmbedding(weight, own, *placed, *(_positions(model, name, images[-1:]) or ()))
    return None


def _placing_images(shape: tuple[int, int, int]) -> Tensor:
    """Return (4, C, H, W): zeros, ones, each pixel's index over the number of pixels, and noise to check with."""
    size = shape[0] * shape[1] * shape[2]
    ramp = (torch.arange(size) / size).reshape(shape)
    return torch.stack([torch.zeros(shape), torch.ones(shape), ramp, random_images(shape, 1)[0]])


def _patches(layer: nn.Module, given: Tensor) -> Tensor | None:
    """Return what a layer is fed at each position, (N, P, n); None if patches overlap or have no such shape."""
    if isinstance(layer, nn.Linear):
        return given if given.dim() == 3 else None
    assert isinstance(layer, nn.Conv2d)
    apart = layer.stride == layer.kernel_size and layer.groups == 1 and layer.padding in ((0, 0), "valid")
    if not apart or given.dim() != 4:
        return None
    return F.unfold(given, layer.kernel_size, layer.dilation, stride=layer.stride).transpose(1, 2)


def _placed(patches: Tensor, images: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return (source, scale, offset), (P, n) each, from patches (4, P, n) of `images`; None unless each entry is one
    pixel, scaled and shifted."""
    offset, scale = patches[0], patches[1] - patches[0]
    if not scale.all():
        return None
    size = offset.numel()
    source = ((patches[2] - offset) / scale * size).round().long()
    if not torch.equal(source.flatten().sort().values, torch.arange(size)):
        return None
    expected = scale * images[3].double().flatten()[source] + offset
    return (source, scale, offset) if torch.allclose(patches[3], expected, rtol=1e-4, atol=1e-4) else None


def _positions(model: nn.Module, layer: str, image: Tensor) -> tuple[str, Tensor] | None:
    """Return (name, rows (P,)) of the parameter whose gradient for one image has the rows of the gradient at the
    layer's output; None if there is none."""
    generator = probe_generator()
    state: State = {}
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            tensor = tensor.detach() + PERTURBATION * torch.randn(tensor.shape, generator=generator).to(tensor)
        state[name] = tensor
    own = {name: state[name].requires_grad_() for name, _ in model.named_parameters()}
    seen: list[Tensor] = []

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen.append(output)
        return output.clone()  # what follows may change it in place

    with torch.enable_grad(), watched({layer: model.get_submodule(layer)}, lambda name: hook):
        outputs = run_network(model, state, image.to(next(iter(own.values()))))
        weights = torch.randn(outputs.shape, generator=generator).to(outputs)
        wanted = [seen[0], *own.values()]
        signal, *slopes = torch.autograd.grad((weights * outputs).sum(), wanted, allow_unused=True)
    if signal is None:
        return None
    token = signal[0].flatten(1).T if signal.dim() == 4 else signal[0]
    for name, slope in zip(own, slopes, strict=True):
        if slope is None or slope.shape[-1:] != token.shape[-1:] or slope.numel() < token.numel():
            continue
        apart = torch.cdist(token.double(), slope.reshape(-1, token.shape[1]).double())
        nearest, rows = apart.min(1)
        if bool((nearest <= SAME_ROW * token.double().norm(dim=1)).all()) and len(rows.unique()) == len(rows):
            return name, rows.cpu()
    return None
