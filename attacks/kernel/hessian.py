"""The spectral norm of a model's Hessian, ‖∂²f_k(x)/∂θ²‖₂ for every image and output, by power iteration.

It is the model's Hessian, not the loss's: |f − f_lin| ≤ ½ sup ‖H‖₂ ‖Δθ‖₂² (Liu, Zhu, Belkin 2020). Autograd's leaves
out the kinks of ReLU and max pooling: judge those by the kernel.

The gradient of one output in W, of a linear layer z = Wa + b, is δaᵀ. Its derivative in any direction is δ̇aᵀ + δȧᵀ, so
the eigenvectors of H with non-zero eigenvalues have the form paᵀ + δqᵀ in that layer, and power iteration on (p, q) is
power iteration on H: exact, and without a vector of the size of the parameters for every image.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from attacks.interface.observation import State
from attacks.networks.jacobian import Jacobian
from attacks.networks.probing import evaluating, for_each, parameter_names, run_network, watched

CHUNK_BYTES = 256 * 2**20  # of vectors that the iteration works on at a time
COPIES = 12  # of such a vector that live in the graph of one Hessian-vector product

Perturbed = Callable[[State], Tensor]
"""f_k(x) at perturbed parameters, (B,), one entry for each pair of an image and an output, from (B, …) tensors."""


def hessian_norms(
    model: nn.Module,
    state: State,
    images: Tensor,
    generator: torch.Generator,
    iterations: int = 50,
    tolerance: float = 1e-3,
) -> Tensor:
    """Return ‖H‖₂ (N, K) of every image and output, in the trained parameters of `model` at `state`, in whose dtype and
    on whose device it is computed.

    images: (N, C, H, W). generator: on the CPU, draws the start. The norm is ‖Hv‖ / ‖v‖, since the spectrum of a ReLU
    network is symmetric about 0. It grows with every iteration, until by less than `tolerance` (relative).
    """
    with evaluating(model):
        problems = _problems(Jacobian(model, state), images)
        norms = [_power_iteration(*problem, generator, iterations, tolerance) for problem in problems]
    return torch.cat(norms).view(len(images), -1)


def _power_iteration(
    perturbed: Perturbed, zeros: State, generator: torch.Generator, iterations: int, tolerance: float
) -> Tensor:
    """Return ‖H‖₂ (B,) of every pair of an image and an output. zeros: perturbations (B, …) of no size."""
    names = list(zeros)
    with torch.enable_grad():
        at = {name: value.requires_grad_() for name, value in zeros.items()}
        outputs = perturbed(at)
        gradients = torch.autograd.grad(outputs.sum(), list(at.values()), create_graph=True, materialize_grads=True)
    curved = [i for i, gradient in enumerate(gradients) if gradient.requires_grad]
    if not curved:
        return outputs.new_zeros(len(outputs)).detach()

    def product(vector: State) -> State:
        """Return Hv, by a second pass backwards through the gradient: H is symmetric. The derivative of a number, gᵀv:
        for those of tensors PyTorch imports SymPy, half a second and 40 MB."""
        with torch.enable_grad():
            along = torch.stack([(gradients[i] * vector[names[i]]).sum() for i in curved]).sum()
        found = torch.autograd.grad(along, list(at.values()), retain_graph=True, materialize_grads=True)
        return dict(zip(names, found, strict=True))

    start = {k: torch.randn(v.shape, generator=generator, dtype=v.dtype).to(v.device) for k, v in zeros.items()}
    vector = product(start)  # inside the range of H from here on
    norms, last = _norms(vector), outputs.new_zeros(len(outputs)).detach()
    for _ in range(iterations):
        vector = product({name: _divide(value, norms) for name, value in vector.items()})
        norms = _norms(vector)
        if bool((norms - last <= tolerance * norms).all()):
            break
        last = norms
    return norms


def _norms(vector: State) -> Tensor:
    return torch.stack([value.flatten(1).square().sum(1) for value in vector.values()]).sum(0).sqrt()


def _divide(value: Tensor, norms: Tensor) -> Tensor:
    """Divide each vector by its norm; one of zeros stays."""
    return value / norms.clamp_min(torch.finfo(norms.dtype).tiny).view(-1, *[1] * (value.dim() - 1))


def _problems(jacobian: Jacobian, images: Tensor) -> Iterator[tuple[Perturbed, State]]:
    """Yield the pairs of images and outputs in chunks, images first: f as a function of perturbations, and zeros."""
    outputs, calls = jacobian.linear_calls(images[:1])
    ks = torch.arange(outputs, device=images.device)
    if is_factored(jacobian, calls):
        size = sum(call.inputs.shape[1] + 2 * call.signals.shape[2] for call in calls.values()) * outputs
        for batch in images.split(_chunk(size, images)):
            yield _factored(jacobian, batch, batch.repeat_interleave(outputs, 0), ks.repeat(len(batch))[:, None])
    else:
        size = sum(jacobian.state[name].numel() for name in jacobian.trained)
        repeated, chosen = images.repeat_interleave(outputs, 0), ks.repeat(len(images))[:, None]
        for pairs in torch.arange(len(repeated)).split(_chunk(size, images)):
            yield _explicit(jacobian, repeated[pairs], chosen[pairs])


def is_factored(jacobian: Jacobian, calls: Mapping[str, object]) -> bool:
    """Return whether every trained parameter belongs to one of the linear layers that are called once with a vector."""
    return {name for layer in calls for name in parameter_names(layer)} >= set(jacobian.trained)


def _chunk(size: int, images: Tensor) -> int:
    return max(1, CHUNK_BYTES // (COPIES * size * images.element_size()))


def _explicit(jacobian: Jacobian, images: Tensor, chosen: Tensor) -> tuple[Perturbed, State]:
    """Give every pair perturbed parameters of its own."""
    trained = {name: jacobian.state[name] for name in jacobian.trained}
    fixed = {name: value for name, value in jacobian.state.items() if name not in trained}

    def output(own: State) -> State:
        state = {**fixed, **{name: value + own[name] for name, value in trained.items()}}
        values = run_network(jacobian.model, state, own["/image"][None]).reshape(-1)
        return {"": values.gather(0, own["/k"])[0]}

    zeros = {name: value.new_zeros(len(images), *value.shape) for name, value in trained.items()}
    return lambda perturbation: for_each(output, {**perturbation, "/image": images, "/k": chosen})[""], zeros


def _factored(jacobian: Jacobian, batch: Tensor, images: Tensor, chosen: Tensor) -> tuple[Perturbed, State]:
    """Perturb weights by p âᵀ + δ̂ q⊥ᵀ, q⊥ = q − â(âᵀq), â and δ̂ of length 1: norms stay wherever q ⟂ â."""
    outputs, calls = jacobian.linear_calls(batch)
    zeros: State = {}
    hooks: dict[str, Callable[[State, Tensor, Tensor], Tensor]] = {}
    for name, call in calls.items():
        weight, bias = parameter_names(name)
        given = _unit(call.inputs.repeat_interleave(outputs, 0))
        signal = _unit(call.signals.flatten(0, 1))
        if weight in jacobian.trained:
            zeros[f"{name}/p"], zeros[f"{name}/q"] = torch.zeros_like(signal), torch.zeros_like(given)
        if bias in jacobian.trained:
            zeros[f"{name}/c"] = torch.zeros_like(signal)
        hooks[name] = _perturb(name, given, signal, call.scale)

    def perturbed(perturbation: State) -> Tensor:
        def bound(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
            return lambda layer, inputs, output: hooks[name](perturbation, inputs[0], output)

        with watched({name: jacobian.linear[name] for name in calls}, bound):
            values = run_network(jacobian.model, jacobian.state, images)
        return values.reshape(len(images), -1).gather(1, chosen)[:, 0]

    return perturbed, zeros


def _perturb(name: str, given: Tensor, signal: Tensor, scale: float) -> Callable[[State, Tensor, Tensor], Tensor]:
    """Return the output (B, S) of a layer under a perturbation of its weight and bias, by its input (B, I)."""

    def apply(perturbation: State, inputs: Tensor, output: Tensor) -> Tensor:
        if f"{name}/p" in perturbation:
            p, q = perturbation[f"{name}/p"], perturbation[f"{name}/q"]
            across = q - given * (given * q).sum(1, keepdim=True)
            along = p * (given * inputs).sum(1, keepdim=True) + signal * (across * inputs).sum(1, keepdim=True)
            output = output + scale * along
        if f"{name}/c" in perturbation:
            output = output + perturbation[f"{name}/c"]
        return output

    return apply


def _unit(vectors: Tensor) -> Tensor:
    """Scale vectors (B, D) to norm 1; zeros stay."""
    return _divide(vectors, vectors.norm(dim=1))
