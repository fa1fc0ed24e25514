"""The span attack on networks whose fully connected layers lie behind convolutions, or behind anything else.

Feature vectors are found in the span of the first fully connected layer's update (`attacks.span_features`), inverted to
pixels and made exact there (`attacks.span_pixels`). A candidate is accepted where the update's row space holds its
features and its column space the gradient it must have sent (`attacks.span_steps`): two independent equations, of which
only the first was ever minimized, so that wrong candidates are told even when all are wrong. Where the update's rank
shows single steps, images first used at a later step are sought at the parameters of that step.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attacks.interface.attack import Progress, Reconstruction
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.span.feature_search import FEATURE_SPANS, Bounds, Found, Search, apart, search_of
from attacks.span.feature_space import FeatureNetwork
from attacks.span.search import outside
from attacks.span.search_loop import Options
from attacks.span.sgd_steps import after_step
from attacks.update.pixel_mean import infer_background
from attacks.update.spectrum import Spectrum

FEW_FEATURES = 0.25  # of the pixels: LeNet-5 tells 28x28 images by a third, ResNet-18 fails with a twelfth


def unexplained(update: Tensor, points: Tensor) -> float:
    """‖Δ − Δ P‖ / ‖Δ‖ of an update (W, D + 1), P the projection on the points (F, D + 1): least squares over duals."""
    basis = torch.linalg.qr(points.double().T)[0].T
    return float(outside(update, basis).norm() / update.norm())


@dataclass
class Rounds:
    """The attack's course: which images are found, at which parameters, and what the last bounds were."""

    search: Search
    states: list[State]
    found: Found
    bounds: Bounds
    tried: int = 0
    best: Bounds = field(default_factory=lambda: Bounds(float("inf"), float("inf")))

    def run(self, rounds: int, generator: torch.Generator, progress: Progress) -> None:
        """Rounds at the initial parameters, and, where single steps can be told, at those after every step.

        A step without any image of its own means that the one before is not complete: it is searched again. Ends when
        all images are found, or three rounds in a row brought nothing.
        """
        idle = step = 0
        for done in range(rounds):
            progress(done, rounds, self.bounds.gradient)
            new = self._round(step, idle, generator)
            idle = 0 if new else idle + 1
            if len(self.found) >= self.search.count or idle == len(FEATURE_SPANS):
                break
            if new and self.search.factors.exact:
                here = self.found.at(self.found.step == step)
                state = after_step(self.search.network, self.states[step], self.search.trained, here.images, here.duals)
                self.states[step + 1 :] = [state]
                step += 1
            elif step and not (self.found.step == step).any():
                step -= 1
        progress(rounds, rounds, self.bounds.gradient)

    def points(self) -> Tensor:
        """[h; 1] of all images found, (F, D + 1), each at the parameters of its step."""
        with torch.no_grad():
            parts = [
                self.search.pixels(state).points(self.found.images[self.found.step == step])
                for step, state in enumerate(self.states)
            ]
        return torch.cat(parts)

    def _round(self, step: int, idle: int, generator: torch.Generator) -> bool:
        """Whether a round at the parameters before a step finds images; they are added."""
        search, state, found = self.search, self.states[step], self.found
        images = search.candidates(state, found.images, idle, generator)
        images = images[apart(images.flatten(1), found.images.flatten(1))]
        together = torch.cat([found.images, images])
        if len(images) == 0 or len(together) < 3:
            return False
        self.bounds = search.bounds(state, together, generator)
        judged = search.judge(state, images, step)
        self.tried += len(images)
        self.best = Bounds(
            min(self.best.residual, float(judged.residual.min())), min(self.best.gradient, float(judged.gradient.min()))
        )
        kept = (judged.residual < self.bounds.residual) & (judged.gradient < self.bounds.gradient)
        missing = search.count - len(found)
        new = search.finish(state, judged.at(kept.nonzero()[:, 0][:missing]))
        self.found = found.join(new)
        return len(new) > 0


def _placed(value: Tensor, device: torch.device) -> Tensor:
    """On the device, in float32; kernels in the memory format in which convolutions are fastest."""
    value = value.to(device, torch.float32 if value.is_floating_point() else value.dtype)
    return value.to(memory_format=torch.channels_last) if value.dim() == 4 else value


def reconstruct_behind(
    attack: Options,
    network: FeatureNetwork,
    observation: Observation,
    knowledge: Knowledge,
    generator: torch.Generator,
    progress: Progress,
    device: torch.device,
) -> Reconstruction:
    """`SpanAttack.reconstruct` on a network with fully connected layers behind others, in the first round whose update
    is not zero. num_private is needed.

    residual of the result is λ (`attacks.span_steps`).
    """
    observation, ignored = observation.one_round()
    search, spectrum = search_of(
        network, observation, knowledge, device, attack.starts, attack.steps + attack.settle, attack.learning_rate
    )
    network.model.to(device)
    initial = {name: _placed(value, device) for name, value in observation.initial.items()}
    rounds = Rounds(search, [initial], search.none(initial), Bounds(float("nan"), float("nan")))
    warnings, possible = assess(search, spectrum)
    warnings += ignored
    if possible:
        rounds.run(attack.rounds, generator, progress)
        if not len(rounds.found):
            warnings.append(
                f"nothing returned: of {rounds.tried} candidates the best has ρ {rounds.best.residual:.2g} and λ "
                f"{rounds.best.gradient:.2g}; impostors demand less than {rounds.bounds.residual:.2g} and "
                f"{rounds.bounds.gradient:.2g} of one image"
            )
        elif len(rounds.found) < search.count:
            warnings.append(
                f"{len(rounds.found)} of {search.count} images found: the others pass neither test or one only"
            )
    found = rounds.found
    order = found.gradient.argsort(stable=True)
    images, residual = found.images[order].cpu(), found.gradient[order].float().cpu()
    mean = knowledge.pixel_mean or (infer_background(images) if len(images) else None)
    if mean is None:
        mean = (0.5,) * observation.input_shape[0]
        warnings.append("pixel_mean is unknown and the images found have no background: 0.5 was assumed")
    factors = search.factors
    explained = rounds.points() if len(images) else search.rows[:0]
    facts = {
        "used_num_private": float(search.count),
        "rank": float(len(search.rows)),
        "steps": float(len(rounds.states)),
        "threshold": rounds.bounds.residual,
        "gradient_threshold": rounds.bounds.gradient,
    }
    return Reconstruction(
        images=images,
        residual=residual,
        pixel_mean=tuple(mean),
        relative_residual=unexplained(factors.left * factors.values @ factors.rows, explained),
        warnings=tuple(warnings),
        facts=facts,
    )


def assess(search: Search, spectrum: Spectrum) -> tuple[list[str], bool]:
    """(warnings, whether a search makes sense), from what the spectra tell."""
    rank = len(search.rows)
    # as many directions as images are enough where features did not move: in one step, or behind frozen layers
    if rank < search.count or (rank == search.count and not search.factors.exact):
        return [
            f"nothing returned: the update of {search.network.layers[0]!r} has rank {rank} above its "
            f"noise, {search.count} images need more (local Adam, added noise, more images than units?)"
        ], False
    warnings = []
    features, pixels = search.rows.shape[1] - 1, math.prod(search.shape)
    if features < FEW_FEATURES * pixels:
        warnings.append(
            f"{features} features stand for {pixels} pixels: other images have them too, and may be returned instead"
        )
    if search.test is None:
        warnings.append(
            "no second fully connected layer, with more outputs than there are images, tells features apart: "
            "images are sought from noise"
        )
    return warnings, True
