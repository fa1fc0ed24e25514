"""How many private images of each class a client holds, from the update of its last layer.

Under cross-entropy and mean squared error the gradient in the last bias is Σ_i (s_ik − y_ik) / N with the prediction s
(softmax, or the output itself) and the target y. A client's steps add these up, each with its weight w_t, so

    Δb_k = −η Σ_t w_t (s̄_k(t) − ȳ_k)    and    ȳ_k = s̄_k + Δb_k / (η Σ_t w_t).

What remains unknown is s̄_k, the mean prediction on the private images along the way. For one step it is that of the
initial parameters (Geng et al. 2021; Wainakh et al. 2022), for many it is interpolated between both checkpoints
(Dimitrov et al. 2022), each predicting on public images where there are any, else on noise.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.interface.torch_tools import cast_state
from attacks.networks.probing import find_output_layer, most_exact_type, parameter_names, probe, random_images
from attacks.update.local_training import Coding, Loss, default_coding, step_weights
from attacks.update.spectrum import infer_image_count

NOISE_IMAGES = 256  # that stand for private ones where there are no public images
NOISE_STD = 0.2  # of their pixels, as in the images that the NTK attack starts from


@dataclass(frozen=True)
class LabelCounts:
    """What the last layer's update says of the classes.

    counts: (K,) int64, of sum N (two classes where the network has one output)
    shares: (K,) before rounding, of sum 1
    confidence: 1 where N·shares are integers, 0 where some class is half an image from one
    misfit: sum of the absolute differences by which shares had to be moved to be ≥ 0 and of sum 1; large where the
        training was of another kind
    prior: (K,) the shares that the network itself predicts, s̄, on the images that stand for private ones
    """

    counts: Tensor
    shares: Tensor
    confidence: float
    misfit: float
    prior: Tensor


def estimate_label_counts(
    observation: Observation,
    knowledge: Knowledge,
    loss: Loss | None = None,
    momentum: float = 0.0,
    coding: Coding | None = None,
) -> LabelCounts:
    """Label counts of the private set, from the first round whose update is not zero.

    Needs learning_rate and steps, and num_private where the update does not tell it; uses public_images where known.
    loss: default cross_entropy, for one output mse. momentum: of local training. coding: of mse, as of `soft_loss`.
    Raises InputError where something is missing, or where the last layer is not a trained linear one.
    """
    knowledge.require("label inference", "learning_rate", "steps")
    inferred = None if knowledge.num_private else infer_image_count(observation)
    if inferred is None:
        knowledge.require("label inference", "num_private", because="no trained layer sees the images")
    count = knowledge.num_private or max(1, inferred.count if inferred is not None else 0)
    layer = find_output_layer(observation.model, observation.input_shape)
    if layer is None or not {*parameter_names(layer)} & set(observation.trainable):
        name = type(observation.model).__name__
        raise InputError(f"label inference needs a trained linear last layer: model {name!r} has none (give labels)")
    observation, _ = observation.one_round()
    images = NOISE_STD * random_images(observation.input_shape, NOISE_IMAGES, torch.float64)
    if knowledge.public_images is not None:
        images = knowledge.public_images.cpu().double()
    (first, features), (last, _) = (_run(observation.model, state, layer, images) for state in observation.pairs[0])
    loss = loss or ("mse" if first.shape[1] == 1 else "cross_entropy")
    steps = knowledge.steps or 1
    weights = step_weights(steps, momentum)
    late = float((weights * torch.arange(steps) / steps).sum() / weights.sum())
    predicted = torch.lerp(predictions(loss, first), predictions(loss, last), late).mean(0)
    delta, (weight, bias), mean = observation.delta(), parameter_names(layer), features.mean(0)
    # without a bias, ΔW = −η Σ (s − y) hᵀ is Δb along the mean feature
    change = delta[bias].cpu() if bias in delta else delta[weight].cpu() @ mean / (mean @ mean)
    told = _shares(predicted + change / (knowledge.learning_rate or 1.0) / weights.sum(), loss, coding)
    shares = project_to_simplex(told)
    counts = round_to_sum(shares * count, count)
    confidence = float(1 - 2 * (shares * count - counts).abs().max().clamp_max(0.5))
    misfit = float((told - shares).abs().sum())
    return LabelCounts(counts, shares, confidence, misfit, _shares(predicted, loss, coding))


def _shares(targets: Tensor, loss: Loss, coding: Coding | None) -> Tensor:
    """Return the share of each class (two where there is one output) from mean targets (K,) as the loss codes, errors
    of the estimate included."""
    low, high = (coding or default_coding(len(targets))) if loss == "mse" else (0.0, 1.0)
    shares = (targets - low) / (high - low)
    return torch.cat([1 - shares, shares]) if len(shares) == 1 else shares


def predictions(loss: Loss, outputs: Tensor) -> Tensor:
    """Return what the loss compares with its target: (N, K) for outputs (N, K)."""
    if loss == "mse":
        return outputs
    return outputs.sigmoid() if outputs.shape[1] == 1 else outputs.softmax(1)


def project_to_simplex(shares: Tensor) -> Tensor:
    """Find the nearest point (K,) with entries ≥ 0 of sum 1 (Duchi et al. 2008, fig. 1)."""
    ordered = shares.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(shares) + 1)
    last = int((ordered > excess).nonzero().max())
    return (shares - excess[last]).clamp_min(0)


def round_to_sum(values: Tensor, total: int) -> Tensor:
    """Find integers (K,) of sum `total` nearest to values ≥ 0 of that sum: largest remainders are rounded up."""
    floor = values.floor()
    up = (values - floor).argsort(descending=True, stable=True)[: total - int(floor.sum())]
    floor[up] += 1
    return floor.long()


def _run(model: nn.Module, state: State, layer: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return (outputs (P, K), inputs of the last layer (P, D)) in float64 on the CPU."""
    layers, dtype = {layer: model.get_submodule(layer)}, most_exact_type(model, images)
    there = cast_state(state, torch.device("cpu"), dtype)
    outputs, calls = probe(model, images.to(dtype), layers, there)
    return outputs.reshape(len(images), -1).double(), calls[0].given.double()
