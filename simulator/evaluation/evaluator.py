"""Score and measure a finished attack: here reconstructions meet the private images.

A new measure is one function here, or in a file that the evaluator imports, and its columns in
simulator/results/schema.py.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from attacks import InputError, Knowledge, Observation, Reconstruction, score
from attacks.gradient_membership import tell_members
from attacks.interface.torch_tools import choose_device, exact_convolutions, numpy_generator, torch_generator
from attacks.kernel.empirical import affordable_images, kernel_drift
from attacks.kernel.regime import Linearity, OnImages, UpdateFacts
from attacks.membership import MembershipScore
from attacks.scoring.leakage import LeakageScore
from attacks.scoring.recognition import comparable
from attacks.update.labels import estimate_label_counts
from attacks.update.private_set import image_capacity
from simulator.evaluation.truth import NO_OTHERS, Measured, Truth
from simulator.run_errors import one_line_error

MISFIT = 0.2  # of the shares of classes: at most 0.12 under SGD, 7 under Adam (docs/records/label_counts.md)
UNTAUGHT = 0.1  # distance of the predictions on noise from equal shares: up to it, noise stands in for public images
OUTSIDERS = 1000  # public images that membership is told from: enough for a false-positive rate of 0.1 %


@dataclass(frozen=True)
class FinishedAttack:
    """An attack, its result and the truth.

    columns: of earlier measures, for those that build on them.
    """

    truth: Truth
    observation: Observation
    knowledge: Knowledge
    found: Reconstruction
    columns: dict[str, Any]

    @cached_property
    def device(self) -> torch.device:
        """A GPU if there is one: kernels and Hessians take more time than an attack."""
        return choose_device("auto")

    @cached_property
    def there(self) -> Observation:
        return self.observation.on(self.device)


Measure = Callable[[FinishedAttack], dict[str, Any]]
MEASURES: dict[str, Measure] = {}  # in the order in which they run
WITHOUT_RESULT = ("membership", "classes")  # those that look at no reconstruction


def measure(name: str) -> Callable[[Measure], Measure]:
    """Register a function that returns columns of the leakage table. If it raises, they stay empty, and the row's
    `detail` says why, under this name."""

    def register(function: Measure) -> Measure:
        MEASURES[name] = function
        return function

    return register


def norms_of(observation: Observation) -> dict[str, Any]:
    """Return the norms of the last round's update."""
    delta = torch.cat([value.flatten() for value in observation.delta(-1).values()])
    return {"delta_l2": float(delta.norm()), "delta_linf": float(delta.abs().max())}


def told_classes(observation: Observation, knowledge: Knowledge) -> dict[str, Any]:
    """Estimate how many private images there are of each class; nothing unless the adversary knows the learning rate
    and the steps. Raise InputError where the estimate cannot be trusted."""
    if knowledge.learning_rate is None or knowledge.steps is None:
        return {}
    found = estimate_label_counts(observation, knowledge, momentum=knowledge.momentum or 0.0)
    if found.misfit > MISFIT:
        raise InputError("the last layer's update is not what SGD of this rate and so many steps sends")
    untaught = float((found.prior - 1 / len(found.prior)).abs().sum()) / 2 <= UNTAUGHT
    if knowledge.public_images is None and not untaught:
        raise InputError("the network knows the classes already, so that public images have to be granted")
    return {"class_counts": json.dumps({str(number): count for number, count in enumerate(found.counts.tolist())})}


OF_UPDATE: dict[str, Callable[[Observation, Knowledge], dict[str, Any]]] = {  # measures that need no truth
    "update": lambda observation, _: norms_of(observation),
    "capacity": lambda observation, _: {"capacity": image_capacity(observation)},
    "classes": told_classes,
}


def measure_update(observation: Observation, knowledge: Knowledge) -> tuple[dict[str, Any], list[str]]:
    """Return (columns, notes on those that are missing) of an update, whether the truth is known or not."""
    return _taken({name: partial(measure, observation, knowledge) for name, measure in OF_UPDATE.items()}, {})


def measure_alone(
    truth: Truth | str, observation: Observation, knowledge: Knowledge
) -> tuple[dict[str, Any], list[str]]:
    """Return (columns, notes on those that are missing) of what an update tells where the attack has no result. truth:
    the reason where there is none."""
    columns, notes = measure_update(observation, knowledge)
    if isinstance(truth, str):
        return columns, notes
    attack = FinishedAttack(truth, observation, knowledge, nothing_of(observation), columns)
    taken, more = _taken({name: partial(MEASURES[name], attack) for name in WITHOUT_RESULT}, columns)
    return {"num_private": len(truth.private)} | taken, [*notes, *more]


def nothing_of(observation: Observation) -> Reconstruction:
    """Return the reconstruction of an attack that has no result: no image."""
    return Reconstruction(torch.zeros(0, *observation.input_shape), torch.zeros(0))


def _taken(
    measures: dict[str, Callable[[], dict[str, Any]]], columns: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Add measures to `columns` one by one; return them, with a note for each measure that failed."""
    notes = []
    for name, measure in measures.items():
        try:
            columns.update(measure())
        except (Exception, SystemExit) as error:
            notes.append(f"{name}: {error if isinstance(error, InputError) else one_line_error(error)}")
    return columns, notes


@measure("membership")
def membership(attack: FinishedAttack) -> dict[str, Any]:
    """Measure how well the adversary tells the private images from public ones; raise InputError if it cannot."""
    truth = attack.truth
    if truth.no_membership:
        raise InputError(truth.no_membership)
    public, classes = truth.pool.public[:OUTSIDERS], truth.pool.public_labels
    images = truth.normalization.inputs(torch.cat([truth.private, public]))
    known = None if truth.labels is None or classes is None else torch.cat([truth.labels, classes[:OUTSIDERS]])
    residual = tell_members(attack.there, attack.knowledge, images, known).residual
    return MembershipScore.of(*residual.split([len(truth.private), len(public)])).columns()


@measure("classes")
def classes(attack: FinishedAttack) -> dict[str, Any]:
    """Score the counts of `told_classes` beside the guess that all classes are equally frequent."""
    counts, labels = attack.columns.get("class_counts"), attack.truth.labels
    if counts is None or labels is None:
        return {}
    told = torch.tensor(list(json.loads(counts).values()), dtype=torch.float64)
    true = torch.bincount(labels, minlength=len(told)).double() / len(labels)
    guesses = {"class_error": told / told.sum(), "floor_class_error": torch.full_like(true, 1 / len(true))}
    return {name: float((shares - true).abs().sum()) / 2 for name, shares in guesses.items()}


@measure("kernel distance")
def kernel_distance(attack: FinishedAttack) -> dict[str, Any]:
    """Measure the kernel distance of the last round's update on the private images, as many as are affordable."""
    if not attack.truth.diagnosed:
        return {}
    images = attack.truth.normalization.inputs(attack.truth.private)
    affordable = images[: affordable_images(attack.observation)].to(attack.device)
    return {"kernel_distance": kernel_drift(attack.there, affordable)}


@measure("linearity")
def linearity(attack: FinishedAttack) -> dict[str, Any]:
    """Measure whether the last round's update is in the kernel regime: on the private images, and, as `attacker_…`, on
    the adversary's reconstructions, or else on the public images that it knows."""
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
        "layer_ranks": json.dumps(
            {
                layer.name: [layer.rank, None if math.isnan(layer.gap) else float(f"{layer.gap:.3g}")]
                for layer in update.layers
            }
        ),
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


UNCALIBRATED = "too few public images to say what an eye would know"


@exact_convolutions()
def evaluate(
    truth: Truth, observation: Observation, knowledge: Knowledge, found: Reconstruction, key: dict[str, Any]
) -> Measured:
    """Score a reconstruction and take every registered measure of it. key: the columns that identify the row.

    If a measure fails (the user's model cannot be differentiated, an update tells nothing), the row keeps its scores,
    and a note says why its columns are empty.
    """
    purpose = f"floor/{key['threat_model']}/{key['attack']}"
    generator = numpy_generator(truth.seed, purpose, observation.round, observation.client)
    images, held = (pixels.float() for pixels in (found.pixels(clamped=False), found.held_pixels(clamped=False)))
    scores = score(
        truth.private, images, truth.pool, generator, held=held, transformations=truth.views, labels=truth.labels
    )
    counts = {"num_private": len(truth.private)} | counts_of(observation, found)
    columns, notes = measure_update(observation, knowledge)
    attack = FinishedAttack(truth, observation, knowledge, found, counts | scores.columns() | columns)
    _, more = _taken({name: partial(measure, attack) for name, measure in MEASURES.items()}, attack.columns)
    notes = [*truth.notes, *notes, *more]
    if math.isnan(scores.least) and comparable(truth.private) and len(truth.pool.public) > 1:
        notes.append(f"{UNCALIBRATED}: {truth.more_public}")
    if scores.floor_size < len(found.images) and NO_OTHERS not in truth.notes:
        size, returned = scores.floor_size, len(found.images)
        notes.append(f"the floor has {size} of the {returned} public images that it needs: {truth.more_public}")
    return Measured(attack.columns, notes, _samples(scores, found, key, truth.numbers))


def counts_of(observation: Observation, found: Reconstruction) -> dict[str, Any]:
    """Return the columns of the attack's own counts."""
    rounds = range(len(observation.pairs))
    sent = sum(int(value.count_nonzero()) for place in rounds for value in observation.delta(place).values())
    return {
        "num_inferred": found.num_inferred,
        "num_inferred_guessed": None if found.num_inferred is None else int(found.guessed),
        "num_reconstructed": len(found.images),
        "num_features": None if found.features is None else len(found.features),
        "num_held": len(found.held_pixels()),
        "relative_residual": found.relative_residual,
        "determined": sent / found.images.numel() if len(found.images) else None,
    }


def _samples(
    scores: LeakageScore, found: Reconstruction, key: dict[str, Any], numbers: Sequence[int] | None
) -> list[dict[str, Any]]:
    """Return a row for each private image: its number, its scores and the dual of its reconstruction."""
    columns = {name: values.tolist() for name, values in scores.samples().items()}
    largest = [] if found.duals is None else found.duals.abs().amax((0, 2)).tolist()  # over kernels and outputs
    columns["dual"] = [largest[match] if largest and match >= 0 else math.nan for match in columns["match"]]
    rows = zip(*columns.values(), strict=True)
    shown = range(len(scores.images.l2)) if numbers is None else numbers
    return [{**key, "image": i, **dict(zip(columns, row, strict=True))} for i, row in zip(shown, rows, strict=True)]
