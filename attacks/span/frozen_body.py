"""The span attack on a trained head behind a frozen body, as where a pretrained network is only given a new head.

The body's features h(x) never move, so the head is a multilayer perceptron whose inputs are the features: they are
found exactly, and certified, as images are where linear layers start at the pixels (`attacks.span`). Each feature
vector is then inverted to pixels through the body, min ‖h(x) − h‖² / ‖h‖² from a smooth start (`attacks.span_pixels`).
That tells of an image what its features tell: a ResNet-18 has 512 of them for the 3,072 numbers of a small image.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attacks.interface.attack import Attack, Progress, Reconstruction
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.span.feature_space import PROBES, FeatureNetwork, first_input
from attacks.span.inversion import PixelTest

START = 0.01  # standard deviation of the pixels from which features are inverted
# steps, step size and weight of the roughness: first a smooth image with nearly those features, then exactly those
INVERSION = ((200, 0.05, 3.0), (100, 0.02, 0.01))


@dataclass(frozen=True)
class Head:
    """network: the whole one. observation: of the head alone, whose input shape is (D, 1, 1)."""

    network: FeatureNetwork
    observation: Observation


def find_head(observation: Observation, network: FeatureNetwork) -> Head | None:
    """The head of `network` where nothing else is trained and it is linear layers with ReLU between, else None.

    What is built is checked against the model on random inputs.
    """
    known = {f"{layer}.{part}": (i, part) for i, layer in enumerate(network.layers) for part in ("weight", "bias")}
    if not set(observation.trainable) <= set(known):
        return None
    initial = observation.initial
    layers: list[nn.Module] = []
    for layer in network.layers:
        out, into = initial[f"{layer}.weight"].shape
        layers += [nn.Linear(into, out, bias=f"{layer}.bias" in initial), nn.ReLU()]
    head = nn.Sequential(nn.Flatten(), *layers[:-1])
    for name, (i, part) in known.items():
        if name in initial:
            head.get_parameter(f"{2 * i + 1}.{part}").requires_grad_(name in observation.trainable)

    def of_head(state: State) -> State:
        return {f"{2 * i + 1}.{part}": state[name] for name, (i, part) in known.items() if name in state}

    probe = torch.randn((PROBES, *observation.input_shape), generator=torch.Generator().manual_seed(0))
    probe = probe.to(initial[f"{network.layers[0]}.weight"])
    with torch.no_grad():
        features = first_input(network.model, network.layers[0], initial, probe)
        expected = torch.func.functional_call(network.model, initial, (probe,))
        found = torch.func.functional_call(head, of_head(initial), (features,))
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=1e-4, atol=1e-5):
        return None
    pairs = tuple((of_head(first), of_head(last)) for first, last in observation.pairs)
    return Head(network, replace(observation, model=head, pairs=pairs, input_shape=(features.shape[1], 1, 1)))


def reconstruct_from_head(
    attack: Attack,
    head: Head,
    observation: Observation,
    knowledge: Knowledge,
    generator: torch.Generator,
    progress: Progress,
    device: torch.device,
) -> Reconstruction:
    """Features by `attack` on the head, then pixels. residual of the result is ‖h(x) − h‖² / ‖h‖²; facts say how many
    features are certified. Only num_private, pixel_mean and pixel_range are used, where known."""
    size = head.observation.input_shape[0]
    told = Knowledge(num_private=knowledge.num_private, pixel_mean=(0.0,) * size)  # features have no mean removed
    found = attack.reconstruct(head.observation, told, generator, progress)
    features = found.images.flatten(1).to(device)
    network = replace(head.network, model=head.network.model.to(device))
    state = {
        name: value.to(device, torch.float32 if value.is_floating_point() else value.dtype)
        for name, value in observation.initial.items()
    }
    mean = knowledge.pixel_mean or (0.5,) * observation.input_shape[0]
    warnings = list(found.warnings)
    if knowledge.pixel_mean is None:
        warnings.append("pixel_mean is unknown and no pixel tells it: 0.5 was assumed")
    images = START * torch.randn((len(features), *observation.input_shape), generator=generator).to(device)
    residual = images.new_zeros(0)
    if len(features):
        low, high = knowledge.pixel_range or (0.0, 1.0)
        channel = torch.tensor(mean, device=device).view(-1, 1, 1)
        pixels = PixelTest(network, state, features[:0], (low - channel, high - channel))
        for steps, rate, blur in INVERSION:
            images = pixels.invert(features, images, steps, rate, blur)
        residual = _missed(network, state, images, features)
        warnings.append(
            f"the body is frozen: {len(features)} feature vectors of {size} numbers were found, "
            f"{int(found.facts.get('certified', 0))} certified, and inverted; a pixel is known as far as they tell it"
        )
    order = residual.argsort(stable=True)
    return replace(
        found,
        images=images[order].cpu(),
        residual=residual[order].cpu(),
        pixel_mean=tuple(mean),
        warnings=tuple(warnings),
    )


def _missed(network: FeatureNetwork, state: State, images: Tensor, features: Tensor) -> Tensor:
    with torch.no_grad():
        return (network.features(state, images) - features).square().sum(1) / features.square().sum(1)
