"""Guesses that need no reconstruction: the floors that an attack has to rise above, as rows of their own.

None of them sees a private image. What they are good for is the difference to an attack in the same table.
"""

import time
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.interface.attack import Attack, Progress, Reconstruction, register, silent
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.update.first_layer import first_layer_update
from attacks.update.private_set import Belief, believed_mean, check_told
from attacks.update.spectrum import Spectrum


@register
@dataclass(frozen=True)
class MeanImage(Attack):
    """One image: the mean of the public images, or the mean pixel everywhere where there are none. residual: 1."""

    name: ClassVar[str] = "mean_image"

    def check(self, observation: Observation, knowledge: Knowledge) -> None:
        if knowledge.public_images is not None:
            _check_shape(self.name, observation, knowledge.public_images)

    def reconstruct(
        self,
        observation: Observation,
        knowledge: Knowledge,
        generator: torch.Generator,
        progress: Progress = silent,
    ) -> Reconstruction:
        start = time.perf_counter()
        self.check(observation, knowledge)
        mean, warnings = believed_mean(observation, knowledge)
        image = torch.zeros((1, *observation.input_shape))  # what is left of the mean pixel after its subtraction
        if knowledge.public_images is not None:
            image = knowledge.public_images.float().mean(0, keepdim=True).cpu()
        return Reconstruction(image, torch.ones(1), mean, warnings=warnings, seconds=time.perf_counter() - start)


@register
@dataclass(frozen=True)
class RandomPublic(Attack):
    """As many public images, drawn at random, as there are private ones. residual: 1."""

    name: ClassVar[str] = "random_public"

    def check(self, observation: Observation, knowledge: Knowledge) -> None:
        _check_public(self.name, observation, knowledge)

    def reconstruct(
        self,
        observation: Observation,
        knowledge: Knowledge,
        generator: torch.Generator,
        progress: Progress = silent,
    ) -> Reconstruction:
        start = time.perf_counter()
        public = _check_public(self.name, observation, knowledge)
        belief = Belief.of(self.name, observation, knowledge)
        chosen = torch.randperm(len(public), generator=generator)[: belief.num_private]
        return Reconstruction(
            images=public[chosen],
            residual=torch.ones(len(chosen)),
            pixel_mean=belief.pixel_mean,
            num_inferred=belief.num_inferred,
            warnings=(*belief.warnings, *_too_few(belief.num_private, public)),
            seconds=time.perf_counter() - start,
        )


@register
@dataclass(frozen=True)
class BestPublic(Attack):
    """As many public images as there are private ones: those that fit the update best.

    residual: where a trained layer sees the images, ρ(x) = 1 − ‖V[x; 1]‖² / ‖[x; 1]‖² with V the row space of its
    update, of rank N; elsewhere 1 − the largest squared cosine that Δθ has with a combination of the ∇f_k(θ₀; x).
    """

    name: ClassVar[str] = "best_public"

    def check(self, observation: Observation, knowledge: Knowledge) -> None:
        _check_public(self.name, observation, knowledge)

    def reconstruct(
        self,
        observation: Observation,
        knowledge: Knowledge,
        generator: torch.Generator,
        progress: Progress = silent,
    ) -> Reconstruction:
        start = time.perf_counter()
        public = _check_public(self.name, observation, knowledge)
        belief = Belief.of(self.name, observation, knowledge)
        one, ignored = observation.one_round()
        residual = first_layer_residual(observation.moved(), public, belief.num_private)  # of all rounds
        if residual is None:
            residual = gradient_residual(one, public, progress)
        else:
            ignored = ()
        chosen = residual.argsort(stable=True)[: belief.num_private]
        return Reconstruction(
            images=public[chosen],
            residual=residual[chosen].float(),
            pixel_mean=belief.pixel_mean,
            num_inferred=belief.num_inferred,
            warnings=(*belief.warnings, *ignored, *_too_few(belief.num_private, public)),
            seconds=time.perf_counter() - start,
        )


def first_layer_residual(observation: Observation, images: Tensor, rank: int) -> Tensor | None:
    """ρ of images (P, C, H, W) against the `rank` strongest directions of [ΔW | Δb], (P,) in float64; None where no
    trained layer sees the images, or where that layer did not move."""
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
    """1 − max_α cos²(Δθ, Σ_k α_k ∇f_k(θ₀; x)) of images (P, C, H, W), (P,) in float64: 0 for the image of a client that
    has one and takes one step, whatever its loss."""
    parameter = next(iter(observation.model.parameters()))
    delta = {name: value.to(parameter) for name, value in observation.delta().items()}
    state: State = {name: value.to(parameter.device) for name, value in observation.initial.items()}
    trained = {name: state[name].detach() for name in delta}
    target = torch.cat([value.flatten() for value in delta.values()]).double()
    model = observation.model.eval()

    def outputs(parameters: State, image: Tensor) -> Tensor:
        return torch.func.functional_call(model, {**state, **parameters}, (image[None],)).reshape(-1)

    residuals = []
    for i, image in enumerate(images.to(parameter)):
        jacobian = torch.func.jacrev(outputs)(trained, image)
        rows = torch.cat([jacobian[name].flatten(1) for name in delta], 1).double()
        left, sizes, _ = torch.linalg.svd(rows @ rows.T)  # of low rank under softmax: Σ_k ∇f_k may vanish
        kept = left[:, sizes > 1e-12 * sizes[0]] / sizes[sizes > 1e-12 * sizes[0]].sqrt()
        explained = (kept.T @ (rows @ target)).square().sum() / target.square().sum()
        residuals.append(1 - explained.clamp(0, 1))
        progress(i + 1, len(images), float(residuals[-1]))
    return torch.stack(residuals).cpu()


def _check_public(attack: str, observation: Observation, knowledge: Knowledge) -> Tensor:
    """The public images in float32, or InputError where there are none of the right shape, or N cannot be known."""
    knowledge.require(attack, "public_images")
    check_told(attack, observation, knowledge)
    assert knowledge.public_images is not None
    _check_shape(attack, observation, knowledge.public_images)
    return knowledge.public_images.float().cpu()


def _check_shape(attack: str, observation: Observation, images: Tensor) -> None:
    if images.ndim != 4 or tuple(images.shape[1:]) != observation.input_shape or not len(images):
        raise InputError(
            f"attack {attack!r}: knowledge public_images has shape {tuple(images.shape)}, "
            f"it has to be (any number, {', '.join(map(str, observation.input_shape))})"
        )


def _too_few(wanted: int, public: Tensor) -> tuple[str, ...]:
    return (f"{wanted} images wanted, {len(public)} are public",) if len(public) < wanted else ()
