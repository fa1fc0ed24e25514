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

from attacks.base import Progress, Reconstruction, register, silent
from attacks.beliefs import check_device, choose_device
from attacks.dense import ACTIVATIONS, DenseNetwork, find_dense_network
from attacks.errors import InputError
from attacks.inference import ROUNDING, infer_pixel_mean
from attacks.observation import DEFENSE_FIELDS, Knowledge, Observation, State
from attacks.repair import decay_factor, without_decay
from attacks.span_behind import reconstruct_behind
from attacks.span_candidates import Candidates
from attacks.span_defended import Undefended, above_edge, undefended
from attacks.span_duals import DualSpace
from attacks.span_features import FeatureNetwork, find_feature_network
from attacks.span_fit import fit_images
from attacks.span_head import Head, find_head, reconstruct_from_head
from attacks.span_joint import explain
from attacks.span_search import AffineSpan, SpanProblem, SpanTest, descend, distinct
from attacks.spectrum import Spectrum

DRIFT = 4.0  # directions of the second layer's row space that an image takes while its features move
WIDEST = 0.4  # of the width: the most directions that ρ may use and still tell images apart
NOISY_DIRECTIONS = 2.0  # per image, at least, where noise hides the smaller ones
NARROWEST = 1.2  # directions per image below which ρ cannot hold
FULL_RANK = 0.1  # ‖Δ − Δ_N‖ / ‖Δ‖ of the first layer from which its row space is not that of N images
NOISY = 1e-3  # the same: from here on images are less exact
CLEAR = 1.5  # ratio of the N-th singular value to the next above which noise leaves no doubt about N
UNCLEAN = 1e-4  # the same: from here on weight decay is looked for
FITTED = (
    1.1  # of what N directions leave: the most that images and the zeros of their duals may leave (right ones: 1.03)
)
CAPPED = 0.8  # of the rank that pixels allow: from here on the rank is a lower bound on N
SHARED = 0.9  # of the images that all rounds show together: with fewer in every single one, clients changed
THIN = 0.5  # of the search's steps: most starts have come together by then
PEEL = 0.75  # of the images certified: from there on their complement is searched alone


@register
@dataclass(frozen=True)
class SpanAttack:
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
        for name in ("starts", "steps", "settle", "polish", "rounds", "learning_rate"):
            if getattr(self, name) <= 0:
                raise InputError(f"attack 'span': {name} is {getattr(self, name)}, it has to be positive")
        check_device("span", self.device)
        if self.joint_polish < 0:
            raise InputError(f"attack 'span': joint_polish is {self.joint_polish}, it must not be negative")

    def check(self, observation: Observation, knowledge: Knowledge) -> None:
        behind, head = _behind(observation)
        if head is not None:
            _network(head.observation)
        elif behind is None:
            _network(observation)
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
        if not len(found.images) and (naive := without_defense(knowledge)) != knowledge:
            # what is known may still not do: it costs nothing to try without
            other = self._found(observation, naive, generator, progress, device)
            found = other if len(other.images) else found
        if self.joint_polish and len(found.images):
            images, duals, residual = explain(observation, found.images, self.joint_polish, device)
            found = replace(found, images=images, duals=duals, relative_residual=residual)
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
            return reconstruct_from_head(self, head, observation.moved(), knowledge, generator, progress, device)
        if behind is not None:
            self.check(observation, knowledge)
            return reconstruct_behind(self, behind, observation, knowledge, generator, progress, device)
        network = _network(observation)
        observation, warnings, facts = _without_decay(observation.moved(), network, device)
        initial, final = ([_layers(pair[end], network, device) for pair in observation.pairs] for end in (0, 1))
        # the images span the rows of every round's first layer: one below the other, they are one matrix of that span
        first = torch.cat([layers[0] for layers in initial]), torch.cat([layers[0] for layers in final])
        second = torch.stack([after[1] - before[1] for before, after in zip(initial, final, strict=True)])
        if not (first[1] - first[0]).any() or not second.any():
            raise InputError("the update of one of the first two layers is zero: there is nothing to attack")
        known = undefended(observation, network, knowledge, first[1] - first[0], second, generator)
        if known is not None:
            first, second = (first[0], first[0] + known.first), known.second
            warnings, facts = warnings + known.warnings, facts | known.facts
        width = len(initial[0][0])
        spectrum = Spectrum.of(first[1] - first[0])
        inferred = spectrum.count()
        if len(initial) > 1:
            most = max(Spectrum.of(after[0] - before[0]).count() for before, after in zip(initial, final, strict=True))
            if most < SHARED * inferred:
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
        directions = int(min(DRIFT * count, WIDEST * width, second.shape[1]))
        outside = spectrum.outside(count)
        spectra, used = telling(second, count)
        if known is not None and known.rank is not None:
            directions = known.rank
        elif known is not None and known.noisy:
            clear = max(above_edge(spectra[r], known.deviations[1]) for r in used)
            directions = max(min(directions, clear), min(directions, int(NOISY_DIRECTIONS * count)))
        elif outside > NOISY:
            clear = max(spectra[r].above_noise() for r in used)
            directions = max(min(directions, clear), min(directions, int(NOISY_DIRECTIONS * count)))
        assessed, possible = _assess(spectrum, count, directions, width, outside, known)
        warnings += assessed
        facts |= {"k": float(directions), "used_num_private": float(count), "outside_span": outside}

        images = torch.zeros(0, first[0].shape[1] - 1)
        residual, unexplained = images[:, 0], float("nan")
        if possible:
            rows = torch.stack([spectra[r].vectors[:directions] for r in used]).float()
            hidden = torch.cat([initial[r][0] for r in used]).float()
            test = SpanTest(hidden, rows, ACTIVATIONS[network.activation])
            duals = DualSpace.of(*first, spectrum, count, len(second))
            candidates, rounds = self._rounds(duals, test, network.activation == "relu", generator, progress)
            found = candidates.accepted().float()
            facts |= {
                "tests": float(len(used)),
                "rounds": rounds,
                "threshold": candidates.threshold,
                "certified": float(len(candidates.exact)),
            }
            noise = max(spectra[r].median_noise() for r in used) if outside > NOISY else 0.0
            if known is not None and known.noisy:
                noise = min(noise, max(spectra[r].share(known.deviations[1]) for r in used))
            if known is not None and known.rank is not None:
                noise = known.remaining
            veto, unexplained = candidates.veto(second[used].float(), generator, noise)
            inexact = max(outside, 0.0 if known is None else known.distortion)
            hopeful = not veto or (known is not None and len(found) > 0)
            cells = None if known is None else known.cells
            certified = len(candidates.exact) >= (1 if cells is None else len(found))
            if hopeful and network.activation == "relu" and inexact > NOISY and not certified:
                fitted, left = fit_images(first[1] - first[0], first[0], found, count, cells)
                facts["fit"] = left
                if left < FITTED * inexact:
                    found = fitted.float()
                    if veto:  # what was too rough may explain the second layer once it fits the first
                        veto, unexplained = candidates.veto(second[used].float(), generator, noise, found)
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

    def _rounds(
        self, duals: DualSpace, test: SpanTest, certify: bool, generator: torch.Generator, progress: Progress
    ) -> tuple[Candidates, int]:
        """(the best found, rounds). Ends when all are certified or two rounds in a row brought nothing."""
        best = found = Candidates.empty(duals, test)
        idle = rounds = 0
        while rounds < self.rounds and idle < 2 and len(found.exact) < found.total:
            progress(rounds, self.rounds, found.threshold)
            found = found.merge(self._search(found, generator), certify, generator)
            idle = 0 if found.merit() > best.merit() else idle + 1
            best = max(best, found, key=Candidates.merit)
            rounds += 1
        progress(self.rounds, self.rounds, best.threshold)
        return best, rounds

    def _search(self, found: Candidates, generator: torch.Generator) -> Tensor:
        """Distinct minima of ρ, (M, in) in float64; once most images are certified, in the span of the others alone."""
        duals, test = found.duals, found.test
        peel = len(found.exact) >= PEEL * found.total
        span = AffineSpan.of(duals.remaining_rows(found.directions if peel else found.directions[:0]), generator)
        problem, size = SpanProblem.of(test, span), len(span.directions)
        if size == 0:
            return span.origin[None, :-1]
        rate, known = self.learning_rate, found.features(exact=not peel)
        points = torch.randn(self.starts, size, generator=generator) / size**0.5
        points = descend(problem, points.to(test.rows), self.steps, rate, 0.4 * rate, known, THIN)
        points = _distinct(problem, points)
        points = descend(problem, points, self.settle, 0.4 * rate, 0.1 * rate)
        points = _distinct(problem, points)
        return span.images(descend(problem, points, self.polish, 0.1 * rate).double())


def without_defense(knowledge: Knowledge) -> Knowledge:
    """The same for an attacker who was told nothing of the defense."""
    return replace(knowledge, **dict.fromkeys(DEFENSE_FIELDS))


def telling(updates: Tensor, count: int) -> tuple[dict[int, Spectrum], list[int]]:
    """(spectra, which rounds test candidates) of the second layer's updates (R, out, W + 1).

    An image that leaves no trace above the noise in a round fails its test, and features grow alike as the network fits
    them: only rounds of rank `count` are used, or, where none has it, those of the highest rank.
    """
    spectra = {r: Spectrum.of(update) for r, update in enumerate(updates) if update.any()}
    ranks = {r: found.count() for r, found in spectra.items()}
    enough = min(count, max(ranks.values()))
    return spectra, [r for r, rank in ranks.items() if rank >= enough]


def _distinct(problem: SpanProblem, points: Tensor) -> Tensor:
    points = points[problem.value_and_gradient(points)[0].argsort(stable=True)]
    return points[distinct(points)]


def _assess(
    spectrum: Spectrum, count: int, directions: int, width: int, outside: float, known: Undefended | None
) -> tuple[list[str], bool]:
    """(warnings, whether a search makes sense), from what the first layer's spectrum tells."""
    rank = min(spectrum.rows, spectrum.columns)
    explained = known is not None and (known.noisy or known.rank is not None)
    if known is not None and known.rank is not None:
        rank = min(known.first.shape)  # the completed update's own rank is the number of images
    if count < 1 or count >= rank or (outside > FULL_RANK and not explained):
        return [
            f"nothing returned: the first layer's update has rank {rank} and {outside:.2g} of its norm lies outside "
            f"{count} directions (at most {FULL_RANK:g}): it is not a sum over few images, as after SGD "
            "(local Adam, much added noise, entries left out, more images than units or pixels?)"
        ], False
    if directions < NARROWEST * count:
        return [
            f"nothing returned: {count} images need {NARROWEST * count:.0f} directions of the second layer's rows, "
            f"{directions} can tell ({WIDEST:g} of the width {width}, and no more than the layer's outputs)"
        ], False
    warnings = []
    if outside > NOISY:
        gap = float(spectrum.values[count - 1] / spectrum.values[count])
        gap = CLEAR if explained else gap
        warnings.append(
            f"{outside:.2g} of the first layer's update lies outside {count} directions: it is noisy"
            + (f", and a gap of {gap:.2g} between singular values makes {count} images a guess" if gap < CLEAR else "")
        )
    if count >= CAPPED * rank:
        warnings.append(f"{count} is near {rank}, the highest rank these pixels allow: a lower bound on the number")
    return warnings, True


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


def _network(observation: Observation) -> DenseNetwork:
    """The plain MLP under attack, or InputError with what is missing."""
    network = find_dense_network(observation.model, observation.input_shape)
    name = type(observation.model).__name__
    if network is None or len(network.weights) < 3:
        raise InputError(
            f"attack 'span' needs linear layers from the pixels on, two of them hidden, or hidden ones with biases "
            f"behind other layers: model {name!r} has neither (use 'ntk')"
        )
    needed = [*network.weights[:2], *(bias or "" for bias in network.biases[:2])]
    missing = [name for name in needed if name not in observation.trainable]
    if missing:
        raise InputError(
            f"attack 'span' needs the first two layers trained, with biases: model {name!r} lacks "
            f"{', '.join(name or 'a bias' for name in missing)} (use 'ntk')"
        )
    return network


def _layers(state: State, network: DenseNetwork, device: torch.device) -> tuple[Tensor, Tensor]:
    """[W | b] of the first two layers, (out, in + 1) each, float64."""
    first, second = (
        torch.cat([state[weight], state[bias or ""][:, None]], 1).to(device, torch.float64)
        for weight, bias in list(zip(network.weights, network.biases, strict=True))[:2]
    )
    return first, second


def _without_decay(
    observation: Observation, network: DenseNetwork, device: torch.device
) -> tuple[Observation, list[str], dict[str, float]]:
    """(the observation as without weight decay, warnings, facts); as it is where no first layer shows any."""
    pairs, factors = [], []
    for pair in observation.pairs:
        first, last = (_layers(state, network, device)[0] for state in pair)
        spectrum, factor = Spectrum.of(last - first), 1.0
        if spectrum.values[0] > 0 and spectrum.outside(spectrum.count()) > UNCLEAN:
            factor = decay_factor(first[:, :-1], last[:, :-1])
        own = replace(observation, pairs=(pair,))
        pairs.append((without_decay(own, factor) if factor < 1 else own).pairs[0])
        factors.append(factor)
    if min(factors) == 1:
        return observation, [], {}
    shrunk = f"weight decay was undone: parameters shrank by {1 - min(factors):.2g} in all, as the first layer shows"
    return replace(observation, pairs=tuple(pairs)), [shrunk], {"decay_factor": min(factors)}
