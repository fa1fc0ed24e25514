"""One attack as a scenario has it run: everything that decides its result beside the observation."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attacks import Knowledge, Observation, Reconstruction, torch_generator
from attacks.base import Progress, silent
from simulator.scenario.scenario import Scenario
from simulator.scenario.sections import AttackConfig


@dataclass(frozen=True)
class AttackRun:
    """An attack with its options, its seed, its torch threads and what an adaptive one knows of the defense.

    The same observation, knowledge and run give the same bits, live or replayed. defense_facts: fields of `Knowledge`.
    """

    config: AttackConfig
    seed: int = 0
    threads: int = 1
    defense_facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, config: AttackConfig, scenario: Scenario, facts: dict[str, Any] | None = None) -> "AttackRun":
        """facts: what there is to know of the defenses, default what they tell whatever is seen."""
        facts = scenario.defense_facts() if facts is None else facts
        return cls(config, scenario.seed, scenario.engine.threads, facts if config.adaptive else {})

    def knowledge(self, granted: Knowledge) -> Knowledge:
        """All that the attack is given: what the scenario grants, and the defense in force where it is adaptive."""
        return replace(granted, **self.defense_facts)

    def run(self, observation: Observation, granted: Knowledge, progress: Progress = silent) -> Reconstruction:
        torch.set_num_threads(self.threads)
        # an adaptive attack draws what the same attack draws that is told nothing: what differs is what it is told
        label = self.config.label.removesuffix("-adaptive")
        purpose = f"attack/{observation.threat_model}/{label}"
        generator = torch_generator(self.seed, purpose, observation.round, observation.client)
        found = self.config.make().run(observation, self.knowledge(granted), generator, progress)
        check_images(found, observation.input_shape)
        return found


def check_images(found: Reconstruction, shape: tuple[int, ...]) -> None:
    """Raise ValueError where what an attack returns is no list of images of this shape (C, H, W), or not finite."""
    for images in (found.images, *(() if found.held is None else (found.held,))):
        if tuple(images.shape) != (len(images), *shape):
            wanted = ", ".join(map(str, ("M", *shape)))
            raise ValueError(f"the attack returned images of shape {tuple(images.shape)}, not ({wanted})")
    if not torch.isfinite(found.images).all():
        raise ValueError("the attack returned images with NaN or Inf in them")
