"""Exact reconstruction of a client's images from the row spaces of its update.

The first layer's row space is the span of the private images and tells their number; the second layer's holds their
features and tells them from others (`attacks.span_search`); the zeros of their duals make them exact and certify them
(`attacks.span_duals`). The training of the client is never simulated: learning rate, steps, batches, labels and loss
need not be known. Needs SGD, with or without momentum; weight decay is undone first (`attacks.repair`), and where noise
hides the zeros the images come from least squares (`attacks.span_fit`).
"""

import time
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from attacks.interface.attack import Attack, Progress, Reconstruction, register, silent
from attacks.interface.devices import choose_device
from attacks.interface.knowledge import DEFENSE_FIELDS, Knowledge
from attacks.interface.observation import Observation
from attacks.interface.options import check_values
from attacks.networks.mlp import ACTIVATIONS
from attacks.span.candidates import Candidates
from attacks.span.duals import DualSpace
from attacks.span.feature_space import FeatureNetwork, find_feature_network
from attacks.span.features import reconstruct_behind
from attacks.span.frozen_body import Head, find_head, reconstruct_from_head
from attacks.span.joint_polish import explain
from attacks.span.known_defense import Undefended, tells, undefended
from attacks.span.layers import NOISY, FirstLayers, assess, plain_network, second_noise, telling, test_directions
from attacks.span.least_squares import fit_images
from attacks.span.search import SpanTest, distinct
from attacks.span.search_loop import find_images
from attacks.update.pixel_mean import infer_pixel_mean
from attacks.update.spectrum import ROUNDING, Spectrum

FITTED = 1.1  # of what N directions leave: the most that images and the zeros of their duals may leave (right: 1.03)
SHARED = 0.9  # of the images that all rounds show together: with fewer in every single one, clients changed


@register
@dataclass(frozen=True)
class SpanAttack(Attack):
    """Find the points of the first layer's span whose features lie in the second layer's row space.

    Several pairs of one client are taken together: the span of all first-layer updates, and the second layer's test in
    every round (`span_search`). Where no round shows most of the images that all show together, as in the global
    checkpoints of a federation whose clients take turns, each round is attacked alone.

    starts: random points per round. steps: of Adam from each, with what is found deflated. settle: further ones on the
    plain ρ. polish: the last ones, at a tenth of the step size. rounds: at most. learning_rate: of Adam, in the
    coordinates of `AffineSpan`. joint_polish: steps on images and duals together, with the reconstruction loss of the
    NTK attack, which also yields the duals (0: none). device: auto, cpu or cuda.
    """

    name: ClassVar[str] = "span"

    starts: int = 300
    steps: int = 200
    settle: int = 100
    polish: int = 100
    rounds: int = 12
    learning_rate: float = 0.05
    joint_polish: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        numbers = ("starts", "steps", "settle", "polish", "rounds", "learning_rate")
        check_values(self, positive=numbers, not_negative=("joint_polish",))

    def check_requirements(self, observation: Observation, knowledge: Knowledge) -> None:
        behind, head = _behind(observation)
        if head is not None:
            plain_network(head.observation)
        elif behind is None:
            plain_network(observation)
        else:
            knowledge.require("span", "num_private", because="the spectrum of features has no gap at their number")

    def reconstruct(
        self,
        observation: Observation,
        knowledge: Knowledge,
        generator: torch.Generator,
        progress: Progress = silent,
    ) -> Reconstruction:
        """Run the attack. num_private and pixel_mean are used where known, else inferred.

        residual of the result is ρ at the initial parameters. Raises InputError for networks without the two linear
        layers it needs; an update that is not of their form gives no images, and a warning with what was measured.
        """
        start = time.perf_counter()
        device = choose_device(self.device)
        found = self._found(observation, knowledge, generator, progress, device)
        if not len(found.images) and tells(observation, knowledge):
            # what is known may still not do, where the update as it was sent does
            other = self._found(observation, without_defense(knowledge), generator, progress, device)
            found = other if len(other.images) else found
        if self.joint_polish and len(found.images):
            one, ignored = observation.one_round()
            images, duals, residual = explain(one, found.images, self.joint_polish, device)
            warnings = (*found.warnings, *(f"joint_polish: {said}" for said in ignored))
            found = replace(found, images=images, duals=duals, relative_residual=residual, warnings=warnings)
        return replace(found, seconds=time.perf_counter() - start)

    def _found(
        self,
        observation: Observation,
        knowledge: Knowledge,
        generator: torch.Generator,
        progress: Progress,
        device: torch.device,
    ) -> Reconstruction:
        behind, head = _behind(observation)
        if head is not None:
            return reconstruct_from_head(
                self, head, observation.without_zero_updates(), knowledge, generator, progress, device
            )
        if behind is not None:
            self.check_requirements(observation, knowledge)
            return reconstruct_behind(self, behind, observation, knowledge, generator, progress, device)
        network = plain_network(observation)
        layers = FirstLayers.of(observation, network, device)
        known = undefended(observation, network, knowledge, layers.change, layers.second, generator)
        layers = layers if known is None else layers.without_defense(known)
        warnings, facts = list(layers.warnings), dict(layers.facts)
        spectrum = Spectrum.of(layers.change)
        inferred = spectrum.count()
        if layers.rounds > 1 and (most := layers.most_images()) < SHARED * inferred:
            return self._apart(observation, knowledge, generator, progress, inferred, most)
        count = knowledge.num_private or inferred
        if known is not None and known.count is not None:
            inferred = count = known.count
        if inferred < count < len(spectrum.values) and spectrum.values[count - 1] < ROUNDING * spectrum.values[0]:
            warnings.append(
                f"{count} images were expected, the first layer's update has {inferred} directions above rounding: "
                "so many were looked for (images seen twice, or more than the pixels can tell apart)"
            )
            count = inferred
        outside = spectrum.relative_residual(count)
        spectra, used = telling(layers.second, count)
        second = [spectra[r] for r in used]
        directions = test_directions(layers, second, count, outside, known)
        assessed, possible = assess(spectrum, count, directions, layers.width, outside, known)
        warnings += assessed
        facts |= {"k": float(directions), "used_num_private": float(count), "outside_span": outside}

        images = torch.zeros(0, layers.initial.shape[1] - 1)
        residual, unexplained = images[:, 0], float("nan")
        if possible:
            rows = torch.stack([part.vectors[:directions] for part in second]).float()
            hidden = torch.cat([layers.by_round(layers.initial)[r] for r in used]).float()
            test = SpanTest(hidden, rows, ACTIVATIONS[network.activation])
            duals = DualSpace.of(layers.initial, layers.final, spectrum, count, layers.rounds)
            nothing = Candidates.empty(duals, test, certifies=network.activation == "relu")
            candidates, rounds = find_images(nothing, self, generator, progress)
            facts |= {
                "tests": float(len(used)),
                "rounds": rounds,
                "threshold": candidates.threshold,
                "certified": float(len(candidates.exact)),
            }
            noise = second_noise(second, outside, known)
            found, veto, unexplained, fit = _accepted(candidates, layers, used, count, outside, noise, known, generator)
            facts |= fit
            if veto:
                warnings.append(veto)
            else:
                residual = test.residual(found)
                order = residual.argsort(stable=True)
                images, residual = found[order].cpu(), residual[order].cpu()
        mean = knowledge.pixel_mean or infer_pixel_mean(observation)
        if mean is None:
            mean = (0.5,) * observation.input_shape[0]
            warnings.append("pixel_mean is unknown and no pixel is constant: 0.5 was assumed")
        return Reconstruction(
            images=images.reshape(-1, *observation.input_shape),
            residual=residual,
            pixel_mean=tuple(mean),
            num_inferred=inferred,
            relative_residual=unexplained,
            warnings=tuple(warnings),
            facts=facts,
        )

    def _apart(
        self,
        observation: Observation,
        knowledge: Knowledge,
        generator: torch.Generator,
        progress: Progress,
        inferred: int,
        most: int,
    ) -> Reconstruction:
        """Rounds of different clients, each attacked alone, and the union of what they gave."""
        start = time.perf_counter()
        alone = replace(knowledge, num_private=None)  # what is known is the number of the union
        parts = [
            self.reconstruct(replace(observation, pairs=(pair,)), alone, generator, progress)
            for pair in observation.pairs
        ]
        images, residual = torch.cat([part.images for part in parts]), torch.cat([part.residual for part in parts])
        order = residual.argsort(stable=True)
        order = order[distinct(images[order].flatten(1))]
        said = [f"round {i + 1}: {warning}" for i, part in enumerate(parts) for warning in part.warnings]
        return Reconstruction(
            images=images[order],
            residual=residual[order],
            pixel_mean=parts[0].pixel_mean,
            num_inferred=inferred,
            relative_residual=max(part.relative_residual for part in parts),
            warnings=(
                f"the rounds do not share one private set ({inferred} images together, at most {most} in a round): "
                "each was attacked alone",
                *said,
            ),
            seconds=time.perf_counter() - start,
            facts={"used_num_private": float(inferred)},
        )


def _accepted(
    candidates: Candidates,
    layers: FirstLayers,
    used: list[int],
    count: int,
    outside: float,
    noise: float,
    known: Undefended | None,
    generator: torch.Generator,
) -> tuple[Tensor, str, float, dict[str, float]]:
    """(images (M, in), why none may be returned or "", what they leave unexplained of the second layer, facts).

    Where noise hides the zeros of the duals, images come from least squares on the first layer. noise: of the second.
    """
    found, second = candidates.accepted().float(), layers.second[used].float()
    veto, unexplained = candidates.veto(second, generator, noise)
    cells = None if known is None else known.cells
    inexact = max(outside, 0.0 if known is None else known.distortion)
    hopeful = not veto or (known is not None and len(found) > 0)
    certified = len(candidates.exact) >= (1 if cells is None else len(found))
    if not (hopeful and candidates.certifies and inexact > NOISY) or certified:
        return found, veto, unexplained, {}
    fitted, left = fit_images(layers.change, layers.initial, found, count, cells)
    if left < FITTED * inexact:
        found = fitted.float()
        if veto:  # what was too rough may explain the second layer once it fits the first
            veto, unexplained = candidates.veto(second, generator, noise, found)
    return found, veto, unexplained, {"fit": left}


def without_defense(knowledge: Knowledge) -> Knowledge:
    """The same for an attacker who was told nothing of the defense."""
    return replace(knowledge, **dict.fromkeys(DEFENSE_FIELDS))


def _behind(observation: Observation) -> tuple[FeatureNetwork | None, Head | None]:
    """(fully connected layers behind others, the first two trained with biases, or None; they themselves where nothing
    else is trained)."""
    network = find_feature_network(observation.model, observation.input_shape)
    if network is None or len(network.layers) < 2:
        return None, None
    needed = [f"{layer}.{part}" for layer in network.layers[:2] for part in ("weight", "bias")]
    if not all(name in observation.trainable for name in needed):
        return None, None
    return network, find_head(observation, network) if len(network.layers) > 2 else None
