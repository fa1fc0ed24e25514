"""One search behind other layers: candidates for private images at given parameters, and how they are judged.

Feature vectors of low ρ are found in the span of the first fully connected layer's update (`attacks.span_features`),
inverted to pixels and made exact there (`attacks.span_pixels`). Impostors, the means of two candidates, say how low ρ
and λ (`attacks.span_steps`) have to be.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.span.feature_space import FeatureNetwork, FeatureProblem, layer_of
from attacks.span.inversion import PixelTest
from attacks.span.layers import DRIFT, NARROWEST, WIDEST
from attacks.span.search import SEPARATION, AffineSpan, SpanProblem, SpanTest, descend, distinct
from attacks.span.sgd_steps import UpdateFactors, output_jacobian
from attacks.update.spectrum import Spectrum, rank_above_noise

FEATURE_SPANS = (2.0, 3.0, 4.0)  # directions per image of the first layer's rows in which features are sought: at
# first, and after one and two rounds that brought nothing
SUB_ROUNDS = 3  # searches in feature space per round in pixels
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
ROUNDING = 1.5  # times the largest singular value that noise of the level of the smallest ones can have


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
        return pool[apart(normalize(pool), normalize(known))]


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


def resolved(spectrum: Spectrum) -> tuple[int, bool]:
    """(rank above the noise, whether a gap shows it): with a gap, the update is a sum of so many summands exactly."""
    found = rank_above_noise(spectrum.values, spectrum.rows, spectrum.columns)
    if found.has_spectral_gap:
        return found.count, True
    rows, columns = spectrum.rows**0.5, spectrum.columns**0.5
    # noise alone has singular values between |√columns − √rows| and √columns + √rows times its deviation
    smallest = spectrum.values[int(0.95 * len(spectrum.values)) :].median()
    noise = ROUNDING * smallest * (columns + rows) / max(abs(columns - rows), 1.0)
    return int((spectrum.values > noise).sum()), False


def _pixel_range(knowledge: Knowledge, device: torch.device) -> tuple[Tensor, Tensor] | None:
    if knowledge.pixel_mean is None:
        return None
    mean = torch.tensor(knowledge.pixel_mean, device=device).view(-1, 1, 1)
    low, high = knowledge.pixel_range or (0.0, 1.0)
    return low - mean, high - mean


def apart(points: Tensor, known: Tensor) -> Tensor:
    """Which points (M, n) lie farther from every known one (F, n) than a tenth of the median distance: (M,) bool."""
    if not len(known) or not len(points):
        return torch.ones(len(points), dtype=torch.bool, device=points.device)
    nearest = torch.cdist(points, known).min(1).values
    return nearest > SEPARATION * torch.pdist(torch.cat([known, points])).median()
