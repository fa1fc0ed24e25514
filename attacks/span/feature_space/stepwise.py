"""The course of a search in feature space: pass by pass, and from one SGD step of the client to the next."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.interface.attack import Progress
from attacks.interface.observation import State
from attacks.span.feature_space.search import Bounds, FeatureSearch, FoundImages, are_apart
from attacks.span.feature_space.sgd_steps import after_step
from attacks.span.thresholds import FEATURES

UNKNOWN = Bounds(float("nan"), float("nan"))
WORST = Bounds(float("inf"), float("inf"))


@dataclass
class StepwiseSearch:
    """What a search has found so far, and where it stands.

    states: the client's parameters before every SGD step that was reached. step: the one at which images are sought.
    bounds: those of the last pass. tried: how many candidates were judged. best: their lowest ρ and λ.
    """

    search: FeatureSearch
    states: list[State]
    found: FoundImages
    step: int = 0
    bounds: Bounds = UNKNOWN
    tried: int = 0
    best: Bounds = WORST

    @classmethod
    def of(cls, search: FeatureSearch) -> "StepwiseSearch":
        """Nothing found yet, at the initial parameters."""
        initial = search.update.initial
        return cls(search, [initial], search.none(initial))

    def run(self, passes: int, generator: torch.Generator, progress: Progress) -> None:
        """Passes at the initial parameters and, where single steps can be told, at those after every step.

        The search ends when all images are found, or when three passes in a row brought nothing.
        """
        idle = 0
        for done in range(passes):
            progress(done, passes, self.bounds.gradient)
            new = self._pass(idle, generator)
            idle = 0 if new else idle + 1
            if len(self.found) >= self.search.update.count or idle == len(FEATURES.span_directions):
                break
            self._change_step(new)
        progress(passes, passes, self.bounds.gradient)

    def points(self) -> Tensor:
        """[h; 1] of all images found, (F, D + 1), each at the parameters of its step."""
        with torch.no_grad():
            parts = [
                self.search.update.pixels(state).points(self.found.images[self.found.step == step])
                for step, state in enumerate(self.states)
            ]
        return torch.cat(parts)

    def _change_step(self, new: bool) -> None:
        """On to where this step led if it has new images; back if it has none, as the one before is then incomplete."""
        update = self.search.update
        if new and update.factors.exact:
            here = self.found.at(self.found.step == self.step)
            state = after_step(update.network, self.states[self.step], update.trained, here.images, here.duals)
            self.states[self.step + 1 :] = [state]
            self.step += 1
        elif self.step and not (self.found.step == self.step).any():
            self.step -= 1

    def _pass(self, idle: int, generator: torch.Generator) -> bool:
        """Whether one pass finds images, which are added. idle: how many passes in a row found nothing."""
        search, state, found = self.search, self.states[self.step], self.found
        images = search.candidates(state, found.images, idle, generator)
        images = images[are_apart(images.flatten(1), found.images.flatten(1))]
        together = torch.cat([found.images, images])
        if len(images) == 0 or len(together) < 3:
            return False
        self.bounds = search.bounds(state, together, generator)
        judged = search.judge(state, images, self.step)
        self.tried += len(images)
        lowest = Bounds(float(judged.residual.min()), float(judged.gradient.min()))
        self.best = Bounds(min(self.best.residual, lowest.residual), min(self.best.gradient, lowest.gradient))
        kept = (judged.residual < self.bounds.residual) & (judged.gradient < self.bounds.gradient)
        missing = search.update.count - len(found)
        new = search.finish(state, judged.at(kept.nonzero()[:, 0][:missing]))
        self.found = found.join(new)
        return len(new) > 0
