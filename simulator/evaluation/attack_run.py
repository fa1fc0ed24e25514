"""Run one attack as a scenario describes it, and measure its cost on one update in a few seconds."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attacks import InputError, Knowledge, Observation, Reconstruction, torch_generator
from attacks.base import Progress, silent
from clients.time_limit import time_limit
from simulator.scenario.scenario import Scenario
from simulator.scenario.sections import AttackConfig


@dataclass(frozen=True)
class AttackRun:
    """An attack with its options, its seed and its torch threads. The same observation, knowledge and run give the same
    bits, live or replayed.

    defense_facts: fields of `Knowledge` on the defense, for an adaptive one.
    """

    config: AttackConfig
    seed: int = 0
    threads: int = 1
    defense_facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, config: AttackConfig, scenario: Scenario, facts: dict[str, Any] | None = None) -> "AttackRun":
        """facts: on the defenses, default those that hold for every observation."""
        facts = scenario.defense_facts() if facts is None else facts
        return cls(config, scenario.seed, scenario.engine.threads, facts if config.adaptive else {})

    def knowledge(self, granted: Knowledge) -> Knowledge:
        """Return the knowledge of the attack: granted by the scenario, and facts on the defense if it is adaptive."""
        return replace(granted, **self.defense_facts)

    def run(self, observation: Observation, granted: Knowledge, progress: Progress = silent) -> Reconstruction:
        torch.set_num_threads(self.threads)
        # an adaptive attack has the random stream of its non-adaptive twin, so that they differ only in knowledge
        label = self.config.label.removesuffix("-adaptive")
        purpose = f"attack/{observation.threat_model}/{label}"
        generator = torch_generator(self.seed, purpose, observation.round, observation.client)
        return self.config.make().run(observation, self.knowledge(granted), generator, progress)


PROBE = 6  # iterations of an attack that are run
LONGEST_PROBE = 10.0  # processor seconds that an attack may take to be measured
# processor seconds, fixed and for each parameter of the network, to send an attack's files and to score its images
SCORE = (0.05, 2.4e-7)


def work_seconds() -> float:
    """Return the processor seconds of this process per torch thread, whatever others do on this machine; with a GPU,
    seconds by the clock until it is through."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time() / torch.get_num_threads()


class _TooLong(Exception):
    """A measured attack has not ended in time."""


def attack_seconds(run: AttackRun, observation: Observation, knowledge: Knowledge) -> float | None:
    """Return the seconds of one attack on one pair of checkpoints; None if it takes too long to measure."""
    attack, iterations = run.config, iterations_of(run.config)
    short = {} if iterations is None else {"iterations": PROBE}
    start = work_seconds()
    reports: list[tuple[float, int, int]] = []  # when, after how many iterations, and of how many in all starts

    def report(done: int, total: int, loss: float) -> None:
        reports.append((work_seconds(), done, total))

    probe = replace(run, config=attack.model_copy(update={"options": attack.options | short}))
    try:
        with time_limit(LONGEST_PROBE, _TooLong):
            probe.run(observation, knowledge, report)
    except _TooLong:
        if iterations is None:
            return _most_seconds(reports, start)
        if len(reports) < 2:
            return None
    except InputError:
        if not attack.optional:
            raise
        return 0.0
    taken = work_seconds() - start
    if iterations is None:
        return taken
    if len(reports) < 2:
        return taken * iterations / PROBE
    # attacks report after their first iteration, which pays for what the others find loaded, and after their last
    (first, began, total), (last, reported, _) = reports[0], reports[-1]
    done = min(reported + 1, total)
    return taken + (last - first) / max(done - began - 1, 1) * (total / PROBE * iterations - done)


def mean_seconds(
    run: AttackRun, updates: Sequence[Any], sizes: Sequence[int], seen: Callable[[Any], tuple[Observation, Knowledge]]
) -> float | None:
    """Return the mean seconds of an attack on updates of so many images each; None if it takes too long to measure.

    seen: returns an update and the knowledge of its adversary. One is measured of all that have less than twice as many
    images as another, the largest first.
    """
    left, total = sorted(range(len(sizes)), key=sizes.__getitem__), 0.0
    while left:
        alike = [place for place in left if 2 * sizes[place] > sizes[left[-1]]] or left
        seconds = attack_seconds(run, *seen(updates[alike[len(alike) // 2]]))
        if seconds is None:
            return None
        total += seconds * len(alike)
        left = left[: -len(alike)]
    return total / len(sizes)


def _most_seconds(reports: list[tuple[float, int, int]], start: float) -> float | None:
    """Return the most seconds that an attack takes, from the progress that it reported in its last stage before it was
    stopped; None if it reported none, or had ended that stage: nothing tells what follows it."""
    stage = [report for report in reports if report[2] == reports[-1][2]]
    if not stage or stage[-1][1] <= stage[0][1] or stage[-1][1] >= stage[-1][2]:
        return None
    (began, before, total), (now, done, _) = stage[0], stage[-1]
    return now - start + (now - began) / (done - before) * (total - done)


def iterations_of(attack: AttackConfig) -> int | None:
    """Return the iterations of an attack; None if it has no such option: its cost depends on what it finds."""
    return getattr(attack.make(), "iterations", None)


def or_more(attacks: str, timeout: float = math.inf) -> str:
    """Say that attacks took too long to be measured, and are counted as LONGEST_PROBE. timeout: infinite to leave it
    out."""
    most = "" if math.isinf(timeout) else f", at most {clock(timeout)}"
    return f", or more: one {attacks} takes more than {clock(LONGEST_PROBE)} of processor time{most}"


def clock(seconds: float) -> str:
    """Format seconds for people: 40 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
