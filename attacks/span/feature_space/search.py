"""The search in feature space: pass by pass, and from one SGD step of the client to the next.

In every pass feature vectors of low ρ are found in the span of the first fully connected layer's update, inverted to
pixels and made exact there. Decoys, the means of two candidates, say how low ρ and λ (`UpdateFactors`) have to be.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attacks.base import Progress
from attacks.interface.observation import State
from attacks.networks.probing import probe_generator
from attacks.span.feature_space.inversion import (
    NO_MOMENTUM,
    Momentum,
    PixelTest,
    determined,
    fit_factor,
    invert_features,
    next_state,
)
from attacks.span.feature_space.network import FeatureProblem, output_jacobian, step_of
from attacks.span.feature_space.update import UNKNOWN, WORST, Bounds, FeatureUpdate, FoundImages
from attacks.span.search.candidates import SearchOptions, decoys_of
from attacks.span.search.descent import beside, descend_points, distinct
from attacks.span.search.problems import AffineSpan, SpanProblem, SpanTest
from attacks.span.thresholds import ACCEPTANCE, FEATURE, INVERSION, MOMENTUM, SEARCH, Descent


@dataclass
class FeatureSearch:
    """What a search in one update has found so far, and where it stands; it begins with `of`.

    states: the client's parameters before every SGD step that was reached.
    step: the one at which images are sought.
    idle: how many passes in a row found nothing.
    bounds: those of the last pass.
    tried: how many candidates were judged.
    best: their lowest ρ and λ.
    held: those that were not accepted.
    undetermined: how many of them passed both tests.
    momentum: the client's, where it was found.
    """

    update: FeatureUpdate
    options: SearchOptions
    states: list[State]
    found: FoundImages
    held: FoundImages
    step: int = 0
    idle: int = 0
    bounds: Bounds = UNKNOWN
    tried: int = 0
    best: Bounds = WORST
    undetermined: int = 0
    momentum: Momentum = NO_MOMENTUM

    @classmethod
    def of(cls, update: FeatureUpdate, options: SearchOptions) -> "FeatureSearch":
        nothing = FoundImages.none(update)
        return cls(update, options, [update.initial], nothing, nothing)

    @property
    def state(self) -> State:
        """The parameters at which images are sought."""
        return self.states[self.step]

    @property
    def pixels(self) -> PixelTest:
        """The test of images at these parameters."""
        return self.update.pixels(self.state)

    @property
    def missing(self) -> int:
        """How many images are still to be found."""
        return self.update.count - len(self.found.images)

    def run(self, generator: torch.Generator, progress: Progress) -> None:
        """Make passes at the initial parameters and, where single steps can be told, at those after every step, until
        all images are found, or three passes in a row brought nothing and momentum is no reason for that."""
        passes = self.options.rounds
        for done in range(passes):
            progress(done, passes, self.bounds.gradient)
            new = self._accept(self._candidates(generator), generator)
            self.idle = 0 if new else self.idle + 1
            idle = self.missing > 0 and self.idle == len(FEATURE.span_directions)
            if (idle and not self._find_momentum(generator)) or self.missing <= 0:
                break
            self._change_step(new)
        progress(passes, passes, self.bounds.gradient)

    def points(self) -> Tensor:
        """Return [h; 1] of all images found, (F, D + 1), each at the parameters of its step."""
        with torch.no_grad():
            steps = [(state, self.found.at(self.found.step == i)) for i, state in enumerate(self.states)]
            return torch.cat([self.update.pixels(state).points(found.images) for state, found in steps])

    def _change_step(self, new: bool) -> None:
        """Go on to where this step led if it has new images; back if it has none, as the one before is incomplete."""
        if new and self.update.factors.exact:
            self._enter(next_state(self.states[: self.step + 1], self._taken(), self.momentum))
        elif self.step and not bool((self.found.step == self.step).any()):
            self.step -= 1

    def _taken(self) -> State:
        """Compute what the images of the current step add to the last parameters (s_t of `feature_space.inversion`)."""
        update, here = self.update, self.found.at(self.found.step == self.step)
        return step_of(update.network, self.state, update.trained, here.images, here.duals)

    def _enter(self, state: State) -> None:
        """Go on to the next step, which starts from `state`."""
        self.states[self.step + 1 :] = [state]
        self.step += 1

    def _find_momentum(self, generator: torch.Generator) -> bool:
        """Try momentum where a plain step led to none; add its images, return whether any."""
        self.step, first = 0, len(self.found.images)
        head = tuple(f"{layer}." for layer in self.update.network.layers)
        moves = not all(name.startswith(head) for name in self.update.trained)  # else every step sees the same features
        if not (moves and self.update.factors.exact and first and bool((self.found.step == 0).all())):
            return False
        taken, epochs = self._taken(), len(self.update.rows) / self.update.count
        steps = epochs * math.ceil(self.update.count / first)
        for factor in MOMENTUM.factors:
            momentum, self.step, self.idle = Momentum.of(factor, steps), 0, 0
            self._enter(next_state(self.states[:1], taken, momentum))
            images = self._candidates(generator)[: self.missing]
            if len(images):
                images, fitted = fit_factor(self.update.pixels(self.states[0]), taken, images, factor)
                self.momentum = Momentum.of(fitted, steps)
                self.states[1] = next_state(self.states[:1], taken, self.momentum)
                if self._accept(images, generator):
                    return True
        self.momentum = NO_MOMENTUM
        return False

    def _accept(self, images: Tensor, generator: torch.Generator) -> bool:
        """Add those of the images (M, C, H, W) that pass the current step's tests; return whether any do."""
        known = self.found.images
        images = images[beside(known.flatten(1), images.flatten(1))]
        together = torch.cat([known, images])
        if len(images) == 0 or len(together) < min(3, self.update.count):
            return False
        # what decoys allow, the means of two of the images: private ones are no such means, wrong ones no better
        decoys = self._judged(decoys_of(together, FEATURE.decoys, generator))
        residual, gradient = (part.quantile(FEATURE.accepting_quantile) for part in (decoys.residual, decoys.gradient))
        self.bounds = Bounds(float(residual), FEATURE.gradient_share * float(gradient))
        judged = self._judged(images)
        self.tried += len(images)
        self.best = Bounds(*map(min, self.best, (float(judged.residual.min()), float(judged.gradient.min()))))
        kept = (judged.residual < self.bounds.residual) & (judged.gradient < self.bounds.gradient)
        self.held = self.held.join(judged.at(~kept))
        accepted = images[kept][: self.missing]
        if not len(accepted):
            return False
        polished = self._judged(self.pixels.polish(accepted, len(self.update.rows), INVERSION.accepted_polish))
        kept = self._determined(polished.images)
        self.undetermined += int((~kept).sum())
        if self.update.factors.exact and not self.momentum.value:  # both equations hold exactly, or at another step
            kept &= polished.gradient < FEATURE.exact_gradient
        self.held = self.held.join(polished.at(~kept))
        self.found = self.found.join(polished.at(kept))
        return bool(kept.any())

    def _determined(self, images: Tensor) -> Tensor:
        """Return whether no other images have the features of these (M, C, H, W), (M,) bool. Without a second layer
        that tests features, and without single steps, decoys that are as wrong as the images would alone speak for
        them."""
        if self.update.test is None and not self.update.factors.exact:
            return torch.zeros(len(images), dtype=torch.bool, device=images.device)
        kept = determined([self.pixels] * len(images), images, self.found.images)
        if kept.any():
            kept[kept.clone()] &= self._alone(images[kept])
        return kept

    def _alone(self, images: Tensor) -> Tensor:
        """Return of which images (M, C, H, W) no other with the same features passes the tests, (M,) bool, as one of
        other signs does where a network sees |x|. Others are sought from noise and from its negative: at least one of
        the two is not the image itself where signs are lost."""
        pixels, together = self.pixels, torch.cat([self.found.images, images]).flatten(1)
        typical = torch.pdist(together).median() if len(together) > 1 else together.norm()
        noise = INVERSION.start_deviation * torch.randn(images.shape, generator=probe_generator()).to(images)
        with torch.no_grad():
            wanted = pixels.points(images)[:, :-1].repeat(2, 1)
        others, network = torch.cat([noise, -noise]), self.update.network
        others = invert_features(network, self.state, wanted, others, INVERSION.inversion, INVERSION.blur)
        for descent in (INVERSION.last_polish, INVERSION.accepted_polish):
            others = pixels.polish(others, len(self.update.rows), descent)
        judged, bounds = self._judged(others), self.bounds
        with torch.no_grad():
            missed = (network.features(self.state, others) - wanted).norm(dim=1) / wanted.norm(dim=1)
        far = (others - images.repeat(2, 1, 1, 1)).flatten(1).norm(dim=1) > FEATURE.left_open * typical
        most = min(bounds.gradient, FEATURE.exact_gradient) if self.update.factors.exact else bounds.gradient
        passed = (judged.residual < bounds.residual) & (judged.gradient < most) & (missed < SEARCH.same_point)
        return ~(passed & far).view(2, -1).any(0)

    def beside(self) -> Tensor:
        """Return the images (H, C, H, W) judged and not accepted, lowest λ first, distinct, two for each at most."""
        found = self.found.images
        images = self.held.images[self.held.gradient.argsort(stable=True)]
        room = max(0, int(ACCEPTANCE.held_per_image * self.update.count) - len(found))
        return images[beside(found.flatten(1), images.flatten(1))][:room]

    def _candidates(self, generator: torch.Generator) -> Tensor:
        """Return distinct polished images (M, C, H, W), lowest ρ first; those found are deflated."""
        update, pixels, found = self.update, self.pixels, self.found.images
        number = int(FEATURE.inverted_per_missing * self.missing) + FEATURE.inverted_besides
        features = None if update.test is None else self.feature_vectors(generator)[:number]
        noise = torch.randn((number if features is None else len(features), *update.shape), generator=generator)
        images = INVERSION.start_deviation * noise.to(update.rows.device)
        if features is None:
            with torch.no_grad():
                known = torch.linalg.qr(pixels.points(found).T)[0].T if len(found) else None
            rank = int(INVERSION.noise_rank * update.count)
            images = pixels.polish(images, rank, INVERSION.noise_search, known)
        else:
            images = invert_features(update.network, self.state, features, images, INVERSION.inversion, INVERSION.blur)
        first = min(int(INVERSION.first_rank * update.count), len(update.rows))
        images = _polished(pixels, images, first, INVERSION.first_polish)
        return _polished(pixels, images, len(update.rows), INVERSION.last_polish) if len(images) else images

    def _judged(self, images: Tensor) -> FoundImages:
        """Return the images (M, C, H, W) with their duals, ρ and λ at the parameters before the current step."""
        jacobian = output_jacobian(self.update.network, self.state, images)
        with torch.no_grad():
            points, residual = self.pixels.points(images), self.pixels.residual(images, len(self.update.rows))
        duals, gradient = self.update.factors.duals(jacobian, points)
        return FoundImages(images, duals, residual, gradient, torch.full_like(residual, self.step, dtype=torch.long))

    def feature_vectors(self, generator: torch.Generator) -> Tensor:
        """Find features (M, D) in the first layer's span of low ρ by the second's rows, best first."""
        update, found, test = self.update, self.found.images, self.update.span_test(self.state)
        with torch.no_grad():
            known = update.network.features(self.state, found) if len(found) else test.first[:0, :-1]
        span = update.factors.rows[: int(FEATURE.span_directions[self.idle] * update.count)]
        pool, deflated = known[:0], known
        for _ in range(FEATURE.searches_per_pass):
            pool = torch.cat([pool, self._minima(test, span, deflated, generator)])
            value = test.residual(pool) + pool.clamp_max(0).square().sum(1) / pool.square().sum(1)
            order = value.argsort(stable=True)
            kept = order[distinct(normalize(pool[order]))]
            pool, value = pool[kept], value[kept]
            lowest = value[: max(self.missing, 2)].quantile(FEATURE.deflating_quantile)
            surest = pool[value < FEATURE.deflating_ratio * lowest][: self.missing]
            deflated = torch.cat([known, surest])
        return pool[beside(normalize(known), normalize(pool))]

    def _minima(self, test: SpanTest, rows: Tensor, deflated: Tensor, generator: torch.Generator) -> Tensor:
        """Find minima (M, D) of ρ in the span of some rows, from random starts; those features (F, D) are deflated."""
        rate, steps = self.options.learning_rate, self.options.steps + self.options.settle
        span = AffineSpan.of(rows, generator)
        problem = FeatureProblem.of(SpanProblem.of(test, span), span, self.update.network.nonnegative)
        basis = torch.linalg.qr(test.features(deflated).T)[0].T.contiguous() if len(deflated) else None
        size = len(span.directions)
        points = (torch.randn(self.options.starts, size, generator=generator) / size**0.5).to(rows.device)
        coarse = Descent(FEATURE.coarse_fifths * steps // 5, rate)
        fine = Descent((5 - FEATURE.coarse_fifths) * steps // 5, SEARCH.settle_rate * rate)
        loss = partial(problem.value_and_gradient, found=basis)
        points = descend_points(loss, points, coarse, SEARCH.settle_rate * rate)
        return span.images(descend_points(problem.value_and_gradient, points, fine).double()).float()


def _polished(pixels: PixelTest, images: Tensor, rank: int, descent: Descent) -> Tensor:
    """Return the images (M, C, H, W) polished at a rank, distinct and lowest ρ first, but for those without hope."""
    images = pixels.polish(images, rank, descent)
    residual, order = pixels.residual(images, rank).sort(stable=True)
    if not len(residual):
        return images
    order = order[residual <= FEATURE.dropped_ratio * residual[len(residual) // 4]]
    return images[order][distinct(images[order].flatten(1))]
