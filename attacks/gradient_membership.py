"""Was this image among hundreds of private ones? The gradient that it would have sent is sought in the update.

SGD changes parameters by about the sum of the private images' gradients. One of hundreds is hardly seen in it: the
cosine of an image's gradient g with the update θ₀ − θ_f drowns in what all images share. Among updates without the
image it varies as gradients do, with their covariance Σ, so that the test with most power against a shift along g
(Neyman and Pearson) is that of the whitened gradient,

    s(x) = gᵀ Σ⁻¹ (θ₀ − θ_f) / (gᵀ Σ⁻¹ g)^½,    Σ = Aᵀ A / M + λ I,

A (M, d) the gradients of the images that are to be told apart, each less their mean. With K = A Aᵀ / M, Q = (K + λ I)⁻¹
and h the diagonal of Q K, and every image left out of the Σ that judges it (Sherman and Morrison),

    s_i = (Q A (θ₀ − θ_f))_i / (M h_i (1 − h_i))^½.

Images that are no members are judged as outsiders are, so that these calibrate a threshold (`attacks.calibration`).
Nothing of the training need be known. The scores of several rounds add up, each in units of its standard deviation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.interface.torch_tools import cast_state
from attacks.membership import MembershipTest
from attacks.networks.probing import evaluating, for_each, probe_generator, run_network, with_batch_statistics
from attacks.update.local_training import one_hot, soft_loss

MOST_IMAGES = 4000  # told apart at a time: K is solved for all of them
MOST_NUMBERS = 2**27  # of gradients in memory, half a gigabyte: of larger networks a random choice of the parameters
RIDGE = 0.01  # λ as a share of the mean eigenvalue of K; 0.001 does as well, 0.1 worse (docs/records/membership.md)


@dataclass(frozen=True)
class Membership:
    """How little of each image an update misses.

    residual: (Q,), lower for members: ρ of row spaces (`MembershipTest`), or exp(−s) of gradients.
    num_private: N as row spaces were read for it; None where gradients told.
    warnings: on N.
    """

    residual: Tensor
    num_private: int | None
    warnings: tuple[str, ...] = ()


def tell_members(
    observation: Observation, knowledge: Knowledge, images: Tensor, labels: Tensor | None = None
) -> Membership:
    """Compare images (Q, C, H, W) in the model's input space with an update: by its row spaces, or, where so many
    private images leave these no room or N is unknown, by the gradients that images of classes `labels` (Q,) send.

    Raises InputError where row spaces do not tell and there are no labels.
    """
    try:
        test = MembershipTest.of(observation, knowledge, images)
    except InputError as error:
        if labels is None:
            hint = "with the class of every image (`labels` beside `images` in npz files) its gradient would be asked"
            raise InputError(f"{error}; {hint}") from None
        return Membership(torch.exp(-gradient_scores(observation, images, labels)), None)
    return Membership(test.residual(images), test.num_private, test.warnings)


def gradient_scores(observation: Observation, images: Tensor, labels: Tensor) -> Tensor:
    """Compute the scores s (Q,), higher for members, of images (Q, C, H, W) in the model's input space.

    labels: (Q,), their classes, counted from 0. Raises InputError for more than `MOST_IMAGES` images, for a class that
    the network has no output for, and where no round moved anything.
    """
    if len(images) > MOST_IMAGES:
        raise InputError(f"member: {len(images)} images at a time, where {MOST_IMAGES} can be told apart: give fewer")
    observation = observation.without_zero_updates()
    observation = observation.with_own_model(observation.final[observation.trainable[0]].device)
    with evaluating(observation.model) as model:
        rounds = [_round_scores(observation, model, pair, images, labels) for pair in range(len(observation.pairs))]
    return torch.stack(rounds).mean(0)


def _round_scores(observation: Observation, model: nn.Module, pair: int, images: Tensor, labels: Tensor) -> Tensor:
    """Return the scores (Q,) of one round, in units of their standard deviation."""
    delta = observation.delta(pair)
    device = delta[observation.trainable[0]].device
    initial = cast_state(with_batch_statistics(model, *observation.pairs[pair]), device, torch.float32)
    images = images.to(device, torch.float32)
    with torch.no_grad():
        classes = max(2, run_network(model, initial, images[:1]).shape[1])
    if int(labels.max()) >= classes or int(labels.min()) < 0:
        told = f"{int(labels.min())} to {int(labels.max())}"
        raise InputError(f"member: labels are {told}, the network's classes 0 to {classes - 1}")
    update = -torch.cat([delta[name].flatten() for name in observation.trainable]).float()
    chosen = torch.arange(len(update))
    if len(update) * len(images) > MOST_NUMBERS:
        chosen = torch.randperm(len(update), generator=probe_generator())[: MOST_NUMBERS // len(images)].sort().values
    chosen = chosen.to(device)
    rows = _gradients(model, initial, observation.trainable, images, labels.to(device), chosen)
    rows -= rows.mean(0)
    gram, along = (rows @ rows.T / len(rows)).double(), (rows @ update[chosen]).double()
    if not gram.any():
        raise InputError(
            "member: a gradient is told by how it differs from those of other images: give several "
            "candidates, or images that are no members (--public), or num_private where it is known"
        )
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=device)
    inverse = torch.linalg.inv(gram + ridge)
    spared = (ridge.diagonal() * inverse.diagonal()).clamp(0, 1)  # 1 − h
    scores = inverse @ along / (len(rows) * (1 - spared) * spared).clamp_min(torch.finfo(torch.float64).tiny).sqrt()
    return scores / scores.std()


def _gradients(
    model: nn.Module, state: State, names: tuple[str, ...], images: Tensor, labels: Tensor, chosen: Tensor
) -> Tensor:
    """Return the chosen entries (Q, d) of the loss's gradient in the named parameters, for each image alone."""
    parameters = {name: state[name] for name in names}
    rest = {name: value for name, value in state.items() if name not in parameters}

    def gradient(one: State) -> State:
        def loss(moved: State) -> Tensor:
            outputs = run_network(model, rest | moved, one["image"][None])
            classes = one_hot(one["label"][None], outputs.shape[1]).to(outputs)
            return soft_loss("mse" if outputs.shape[1] == 1 else "cross_entropy", outputs, classes)

        found = torch.func.grad(loss)(parameters)
        return {"chosen": torch.cat([found[name].flatten()[part] for name, part in places.items()])}

    ends = torch.tensor([value.numel() for value in parameters.values()], device=chosen.device).cumsum(0)
    size, parts = int(ends[-1]), chosen.tensor_split(torch.searchsorted(chosen, ends[:-1]).cpu())
    starts = [0, *ends.tolist()]
    places = {name: part - start for name, part, start in zip(names, parts, starts, strict=False)}
    together = max(1, MOST_NUMBERS // 8 // size)
    found = []
    for part, classes in zip(images.split(together), labels.split(together), strict=True):
        found.append(for_each(gradient, {"image": part, "label": classes})["chosen"])
    return torch.cat(found)
