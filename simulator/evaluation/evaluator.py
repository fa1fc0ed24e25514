"""The only reader of private images on the adversary's side of the program, after an attack has finished."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from attacks import InputError, Knowledge, Observation, Pool, Reconstruction, score
from attacks.interface.seeding import numpy_generator, torch_generator
from attacks.kernel.empirical import affordable_images, kernel_drift
from attacks.kernel.regime import Linearity
from attacks.membership import MembershipScore, MembershipTest
from attacks.scoring.leakage import score_images
from clients.data.partition import split_data
from clients.local_update import centered
from simulator.scenario.scenario import Scenario

Measured = TypeVar("Measured")

OUTSIDERS = 1000  # public images that membership is told from: enough for a false-positive rate of 0.1 %


@dataclass(frozen=True)
class Truth:
    """The private images of a row, (N, C, H, W) in [0, 1], the pool to single them out of, and the input's mean.

    diagnosed: whether rows say in how far the update is in the kernel regime.
    """

    private: Tensor
    pool: Pool
    pixel_mean: tuple[float, ...]
    seed: int
    diagnosed: bool = True

    @classmethod
    def of(cls, scenario: Scenario, clients: list[int], round_clients: list[int]) -> "Truth":
        """The private set that `clients` form, in a round in which `round_clients` took part."""
        data = split_data(scenario.data, scenario.partition, scenario.federation.clients, scenario.seed)
        images = {client: data.client(client)[0] for client in round_clients}
        pool = Pool(data.public()[0], torch.cat([images[client] for client in round_clients]))
        private = torch.cat([images[client] for client in clients])
        return cls(private, pool, data.pixel_mean, scenario.seed, scenario.output.diagnostics)

    def nearness(self, distilled: Tensor) -> dict[str, float]:
        """How near the images that a client trained on instead (M, C, H, W) are to its private ones."""
        return {"distilled_l2_median": float(np.median(score_images(self.private, distilled, self.pool).l2))}


def evaluate(
    truth: Truth, observation: Observation, knowledge: Knowledge, found: Reconstruction, key: dict[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """(columns of the leakage table, rows of the samples table: one per private image, what to say of the scores)."""
    purpose = f"floor/{key['threat_model']}/{key['attack']}"
    generator = numpy_generator(truth.seed, purpose, observation.round, observation.client)
    scores = score(truth.private, found.pixels().float(), truth.pool, generator)
    delta = torch.cat([value.flatten() for value in observation.delta(-1).values()])  # of the last round
    notes: list[str] = []
    unknown = MembershipScore(math.nan, math.nan)
    membership = _measured("membership", lambda: score_membership(truth, observation, knowledge), unknown, notes)
    drift = _measured("kernel distance", lambda: measure_drift(truth, observation), math.nan, notes)
    linearity: dict[str, Any] = {}
    if truth.diagnosed:
        linearity = _measured("linearity", lambda: diagnose(truth, observation, knowledge, found, drift), {}, notes)
    columns = {
        "num_private": len(truth.private),
        "num_inferred": found.num_inferred,
        "num_reconstructed": len(found.images),
        **scores.columns(),
        "relative_residual": found.relative_residual,
        "kernel_distance": drift,
        "delta_l2": float(delta.norm()),
        "delta_linf": float(delta.abs().max()),
        "membership_auc": membership.auc,
        "membership_tpr": membership.tpr,
        **linearity,
    }
    images = scores.images
    samples = [
        {
            **key,
            "image": i,
            "l2": float(images.l2[i]),
            "psnr": float(images.psnr[i]),
            "ssim": float(images.ssim[i]),
            "dual": _dual(found, int(images.match[i])),
            "identified": bool(images.identified[i]),
            "match": int(images.match[i]),
            "floor_l2": float(scores.floor.l2[i]),
            "mean_image_l2": float(scores.mean_image.l2[i]),
        }
        for i in range(len(truth.private))
    ]
    if scores.floor_size < len(found.images):
        notes.append(
            f"the floor is {scores.floor_size} public images for {len(found.images)} returned: raise data.public"
        )
    return columns, samples, notes


def _measured(what: str, measure: Callable[[], Measured], otherwise: Measured, notes: list[str]) -> Measured:
    """What `measure` returns, or `otherwise` and a note that says why: a model of the user's own that cannot be
    differentiated this way, or an update that tells nothing, does not cost a row its scores."""
    try:
        return measure()
    except TimeoutError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        notes.append(f"{what}: {reason}")
        return otherwise


def measure_drift(truth: Truth, observation: Observation) -> float:
    """Kernel distance of the last round's update on the private images, as many as are affordable."""
    return kernel_drift(observation, centered(truth.private, truth.pixel_mean)[: affordable_images(observation)])


def score_membership(truth: Truth, observation: Observation, knowledge: Knowledge) -> MembershipScore:
    """How well the adversary tells the private images from public ones; InputError where it cannot."""
    members, outsiders = (
        centered(images, truth.pixel_mean) for images in (truth.private, truth.pool.public[:OUTSIDERS])
    )
    test = MembershipTest.of(observation, knowledge, torch.cat([members, outsiders]))
    return MembershipScore.of(test.residual(members), test.residual(outsiders))


def diagnose(
    truth: Truth, observation: Observation, knowledge: Knowledge, found: Reconstruction, drift: float
) -> dict[str, Any]:
    """The columns that say whether the last round's update is in the kernel regime.

    Twice: on the private images, and, as `attacker_…`, on what the adversary has: the best of its reconstructions, or
    public images where it knows some and has no reconstruction. drift: the kernel distance on the private images.
    """
    initial, final = observation.pairs[-1]
    own, source = found.images.to(dtype=torch.float32, device="cpu"), "reconstructed"
    if not len(own) and knowledge.public_images is not None:
        own, source = knowledge.public_images, "public"
    generator = torch_generator(truth.seed, "diagnosis", observation.round, observation.client)
    seen = Linearity.of(
        observation.model,
        initial,
        final,
        centered(truth.private, truth.pixel_mean),
        generator,
        complete=True,
        points=(0.0,),
        distance=drift,
    )
    columns: dict[str, Any] = {
        "linearization_error": seen.linearization_error,
        "hessian_norm": seen.hessian_norm,
        "unexplained": seen.unexplained,
        "verdict": seen.verdict,
        "layer_ranks": json.dumps({layer.name: [layer.rank, _rounded(layer.gap)] for layer in seen.layers}),
    }
    if len(own):
        guessed = seen.on(observation.model, initial, final, own, generator, points=(0.0,))
        columns |= {
            "attacker_images": source,
            "attacker_kernel_distance": guessed.kernel_distance,
            "attacker_linearization_error": guessed.linearization_error,
            "attacker_hessian_norm": guessed.hessian_norm,
            "attacker_verdict": guessed.verdict,
        }
    return columns


def _rounded(gap: float) -> float | None:
    """To three digits, as JSON has it: null for NaN."""
    return None if math.isnan(gap) else float(f"{gap:.3g}")


def _dual(found: Reconstruction, match: int) -> float:
    """The largest |α| of a reconstruction over kernels and outputs; NaN without duals or match."""
    if found.duals is None or match < 0:
        return float("nan")
    return float(np.abs(found.duals[:, match].numpy()).max())
