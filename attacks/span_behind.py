"""The span attack on networks whose fully connected layers lie behind convolutions, or behind anything else.

Feature vectors are found in the span of the first fully connected layer's update (`attacks.span_features`), inverted to
pixels and made exact there (`attacks.span_pixels`). A candidate is accepted where the update's row space holds its
features and its column space the gradient it must have sent (`attacks.span_steps`): two independent equations, of which
only the first was ever minimized, so that wrong candidates are told even when all are wrong. Where the update's rank
shows single steps, images first used at a later step are sought at the parameters of that step.
"""

from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attacks.base import Progress, Reconstruction
from attacks.errors import InputError
from attacks.inference import rank_above_noise
from attacks.observation import Knowledge, Observation, State
from attacks.span_features import FeatureNetwork, FeatureProblem, layer_of
from attacks.span_pixels import PixelTest
from attacks.span_rounds import Options
from attacks.span_search import SEPARATION, AffineSpan, SpanProblem, SpanTest, descend, distinct, outside
from attacks.span_steps import UpdateFactors, after_step, output_jacobian
from attacks.spectrum import Spectrum

FEATURE_SPANS = (2.0, 3.0, 4.0)  # directions per image of the first layer's rows in which features are sought: at
# first, and after one and two rounds that brought nothing
SUB_ROUNDS = 3  # searches in feature space per round in pixels
DRIFT = 4.0  # directions per image of the second layer's rows against which they are tested
WIDEST = 0.4  # of the second layer's inputs: the most such directions
NARROWEST = 1.2  # directions per image below which a row space cannot tell
LAST_RANK = 0.9  # of the first layer's live units: the highest rank at which images are polished
GRADIENT_RANK = 0.6  # the same for λ, whose equations are the other units
FIRST_RANK = 4.0  # the rank per image at which polishing starts
SURE = 10.0  # times the lowest tenth of ρ in feature space: such candidates deflate
SPARE, SPARE_LEAST = 1.5, 4  # feature vectors that are inverted: per missing image, and besides
START = 0.1  # standard deviation of the pixels from which features are inverted
INVERSION = (100, 0.1)  # steps and step size
POLISH = ((150, 0.03), (200, 0.01))  # the same at the first and the last rank
NOISE_RANK, NOISE_SEARCH = 1.5, (300, 0.05)  # rank per image, steps and step size of a search from noise
FINISH = (250, 0.005)  # the same for accepted images, at the last rank
HOPELESS = 30.0  # times the lower quartile of ρ after the first rank: such candidates are dropped
IMPOSTORS, LOWEST = 100, 0.01  # means of two candidates; the quantile of their residuals below which one is accepted
SURER = 0.5  # of that quantile of λ
WITHIN, AT, BELOW = 0.03, 0.3, 0.1  # of a background: half width, least share of pixels, most share below it
ROUNDING = 1.5  # times the largest singular value that noise of the level of the smallest ones can have


def resolved(spectrum: Spectrum) -> tuple[int, bool]:
    """(rank above the noise, whether a gap shows it): with a gap, the update is a sum of so many summands exactly."""
    found = rank_above_noise(spectrum.values, spectrum.rows, spectrum.columns)
    if found.clear:
        return found.count, True
    rows, columns = spectrum.rows**0.5, spectrum.columns**0.5
    # noise alone has singular values between |√columns − √rows| and √columns + √rows times its deviation
    smallest = spectrum.values[int(0.95 * len(spectrum.values)) :].median()
    noise = ROUNDING * smallest * (columns + rows) / max(abs(columns - rows), 1.0)
    return int((spectrum.values > noise).sum()), False


@dataclass(frozen=True)
class Found:
    """images: (F, C, H, W). duals: (F, K), those of the step that first used them. residual, gradient: (F,), ρ and λ.
    step: (F,), which step."""

    images: Tensor
    duals: Tensor
    residual: Tensor
    gradient: Tensor
    step: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def at(self, kept: Tensor) -> "Found":
        return Found(*(part[kept] for part in self._parts()))

    def join(self, other: "Found") -> "Found":
        return Found(*(torch.cat(parts) for parts in zip(self._parts(), other._parts(), strict=True)))

    def _parts(self) -> tuple[Tensor, ...]:
        return self.images, self.duals, self.residual, self.gradient, self.step


@dataclass(frozen=True)
class Bounds:
    """Below which ρ and λ a candidate is accepted."""

    residual: float
    gradient: float


@dataclass(frozen=True)
class Search:
    """One attacked update.

    factors: U S Vᵀ of the first fully connected layer's, cut to the rank for λ. rows: (R, D + 1), its right singular
    vectors up to the rank for ρ, float32. test: (k, W + 1), the second one's, or None where there is none.
    trained: names of trained parameters. count: N. pixel_range: (low, high), (C, 1, 1) each, in the input space of the
    model, where known. starts, steps: of the search in feature space.
    """

    network: FeatureNetwork
    factors: UpdateFactors
    rows: Tensor
    test: Tensor | None
    trained: tuple[str, ...]
    count: int
    shape: tuple[int, int, int]
    pixel_range: tuple[Tensor, Tensor] | None
    starts: int
    steps: int
    learning_rate: float

    def none(self, state: State) -> Found:
        """No image."""
        images = self.rows.new_zeros(0, *self.shape)
        with torch.no_grad():
            outputs = torch.func.functional_call(self.network.model, state, (self.rows.new_zeros(1, *self.shape),))
        nothing = images.reshape(0)
        return Found(images, images.new_zeros(0, outputs.numel()).double(), nothing, nothing.double(), nothing.long())

    def candidates(self, state: State, found: Tensor, idle: int, generator: torch.Generator) -> Tensor:
        """Distinct polished images (M, C, H, W), lowest ρ at `state` first; those found (F, C, H, W) are deflated.

        idle: how many rounds in a row brought nothing.
        """
        missing, pixels = self.count - len(found), self.pixels(state)
        number = int(SPARE * missing) + SPARE_LEAST
        features = None if self.test is None else self._features(state, found, missing, idle, generator)[:number]
        noise = torch.randn((number if features is None else len(features), *self.shape), generator=generator)
        images = START * noise.to(self.rows.device)
        if features is None:
            with torch.no_grad():
                known = torch.linalg.qr(pixels.points(found).T)[0].T if len(found) else None
            images = pixels.polish(images, int(NOISE_RANK * self.count), *NOISE_SEARCH, known)
        else:
            images = pixels.invert(features, images, *INVERSION)
        for rank, (steps, rate) in zip(self._ranks(), POLISH, strict=True):
            images = pixels.polish(images, rank, steps, rate)
            residual, order = pixels.residual(images, rank).sort(stable=True)
            if not len(residual):
                break
            order = order[residual <= HOPELESS * residual[len(residual) // 4]]
            images = images[order][distinct(images[order].flatten(1))]
        return images

    def finish(self, state: State, found: Found) -> Found:
        """Accepted images, polished once more at the parameters at which they were found."""
        if not len(found):
            return found
        images = self.pixels(state).polish(found.images, len(self.rows), *FINISH)
        return self.judge(state, images, int(found.step[0]))

    def judge(self, state: State, images: Tensor, step: int) -> Found:
        """The images with their duals, ρ and λ at the parameters `state`, before the given step."""
        pixels = self.pixels(state)
        jacobian = output_jacobian(self.network, state, images)
        with torch.no_grad():
            points, residual = pixels.points(images), pixels.residual(images, len(self.rows))
        duals, gradient = self.factors.duals(jacobian, points)
        return Found(images, duals, residual, gradient, torch.full_like(residual, step, dtype=torch.long))

    def bounds(self, state: State, images: Tensor, generator: torch.Generator) -> Bounds:
        """From impostors, the means of two of the images: private ones are no such means, wrong ones no better."""
        pairs = torch.randint(len(images), (2, IMPOSTORS), generator=generator)
        first, second = pairs[:, pairs[0] != pairs[1]].to(images.device)
        impostors = self.judge(state, (images[first] + images[second]) / 2, 0)
        return Bounds(float(impostors.residual.quantile(LOWEST)), SURER * float(impostors.gradient.quantile(LOWEST)))

    def pixels(self, state: State) -> PixelTest:
        return PixelTest(self.network, state, self.rows, self.pixel_range)

    def _ranks(self) -> tuple[int, int]:
        """The ladder: at which rank candidates are polished first, and last."""
        return min(int(FIRST_RANK * self.count), len(self.rows)), len(self.rows)

    def _features(self, state: State, found: Tensor, missing: int, idle: int, generator: torch.Generator) -> Tensor:
        """Feature vectors (M, D) in the first layer's span with low ρ of the second, best first."""
        device, rate = self.rows.device, self.learning_rate
        first = layer_of(state, self.network.layers[0], device)
        assert self.test is not None and self.network.activation is not None
        test = SpanTest(first.float(), self.test[None], self.network.activation)
        with torch.no_grad():
            known = self.network.features(state, found) if len(found) else first[:0, :-1].float()
        pool, deflated = known[:0], known
        for _ in range(SUB_ROUNDS):
            span = AffineSpan.of(self.factors.rows[: int(FEATURE_SPANS[idle] * self.count)], generator)
            problem = FeatureProblem.of(SpanProblem.of(test, span), span, self.network.nonnegative)
            basis = torch.linalg.qr(test.features(deflated).T)[0].T.contiguous() if len(deflated) else None
            size = len(span.directions)
            points = (torch.randn(self.starts, size, generator=generator) / size**0.5).to(device)
            points = descend(problem, points, 3 * self.steps // 5, rate, 0.4 * rate, basis)
            points = descend(problem, points, 2 * self.steps // 5, 0.4 * rate)
            pool = torch.cat([pool, span.images(points.double()).float()])
            value = test.residual(pool) + pool.clamp_max(0).square().sum(1) / pool.square().sum(1)
            order = value.argsort(stable=True)
            kept = order[distinct(normalize(pool[order]))]
            pool, value = pool[kept], value[kept]
            sure = value < SURE * value[: max(missing, 2)].quantile(0.1)
            deflated = torch.cat([known, pool[sure][:missing]])
        return pool[_apart(normalize(pool), normalize(known))]


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
        images = images[_apart(images.flatten(1), found.images.flatten(1))]
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


def _apart(points: Tensor, known: Tensor) -> Tensor:
    """Which points (M, n) lie farther from every known one (F, n) than a tenth of the median distance: (M,) bool."""
    if not len(known) or not len(points):
        return torch.ones(len(points), dtype=torch.bool, device=points.device)
    nearest = torch.cdist(points, known).min(1).values
    return nearest > SEPARATION * torch.pdist(torch.cat([known, points])).median()


def search_of(
    network: FeatureNetwork,
    observation: Observation,
    knowledge: Knowledge,
    device: torch.device,
    starts: int,
    steps: int,
    learning_rate: float,
) -> tuple[Search, Spectrum]:
    """The search in an observation, and the spectrum of the first fully connected layer's update."""
    initial, final = observation.pairs[0]
    count = cast(int, knowledge.num_private)
    before, after = ([layer_of(state, name, device) for name in network.layers[:2]] for state in (initial, final))
    updates = [end - start for start, end in zip(before, after, strict=True)]
    if not all(bool(update.any()) for update in updates):
        raise InputError("the update is zero: the client returned the checkpoint it was sent")
    spectrum = Spectrum.of(updates[0])
    rank, exact = resolved(spectrum)
    last, used = (
        (rank, rank) if exact else (min(rank, int(share * spectrum.rows)) for share in (LAST_RANK, GRADIENT_RANK))
    )
    polished = spectrum.vectors[:last].float().contiguous()
    rows, values = spectrum.vectors[:used], spectrum.values[:used]
    factors = UpdateFactors(updates[0] @ rows.T / values, values, rows, exact)
    test = None
    if len(updates) > 1 and network.activation is not None:
        second = Spectrum.of(updates[1])
        directions = int(min(DRIFT * count, WIDEST * updates[1].shape[1], len(second.values)))
        if directions >= NARROWEST * count:
            test = second.vectors[:directions].float().contiguous()
    return Search(
        network, factors, polished, test, observation.trainable, count, observation.input_shape,
        _pixel_range(knowledge, device), starts, steps, learning_rate,
    ), spectrum  # fmt: skip


def _placed(value: Tensor, device: torch.device) -> Tensor:
    """On the device, in float32; kernels in the memory format in which convolutions are fastest."""
    value = value.to(device, torch.float32 if value.is_floating_point() else value.dtype)
    return value.to(memory_format=torch.channels_last) if value.dim() == 4 else value


def _pixel_range(knowledge: Knowledge, device: torch.device) -> tuple[Tensor, Tensor] | None:
    if knowledge.pixel_mean is None:
        return None
    mean = torch.tensor(knowledge.pixel_mean, device=device).view(-1, 1, 1)
    low, high = knowledge.pixel_range or (0.0, 1.0)
    return low - mean, high - mean


def infer_background(images: Tensor) -> tuple[float, ...] | None:
    """The mean that was subtracted, from images (M, C, H, W) whose most frequent value is their black background: less
    than BELOW of the pixels lie below it and more than AT within WITHIN of it, in every channel; else None."""
    means = []
    for channel in images.detach().cpu().transpose(0, 1).flatten(1):
        values = channel.sort().values
        near = torch.searchsorted(values, values + WITHIN) - torch.searchsorted(values, values - WITHIN)
        mode = float(values[int(near.argmax())])
        if int(near.max()) < AT * len(values) or (values < mode - WITHIN).float().mean() > BELOW:
            return None
        means.append(-float(values[(values - mode).abs() <= WITHIN].median()))
    return tuple(means)


def reconstruct_behind(
    attack: Options,
    network: FeatureNetwork,
    observation: Observation,
    knowledge: Knowledge,
    generator: torch.Generator,
    progress: Progress,
    device: torch.device,
) -> Reconstruction:
    """`SpanAttack.reconstruct` on a network with fully connected layers behind others. num_private is needed.

    residual of the result is λ (`attacks.span_steps`).
    """
    search, spectrum = search_of(
        network, observation, knowledge, device, attack.starts, attack.steps + attack.settle, attack.learning_rate
    )
    network.model.to(device)
    initial = {name: _placed(value, device) for name, value in observation.initial.items()}
    rounds = Rounds(search, [initial], search.none(initial), Bounds(float("nan"), float("nan")))
    warnings, possible = assess(search, spectrum)
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
    if search.test is None:
        return [
            "no second fully connected layer, with more outputs than there are images, tells features apart: "
            "images are sought from noise"
        ], True
    return [], True
