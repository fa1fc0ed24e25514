"""Scores and measures of a finished attack: this is where reconstructions meet the private images."""

import math
from typing import Any, NamedTuple

from attacks import InputError, Knowledge, Observation, Reconstruction, score
from attacks.interface.seeding import numpy_generator
from attacks.scoring.leakage import LeakageScore
from simulator.evaluation.measures import MEASURES, FinishedAttack
from simulator.evaluation.truth import Truth


class Evaluation(NamedTuple):
    """columns: of the leakage table. samples: rows of the samples table, one per private image. notes: on either."""

    columns: dict[str, Any]
    samples: list[dict[str, Any]]
    notes: list[str]


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
    scores = score(truth.private, images, truth.pool, generator, held=held, transformations=truth.views)
    counts = {
        "num_private": len(truth.private),
        "num_inferred": found.num_inferred,
        "num_reconstructed": len(found.images),
        "relative_residual": found.relative_residual,
    }
    attack = FinishedAttack(truth, observation, knowledge, found, counts | scores.columns())
    notes = []
    for name, measure in MEASURES.items():
        try:
            attack.columns.update(measure(attack))
        except TimeoutError:
            raise
        except Exception as error:
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            notes.append(f"{name}: {kind}{error}")
    if scores.floor_size < len(found.images):
        size, returned = scores.floor_size, len(found.images)
        notes.append(f"the uninformed baseline is {size} public images for {returned} returned: raise data.public")
    return Evaluation(attack.columns, _samples(scores, found, key), notes)


def _samples(scores: LeakageScore, found: Reconstruction, key: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each private image: its index, its scores and the dual of its reconstruction."""
    columns = {name: values.tolist() for name, values in scores.samples().items()}
    largest = [] if found.duals is None else found.duals.abs().amax((0, 2)).tolist()  # over kernels and outputs
    columns["dual"] = [largest[match] if largest and match >= 0 else math.nan for match in columns["match"]]
    rows = zip(*columns.values(), strict=True)
    return [{**key, "image": i, **dict(zip(columns, row, strict=True))} for i, row in enumerate(rows)]
