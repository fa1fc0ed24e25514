"""An attack and a score that misbehave as they are told; scenarios name this file as code of their own."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from attacks import Attack, InputError, Knowledge, Observation, Reconstruction
from simulator.evaluation.evaluator import FinishedAttack, measure
from tests.reliability.acts import ACTS

ROUND = 1  # they behave in all others


@dataclass(frozen=True)
class Faulty(Attack):
    """Returns nothing, and does so in the way of its fault where it sees the global checkpoint of round 1."""

    name: ClassVar[str] = "faulty"
    infers: ClassVar[tuple[str, ...]] = ("num_private", "pixel_mean")

    fault: str = ""
    scoring: bool = False

    def reconstruct(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Any
    ) -> Reconstruction:
        nothing = torch.zeros(0, *observation.input_shape)
        if (observation.round, observation.threat_model) != (ROUND, "observer"):
            return Reconstruction(nothing, torch.zeros(0))
        if self.scoring:
            return Reconstruction(nothing, torch.zeros(0), facts={"fault": self.fault})
        if self.fault == "cannot run":
            raise InputError("attack 'faulty' needs another network")
        if self.fault == "returns NaN":
            return Reconstruction(torch.full((1, *observation.input_shape), torch.nan), torch.zeros(1))
        if self.fault == "returns other shapes":
            return Reconstruction(torch.zeros(3, 7), torch.zeros(3))
        ACTS[self.fault]()
        raise AssertionError(self.fault)


@measure("own measure")
def own_measure(attack: FinishedAttack) -> dict[str, Any]:
    if fault := attack.found.facts.get("fault"):
        ACTS[str(fault)]()
    return {}
