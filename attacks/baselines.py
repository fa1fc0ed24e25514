"""Baselines that see no private image, and that an attack has to rise above: report them beside it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.base import Attack, Progress, Reconstruction, register, silent
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.interface.torch_tools import cast_state
from attacks.networks.probing import evaluating, run_network
from attacks.update.private_set import infer_or_assume_pixel_mean
from attacks.update.spectrum import Spectrum, first_layer_update

SINGULAR = 1e-12  # of the largest eigenvalue: smaller ones count as 0, as one does where softmax outputs sum to 1


@register
@dataclass(frozen=True)
class MeanImage(Attack):
    """A baseline, no attack: the average of the public images, or plain grey where there are none.

    One image, the mean pixel everywhere without public images. residual: 1.
    """

    name: ClassVar[str] = "mean_image"

    def reconstruct(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Progress
    ) -> Reconstruction:
        if knowledge.public_images is not None:
            return Reconstruction(knowledge.public_images.float().mean(0, keepdim=True), torch.ones(1))
        image = torch.zeros((1, *observation.input_shape))  # the mean pixel, as normalized for the network
        mean, assumed = infer_or_assume_pixel_mean(observation, knowledge)
        return Reconstruction(image, torch.ones(1), pixel_mean=mean, warnings=tuple(assumed))


class PublicBaseline(Attack):
    """Base of the baselines that return public images, as many as there are private ones."""

    infers: ClassVar[tuple[str, ...]] = ("num_private",)

    def check_requirements(self, observation: Observation, knowledge: Knowledge) -> None:
        knowledge.require(self.name, "public_images")

    def chosen(self, knowledge: Knowledge, order: Tensor, residual: Tensor, *warnings: str) -> Reconstruction:
        """Return the first N public images of `order` (P,), with their `residual` (P,)."""
        public, count = _public(knowledge), knowledge.num_private or 1
        few = (f"{count} images wanted, {len(public)} are public",) if len(public) < count else ()
        return Reconstruction(public[order[:count]], residual[order[:count]], warnings=(*warnings, *few))


@register
@dataclass(frozen=True)
class RandomPublic(PublicBaseline):
    """A baseline, no attack: public images drawn at random, as many as there are private ones. residual: 1."""

    name: ClassVar[str] = "random_public"

    def reconstruct(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Progress
    ) -> Reconstruction:
        public = _public(knowledge)
        return self.chosen(knowledge, torch.randperm(len(public), generator=generator), torch.ones(len(public)))


@register
@dataclass(frozen=True)
class BestPublic(PublicBaseline):
    """A baseline, no attack: the public images that fit the update best, as many as there are private ones.

    residual: ρ(x) = 1 − ‖V[x; 1]‖² / ‖[x; 1]‖², V the N top right singular vectors of the update of the layer that sees
    the images; if no trained layer does, 1 − max_α cos²(Δθ, Σ_k α_k ∇f_k(θ₀; x)) over outputs k.
    """

    name: ClassVar[str] = "best_public"

    def reconstruct(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Progress
    ) -> Reconstruction:
        public, moved = _public(knowledge), observation.without_zero_updates()
        residual = first_layer_residual(moved, public, knowledge.num_private or 1)  # of all rounds
        if residual is not None:
            return self.chosen(knowledge, residual.argsort(stable=True), residual)
        one, ignored = observation.one_round()
        residual = gradient_residual(one, public, progress)
        return self.chosen(knowledge, residual.argsort(stable=True), residual, *ignored)


def first_layer_residual(observation: Observation, images: Tensor, rank: int) -> Tensor | None:
    """Return ρ (P,) of images (P, C, H, W) against `rank` directions of [ΔW | Δb]; None if no layer they feed moved."""
    layer = first_layer_update(observation)
    if layer is None:
        return None
    weight, bias = layer
    if not weight.any() and (bias is None or not bias.any()):
        return None
    points = images.double().flatten(1).to(weight.device)
    if bias is not None:
        weight = torch.cat([weight, bias[:, None]], 1)
        points = torch.cat([points, points.new_ones(len(points), 1)], 1)
    rows = Spectrum.of(weight).vectors[:rank]
    missed = points - points @ rows.T @ rows
    return (missed.square().sum(1) / points.square().sum(1).clamp_min(1e-30)).cpu()


def gradient_residual(observation: Observation, images: Tensor, progress: Progress = silent) -> Tensor:
    """Compute 1 − max_α cos²(Δθ, Σ_k α_k ∇f_k(θ₀; x)) of images (P, C, H, W), (P,) in float64: 0 for one step on x."""
    parameter = next(iter(observation.model.parameters()))
    delta = cast_state(observation.delta(), parameter.device, parameter.dtype)
    state = cast_state(observation.initial, parameter.device, parameter.dtype)
    trained = {name: state[name].detach() for name in delta}
    target = torch.cat([value.flatten() for value in delta.values()]).double()

    def outputs(parameters: State, image: Tensor) -> Tensor:
        with evaluating(observation.model):
            return run_network(observation.model, {**state, **parameters}, image[None]).reshape(-1)

    residuals = []
    for i, image in enumerate(images.to(parameter)):
        jacobian = torch.func.jacrev(outputs)(trained, image)
        rows = torch.cat([jacobian[name].flatten(1) for name in delta], 1).double()
        left, sizes, _ = torch.linalg.svd(rows @ rows.T)  # of low rank under softmax: Σ_k ∇f_k may vanish
        regular = sizes > SINGULAR * sizes[0]
        kept = left[:, regular] / sizes[regular].sqrt()
        explained = (kept.T @ (rows @ target)).square().sum() / target.square().sum()
        residuals.append(1 - explained.clamp(0, 1))
        progress(i + 1, len(images), float(residuals[-1]))
    return torch.stack(residuals).cpu()


def _public(knowledge: Knowledge) -> Tensor:
    """Return the public images (P, C, H, W), in float32 on the CPU; `check_requirements` saw to it."""
    assert knowledge.public_images is not None
    return knowledge.public_images.float().cpu()
