"""What a finished attack is measured by beside its scores. A new measure is one function here, or in a file of its own
that the evaluator imports, and its columns in simulator/results/schema.py."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from attacks import InputError, Knowledge, Observation, Reconstruction
from attacks.interface.devices import choose_device
from attacks.interface.seeding import torch_generator
from attacks.kernel.empirical import affordable_images, kernel_drift
from attacks.kernel.regime import Linearity, OnImages, UpdateFacts
from attacks.membership import MembershipScore, MembershipTest
from simulator.evaluation.truth import Truth

OUTSIDERS = 1000  # public images that membership is told from: enough for a false-positive rate of 0.1 %


@dataclass(frozen=True)
class FinishedAttack:
    """What an attack saw, knew and found, and the truth that it is measured against.

    columns: what earlier measures put into the row, for those that build on it.
    """

    truth: Truth
    observation: Observation
    knowledge: Knowledge
    found: Reconstruction
    columns: dict[str, Any]

    @cached_property
    def device(self) -> torch.device:
        """The one that is there: what is measured of kernels and Hessians costs more than an attack may."""
        return choose_device("auto")

    @cached_property
    def there(self) -> Observation:
        """The observation on that device."""
        return self.observation.on(self.device)


Measure = Callable[[FinishedAttack], dict[str, Any]]
MEASURES: dict[str, Measure] = {}  # in the order in which they run


def measure(name: str) -> Callable[[Measure], Measure]:
    """Register a function that returns columns of the leakage table; where it raises, they stay empty and the row's
    `detail` says why, under this name."""

    def register(function: Measure) -> Measure:
        MEASURES[name] = function
        return function

    return register


@measure("update")
def update_norms(attack: FinishedAttack) -> dict[str, Any]:
    """How far the last round's update moved the parameters."""
    return norms_of(attack.observation)


def norms_of(observation: Observation) -> dict[str, Any]:
    """Of the last round's update; no truth is needed."""
    delta = torch.cat([value.flatten() for value in observation.delta(-1).values()])
    return {"delta_l2": float(delta.norm()), "delta_linf": float(delta.abs().max())}


@measure("membership")
def membership(attack: FinishedAttack) -> dict[str, Any]:
    """How well the adversary tells the private images from public ones; InputError where it cannot."""
    truth = attack.truth
    if truth.no_membership:
        raise InputError(truth.no_membership)
    members, outsiders = (
        truth.normalization.inputs(images) for images in (truth.private, truth.pool.public[:OUTSIDERS])
    )
    test = MembershipTest.of(attack.there, attack.knowledge, torch.cat([members, outsiders]))
    return MembershipScore.of(test.residual(members), test.residual(outsiders)).columns()


@measure("kernel distance")
def kernel_distance(attack: FinishedAttack) -> dict[str, Any]:
    """Kernel distance of the last round's update on the private images, as many as are affordable."""
    images = attack.truth.normalization.inputs(attack.truth.private)
    affordable = images[: affordable_images(attack.observation)].to(attack.device)
    return {"kernel_distance": kernel_drift(attack.there, affordable)}


@measure("linearity")
def linearity(attack: FinishedAttack) -> dict[str, Any]:
    """Whether the last round's update is in the kernel regime: on the private images, and, as `attacker_…`, on what the
    adversary has, which is its reconstructions, else the public images that it knows."""
    truth = attack.truth
    if not truth.diagnosed:
        return {}
    observation = attack.there
    generator = torch_generator(truth.seed, "diagnosis", observation.round, observation.client)
    private, drift = truth.normalization.inputs(truth.private), attack.columns.get("kernel_distance", math.nan)
    seen = OnImages.of(observation, private, generator, complete=True, points=(0.0,), distance=drift)
    update = UpdateFacts.of(observation, generator)
    columns = {
        "linearization_error": seen.linearization_error,
        "hessian_norm": seen.hessian_norm,
        "unexplained": seen.unexplained,
        "verdict": Linearity(update, seen).verdict,
        "layer_ranks": json.dumps({layer.name: [layer.rank, _rounded(layer.gap)] for layer in update.layers}),
    }
    own, source = attack.knowledge.public_images, "public"
    if len(attack.found.images):
        own, source = attack.found.images.to(dtype=torch.float32, device="cpu"), "reconstructed"
    if own is None or not len(own):
        return columns
    guessed = OnImages.of(observation, own, generator, points=(0.0,))
    return columns | {
        "attacker_images": source,
        "attacker_kernel_distance": guessed.kernel_distance,
        "attacker_linearization_error": guessed.linearization_error,
        "attacker_hessian_norm": guessed.hessian_norm,
        "attacker_verdict": Linearity(update, guessed).verdict,
    }


def _rounded(gap: float) -> float | None:
    """To three digits, as JSON has it: null for NaN."""
    return None if math.isnan(gap) else float(f"{gap:.3g}")
