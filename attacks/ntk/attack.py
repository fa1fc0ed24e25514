"""Reconstruction with the neural tangent kernel (Loo et al., ICLR 2024, eq. 7; appendices B, F, H, I)."""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from attacks.interface.attack import Attack, Progress, Reconstruction, register
from attacks.interface.devices import cast_state, choose_device
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.interface.options import check_values
from attacks.interface.restarts import best_of_restarts
from attacks.networks.probing import count_outputs
from attacks.ntk.objective import make_objective, relative_residual_without
from attacks.ntk.optimization import NTKOptimization, NTKOptions
from attacks.ntk.rounds_objective import StackedObjective, round_scales
from attacks.update.intervals import kept_entries, known_distortion


@register
@dataclass(frozen=True)
class NTKAttack(NTKOptions, Attack):
    """Find images x_j and duals α_j with Δθ = Σ_j α_j ∇_θ f(x_j), in every round that was observed.

    The defaults are the paper's recipe with two additions that a federated update needs: `scale_duals` starts and steps
    the duals at the scale of Δθ (a few local epochs give duals far below the paper's ½), and the `cosine` schedule
    lets the step size fall to 0. `scale_duals=False, schedule="constant"` is the recipe as published.

    An adaptive attacker counts only the entries that were sent, where the others were left out (kept_fraction), and
    stops where the loss is down at that of the noise or rounding it knows of.

    Several pairs share the images and have duals of their own (`attacks.ntk.rounds_objective`); those of the result are
    ordered by round, then initial before final.

    kernel: whose tangent space, that of the `final` or `initial` parameters, or `hybrid`, both with duals of their own.
    candidates: how many images, as a multiple of the number of private ones; num_candidates: the same as a number.
    smoothness: weight of `high_frequencies`, relative to ‖Δθ‖² (the paper's ResNet-18 has a mild penalty of this kind).
    batch_size: Algorithm 2 with so many candidates at a time. precision: float32 or float64.
    patience: stop when the mean loss of so many iterations is that of the ones before, to `tolerance` (0: never).
    restarts: independent starts; the one with the smallest residual is returned.
    """

    name: ClassVar[str] = "ntk"
    infers: ClassVar[tuple[str, ...]] = ("num_private", "pixel_mean")

    def __post_init__(self) -> None:
        check_values(
            self,
            ("candidates", "num_candidates", "iterations", "learning_rate", "image_std", "restarts", "batch_size"),
            not_negative=("smoothness", "range_penalty", "patience", "tolerance"),
        )

    def with_options(self, knowledge: Knowledge) -> Knowledge:
        """Whoever says how many candidates need not know how many images there are."""
        return replace(knowledge, num_private=knowledge.num_private or self.num_candidates)

    def reconstruct(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Progress
    ) -> Reconstruction:
        """pixel_range is used where known. residual of a candidate: ‖R‖ / ‖R + g_j‖, what all candidates leave of the
        update over what they leave without this one."""
        problem = self._optimization(observation.without_zero_updates(), knowledge)
        best = best_of_restarts(self.restarts, self.iterations, partial(problem.solve, generator), progress)
        return Reconstruction(
            best.images,
            relative_residual_without(problem.objective, best.images, best.duals),
            duals=best.duals / problem.dual_scales,
            relative_residual=best.residual,
            loss_trace=best.trace,
        )

    def _optimization(self, observation: Observation, knowledge: Knowledge) -> NTKOptimization:
        device, dtype = choose_device(self.device), getattr(torch, self.precision)
        prepare = partial(cast_state, device=device, dtype=dtype)
        deltas = [observation.delta(pair) for pair in range(len(observation.pairs))]
        scales = round_scales(deltas)
        rounds, dual_scales, floor = [], [], 0.0
        for pair, delta, scale in zip(observation.pairs, deltas, scales, strict=True):
            scaled = prepare({name: value * scale for name, value in delta.items()})
            views = [prepare(state) for state in self._views(*pair)]
            kept = kept_entries(delta, knowledge)
            kept = kept if kept is None else prepare(kept)
            rounds.append(make_objective(observation.model, observation.input_shape, scaled, views, kept=kept))
            floor += scale**2 * known_distortion(delta, knowledge)
            dual_scales += [scale] * len(views)
        count = self.num_candidates or max(1, round(self.candidates * (knowledge.num_private or 1)))
        return NTKOptimization(
            options=self,
            objective=rounds[0] if len(rounds) == 1 else StackedObjective(rounds),
            shape=(count, *observation.input_shape),
            outputs=count_outputs(observation.model, observation.input_shape),
            dual_scales=torch.tensor(dual_scales, device=device, dtype=dtype).view(-1, 1, 1),
            bounds=knowledge.input_bounds(torch.zeros((), device=device, dtype=dtype)),
            noise_floor=floor,
        )

    def _views(self, initial: State, final: State) -> list[State]:
        return {"final": [final], "initial": [initial], "hybrid": [initial, final]}[self.kernel]
