"""What one attack on one update costs, measured on this machine in a few seconds."""

import math
import time
from dataclasses import replace

import torch

from attacks import InputError, Knowledge, Observation
from clients.time_limit import time_limit
from simulator.evaluation.attack_run import AttackRun
from simulator.scenario.sections import AttackConfig

PROBE = 6  # iterations of an attack that are run
LONGEST_PROBE = 10.0  # processor seconds that an attack may take to be measured
# processor seconds, and for each parameter of the network: an attack's files brought to a worker, and its images scored
SCORE = (0.05, 2.4e-7)


def work_seconds() -> float:
    """Of this process so far, as its threads share them: what others do on this machine adds nothing. Where a GPU
    computes, those that pass until it is through."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time() / torch.get_num_threads()


class _TooLong(Exception):
    """An attack that is measured has not ended in time."""


def attack_seconds(run: AttackRun, observation: Observation, knowledge: Knowledge) -> float | None:
    """Seconds of one attack on one pair of checkpoints; None where that took too long to find out."""
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
        if iterations is None or len(reports) < 2:
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


def iterations_of(attack: AttackConfig) -> int | None:
    """None where an attack has no such option: what it costs depends on what it finds."""
    return getattr(attack.make(), "iterations", None)


def not_counting(attacks: str, timeout: float = math.inf) -> str:
    """What is said of attacks that took too long to be measured. timeout: infinite where that is said elsewhere."""
    most = "" if math.isinf(timeout) else f", at most {clock(timeout)},"
    return f", not counting {attacks}: one of them takes more than {clock(LONGEST_PROBE)}{most} of processor time"


def clock(seconds: float) -> str:
    """Seconds for people: 40 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
