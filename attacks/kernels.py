"""Empirical neural tangent kernels and the distance between two of them."""

import torch
from torch import Tensor, nn

from attacks.dense import DenseNetwork, find_dense_network
from attacks.observation import Observation, State

CHUNK_BYTES = 256 * 2**20  # gradients held at once on the general path


def empirical_ntk(model: nn.Module, state: State, images: Tensor) -> Tensor:
    """Trace form of the empirical NTK: K(x, x') = Σ_k ⟨∇f_k(x), ∇f_k(x')⟩ over the trained parameters.

    state: parameters to take the gradients at, in the dtype to compute in. images: (N, C, H, W). Returns (N, N).
    """
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    channels, height, width = images.shape[1:]
    network = find_dense_network(model, (channels, height, width))
    with torch.no_grad():
        if network is not None:
            return _dense_ntk(network, state, images, trained)
    return _general_ntk(model, state, images, trained)


def kernel_distance(first: Tensor, second: Tensor) -> float:
    """1 − ⟨K₁, K₂⟩_F / (‖K₁‖_F ‖K₂‖_F): 0 for kernels equal up to scale (Loo et al. 2024, section 4)."""
    return float(1 - (first * second).sum() / (first.norm() * second.norm()))


def kernel_drift(observation: Observation, images: Tensor) -> float:
    """Kernel distance between the first and the last parameters of an observation on `images` (N, C, H, W), float64."""
    kernels = [
        empirical_ntk(observation.model.eval(), _double(state), images.double())
        for state in (observation.initial, observation.final)
    ]
    return kernel_distance(*kernels)


def _double(state: State) -> State:
    return {name: value.double() if value.is_floating_point() else value for name, value in state.items()}


def _dense_ntk(network: DenseNetwork, state: State, images: Tensor, trained: set[str]) -> Tensor:
    outputs = state[network.weights[-1]].shape[0]
    kernel = torch.zeros((len(images), len(images)), dtype=images.dtype)
    for k in range(outputs):
        duals = torch.zeros((len(images), outputs), dtype=images.dtype)
        duals[:, k] = 1
        factors = network.factors(state, images, duals)
        for weight, bias, (signal, inputs) in zip(network.weights, network.biases, factors, strict=True):
            gram = signal @ signal.T
            if weight in trained:
                kernel += gram * (inputs @ inputs.T)
            if bias in trained:
                kernel += gram
    return kernel


def _general_ntk(model: nn.Module, state: State, images: Tensor, trained: set[str]) -> Tensor:
    """One gradient per image and output, a chunk of rows at a time."""
    parameters = {name: state[name].detach() for name in sorted(trained)}
    rest = {name: value for name, value in state.items() if name not in trained}

    def output(parameters: State, image: Tensor, k: Tensor) -> Tensor:
        values = torch.func.functional_call(model, {**parameters, **rest}, (image[None],)).reshape(-1)
        return (values * torch.nn.functional.one_hot(k, len(values))).sum()

    gradients = torch.func.vmap(torch.func.grad(output), in_dims=(None, 0, None))

    def rows(batch: Tensor, k: int) -> Tensor:
        grads = gradients(parameters, batch, torch.tensor(k))
        return torch.cat([grads[name].flatten(1) for name in parameters], 1)

    with torch.no_grad():
        outputs = torch.func.functional_call(model, state, (images[:1],)).numel()
    size = sum(value.numel() for value in parameters.values()) * images.element_size()
    chunks = torch.arange(len(images)).split(max(1, CHUNK_BYTES // size))
    kernel = torch.zeros((len(images), len(images)), dtype=images.dtype)
    for k in range(outputs):
        for i, left in enumerate(chunks):
            block = rows(images[left], k)
            for right in chunks[i:]:
                other = block if right is left else rows(images[right], k)
                kernel[left[:, None], right] += block @ other.T
    upper = torch.triu(kernel)
    return upper + torch.triu(kernel, 1).T
