"""How many private images of each class a client holds, from the update of its last layer.

Under cross-entropy and mean squared error the gradient in the last bias is Σ_i (s_ik − y_ik) / N with the prediction s
(softmax, or the output itself) and the target y. A client's steps add these up, each with its weight w_t, so

    Δb_k = −η Σ_t w_t (s̄_k(t) − ȳ_k)    and    ȳ_k = s̄_k + Δb_k / (η Σ_t w_t).

What remains unknown is s̄_k, the mean prediction on the private images along the way. For one step it is that of the
initial parameters (Geng et al. 2021; Wainakh et al. 2022; for one image its sign is enough: Zhao et al. 2020, iDLG).
For many steps s̄ is interpolated between both checkpoints (Dimitrov et al. 2022), each predicting on public images where
there are any, else on noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attacks.gradient_matching.local_training import CODINGS, Loss, step_weights
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.networks.probing import linear_layers, watched
from attacks.update.private_set import Belief

PROBES = 256  # noise images that stand for private ones where there are no public images


@dataclass(frozen=True)
class LabelCounts:
    """counts: (K,) int64, of sum N (two classes where the network has one output). shares: (K,) before rounding, of sum
    1. confidence: 1 where N·shares are integers, 0 where some class is half an image from one."""

    counts: Tensor
    shares: Tensor
    confidence: float


def infer_label_counts(observation: Observation, knowledge: Knowledge) -> Tensor:
    """`estimate_label_counts` without its confidence: (K,) int64."""
    return estimate_label_counts(observation, knowledge).counts


def estimate_label_counts(
    observation: Observation, knowledge: Knowledge, loss: Loss | None = None, momentum: float = 0.0
) -> LabelCounts:
    """Label counts of the private set, from the first round whose update is not zero.

    Needs learning_rate and steps, and num_private where the update does not tell it; uses public_images where known.
    loss: default cross_entropy, for one output mse. momentum: of local training.
    Raises InputError where something is missing, or where the last layer is not a trained linear one.
    """
    knowledge.require("label inference", "learning_rate", "steps")
    count = Belief.of("label inference", observation, knowledge).num_private
    layer = find_output_layer(observation.model, observation.input_shape)
    if layer is None or not {f"{layer}.weight", f"{layer}.bias"} & set(observation.trainable):
        name = type(observation.model).__name__
        raise InputError(f"label inference needs a trained linear last layer: model {name!r} has none (give labels)")
    observation, _ = observation.one_round()
    initial, final = observation.pairs[0]
    probes = _probes(observation, knowledge)
    (first, features), (last, _) = (_run(observation.model, state, layer, probes) for state in (initial, final))
    delta = observation.delta()
    moved = delta.get(f"{layer}.bias")
    if moved is None:  # ΔW = −η Σ (s − y) hᵀ: along the mean feature it is Δb
        mean = features.mean(0)
        moved = delta[f"{layer}.weight"].cpu() @ mean / (mean @ mean)
    steps = knowledge.steps or 1
    loss = loss or ("mse" if first.shape[1] == 1 else "cross_entropy")
    weights = step_weights(steps, momentum)
    late = float((weights * torch.arange(steps) / steps).sum() / weights.sum())
    predicted = torch.lerp(predictions(loss, first), predictions(loss, last), late).mean(0)
    targets = predicted + moved.cpu() / (knowledge.learning_rate or 1.0) / weights.sum()
    low, high = CODINGS[len(targets) == 1] if loss == "mse" else (0.0, 1.0)
    shares = (targets - low) / (high - low)
    if len(shares) == 1:
        shares = torch.cat([1 - shares, shares])
    shares = project_to_simplex(shares)
    counts = round_to_sum(shares * count, count)
    return LabelCounts(counts, shares, float(1 - 2 * (shares * count - counts).abs().max().clamp_max(0.5)))


def predictions(loss: Loss, outputs: Tensor) -> Tensor:
    """What the loss compares with its target: (N, K) for outputs (N, K)."""
    if loss == "mse":
        return outputs
    return outputs.sigmoid() if outputs.shape[1] == 1 else outputs.softmax(1)


def project_to_simplex(shares: Tensor) -> Tensor:
    """The nearest point (K,) with entries ≥ 0 of sum 1 (Duchi et al. 2008, fig. 1)."""
    ordered = shares.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(shares) + 1)
    last = int((ordered > excess).nonzero().max())
    return (shares - excess[last]).clamp_min(0)


def round_to_sum(values: Tensor, total: int) -> Tensor:
    """Integers (K,) of sum `total` nearest to values ≥ 0 of that sum: the largest remainders are rounded up."""
    floor = values.floor()
    up = (values - floor).argsort(descending=True, stable=True)[: total - int(floor.sum())]
    floor[up] += 1
    return floor.long()


def find_output_layer(model: nn.Module, input_shape: tuple[int, int, int]) -> str | None:
    """The name of the linear layer whose output is the model's, found by watching; None where there is none."""
    found: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            found[name] = output

        return hook

    parameter = next(model.parameters())
    probe = torch.randn((2, *input_shape), generator=torch.Generator().manual_seed(0))
    with watched(linear_layers(model), watch), torch.no_grad():
        result = model.eval()(probe.to(parameter.device, parameter.dtype))
    return next((name for name, output in found.items() if torch.equal(output, result)), None)


def _probes(observation: Observation, knowledge: Knowledge) -> Tensor:
    """Images (P, C, H, W) that predictions on private images are guessed from."""
    if knowledge.public_images is not None:
        return knowledge.public_images.cpu().double()
    generator = torch.Generator().manual_seed(0)
    return 0.2 * torch.randn((PROBES, *observation.input_shape), generator=generator, dtype=torch.float64)


def _run(model: nn.Module, state: State, layer: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """(outputs (P, K), inputs of the last layer (P, D)) in float64 on the CPU."""
    features: list[Tensor] = []
    module = model.get_submodule(layer)
    handle = module.register_forward_hook(lambda module, inputs, output: features.append(inputs[0]))
    double = {k: v.cpu().double() if v.is_floating_point() else v.cpu() for k, v in state.items()}
    try:
        with torch.no_grad():
            outputs = torch.func.functional_call(model.eval(), double, (images,))
    finally:
        handle.remove()
    return outputs.reshape(len(images), -1), features[0]
