"""Scores and measures of a finished attack: this is where reconstructions meet the private images."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from attacks import InputError, Knowledge, Observation, Reconstruction, score
from attacks.interface.devices import exact_convolutions
from attacks.interface.seeding import numpy_generator
from attacks.scoring.leakage import LeakageScore
from attacks.scoring.recognition import comparable
from simulator.errors import said_by
from simulator.evaluation.measures import MEASURES, FinishedAttack, norms_of
from simulator.evaluation.truth import Truth

UNCALIBRATED = "too few public images to say what an eye would know"


class Evaluation(NamedTuple):
    """columns: of the leakage table. samples: rows of the samples table, one per private image. notes: on either."""

    columns: dict[str, Any]
    samples: list[dict[str, Any]]
    notes: list[str]


@exact_convolutions()
def evaluate(
    truth: Truth, observation: Observation, knowledge: Knowledge, found: Reconstruction, key: dict[str, Any]
) -> Evaluation:
    """Score a reconstruction and take every registered measure of it. key: the columns that identify the row.

    A measure that fails (a model of the user's own cannot be differentiated this way, an update tells nothing) does not
    cost a row its scores: a note says why its columns are empty.
    """
    purpose = f"floor/{key['threat_model']}/{key['attack']}"
    generator = numpy_generator(truth.seed, purpose, observation.round, observation.client)
    images, held = (pixels.float() for pixels in (found.pixels(clamped=False), found.held_pixels(clamped=False)))
    scores = score(
        truth.private, images, truth.pool, generator, held=held, transformations=truth.views, labels=truth.labels
    )
    counts = {"num_private": len(truth.private)} | counts_of(found)
    attack = FinishedAttack(truth, observation, knowledge, found, counts | scores.columns())
    notes = list(truth.notes)
    for name, measure in MEASURES.items():
        try:
            attack.columns.update(measure(attack))
        except (Exception, SystemExit) as error:
            notes.append(f"{name}: {error if isinstance(error, InputError) else said_by(error)}")
    if math.isnan(scores.least) and comparable(truth.private) and len(truth.pool.public) > 1:
        notes.append(f"{UNCALIBRATED}: {truth.more_public}")
    if scores.floor_size < len(found.images):
        size, returned = scores.floor_size, len(found.images)
        notes.append(f"the floor has {size} of the {returned} public images that it needs: {truth.more_public}")
    return Evaluation(attack.columns, _samples(scores, found, key, truth.numbers), notes)


def counts_of(found: Reconstruction) -> dict[str, Any]:
    """What the attack itself says of its result: columns of the leakage table."""
    return {
        "num_inferred": found.num_inferred,
        "num_reconstructed": len(found.images),
        "num_held": len(found.held_pixels()),
        "relative_residual": found.relative_residual,
    }


def without_truth(observation: Observation, knowledge: Knowledge, found: Reconstruction, why: str) -> Evaluation:
    """What there is to say where nobody knows the private images: counts and norms, and no score. why: in words."""
    told = {} if knowledge.num_private is None else {"num_private": knowledge.num_private}
    return Evaluation(told | counts_of(found) | norms_of(observation), [], [why])


def _samples(
    scores: LeakageScore, found: Reconstruction, key: dict[str, Any], numbers: Sequence[int] | None
) -> list[dict[str, Any]]:
    """A row for each private image: its number, its scores and the dual of its reconstruction."""
    columns = {name: values.tolist() for name, values in scores.samples().items()}
    largest = [] if found.duals is None else found.duals.abs().amax((0, 2)).tolist()  # over kernels and outputs
    columns["dual"] = [largest[match] if largest and match >= 0 else math.nan for match in columns["match"]]
    rows = zip(*columns.values(), strict=True)
    shown = range(len(scores.images.l2)) if numbers is None else numbers
    return [{**key, "image": i, **dict(zip(columns, row, strict=True))} for i, row in zip(shown, rows, strict=True)]
