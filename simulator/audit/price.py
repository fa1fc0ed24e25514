"""The price of an audit: an estimate before it begins, the time left while it runs, the attacks left after it."""

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean

import pandas as pd

from attacks import InputError, Knowledge, Observation
from attacks.interface.errors import counted
from clients.time_limit import CORES, unhurried
from simulator.audit.plan import AuditPlan
from simulator.evaluation.attack_run import LONGEST_PROBE, SCORE, AttackRun, clock, mean_seconds, or_more, work_seconds
from simulator.evaluation.candidate_images import AuditCandidates, tell_candidates
from simulator.evaluation.job import Job, JobResult
from simulator.results.keys import ALL, ObservationKey, owner
from simulator.run_errors import one_line_error

# processor seconds that this process takes to load, and to make the page: 5 on an idle machine of two cores, 11 on a
# slower one
BESIDE = 8.0
LEAST_MINUTES = (BESIDE + 1.0) / 60  # leave an attack a second
STARTUP = 10.0  # those that Ray and two workers take to come up
LOADS = 2.0  # those, at most, in which the first test of candidates loads what later ones find there
LEFT = "left for want of time"
REST = f"{LEFT}: --minutes 0 goes on with it"  # in the row of a job that the next call tries


@dataclass
class TimeLeft:
    """The time of an audit, in minutes of an idle machine; 0 for no limit. The page is made within it.

    An attack begins if the longest of its kind so far would end in time.
    looked: when the time was last looked at, and used: the seconds of an idle machine that had passed by then.
    """

    minutes: float
    looked: float = field(default_factory=time.monotonic)
    used: float = 0.0
    longest: dict[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.minutes != 0 and not self.minutes >= LEAST_MINUTES:
            raise InputError(f"--minutes {self.minutes:g}: give at least {LEAST_MINUTES:g}, or 0 for no limit")

    def fits(self, job: Job) -> bool:
        return self.longest.get(_kind(job), 0.0) < self.seconds

    @property
    def idle_seconds(self) -> float:
        """Seconds of an idle machine until the time is over. Each stretch between two looks (one attack at a time: the
        whole attack) counts by the load at its end: by the load of now all that had passed would, and attacks would be
        ended early when others have left the machine."""
        now = time.monotonic()
        self.used, self.looked = self.used + (now - self.looked) / unhurried(1.0), now
        return 60 * self.minutes - BESIDE - self.used if self.minutes else math.inf

    @property
    def seconds(self) -> float:
        """The same by the clock, as busy as the machine is now."""
        return unhurried(self.idle_seconds)

    @property
    def over(self) -> bool:
        return self.seconds <= 0

    def of_the_rest(self, job: Job, seconds: float, rest: Sequence[Job], at_a_time: int) -> str:
        """Return a line on what the other jobs of a kind will take by the clock, when the first of it has ended; "" for
        later ones, and for a kind that was short enough for the estimate to measure."""
        left = sum(_kind(one) == _kind(job) for one in rest)
        if _kind(job) in self.longest or not left or seconds <= LONGEST_PROBE:
            return ""
        label, all_of_them = job.attack.label, math.ceil(left / at_a_time) * seconds
        return f"{label} took {clock(seconds)} by the clock: {left} more take about {clock(all_of_them)}"

    def took(self, job: Job, seconds: float) -> None:
        self.longest[_kind(job)] = max(seconds, self.longest.get(_kind(job), 0.0))


def _kind(job: Job) -> tuple[str, str]:
    return job.attack.label, job.key.threat_model


def is_left(result: JobResult) -> bool:
    return str(result.leakage[0]["detail"]).startswith(LEFT)


Seen = tuple[str, bool]
Priced = tuple[str, Seen]  # an attack, and what it sees


def _seen(key: ObservationKey) -> Seen:
    """Return what the cost of an attack depends on: the threat model, and whether the update is of all clients."""
    return key.threat_model, key.client == ALL


def describe_audit(plan: AuditPlan, jobs: Sequence[Job], minutes: float, workers: int | None) -> Iterator[str]:
    """Describe in a few lines what will be attacked, and then its cost, measured for some seconds on updates of each
    threat model: of clients with few and many images, and of all together. workers: attacks at a time, default one per
    core; 1 does without Ray."""
    counts = Counter((job.attack.label, _seen(job.key)) for job in jobs)
    keys = sorted({job.key for job in jobs}, key=plan.keys.index)
    if not keys:
        return
    views = pd.Series([key.threat_model for key in keys]).value_counts(sort=False)
    often = Counter(job.attack.label for job in jobs)
    yield (
        f"{counted(len(keys), 'update')} of {counted(len({key.round for key in keys}), 'round')} "
        f"({', '.join(f'{count} {view}' for view, count in views.items())}): "
        f"{', '.join(f'{often[one.label]} × {one.label}' for one in plan.attacks if often[one.label])}; "
        f"timing a few first, each for {clock(LONGEST_PROBE)} of processor time at most"
    )
    start = work_seconds()
    each, failed = _measured(plan, counts, keys)
    yield from failed
    if jobs[0].settings.candidates is not None:
        yield "timing the test of the candidates on one update, which every row has beside its attack"
    beside = _beside_attacks(plan, jobs[0].settings.candidates, keys)
    least = {kind: beside[kind[1]] + (LONGEST_PROBE if seconds is None else seconds) for kind, seconds in each.items()}
    alone = workers == 1 or len(jobs) == 1
    cores = 1 if alone else min(workers or CORES, CORES)
    here = BESIDE + work_seconds() - start  # on one core
    shared = (0.0 if alone else STARTUP) + sum(counts[kind] * seconds for kind, seconds in least.items())
    idle = here + shared / cores
    prices, slow = [], ", ".join(dict.fromkeys(label for (label, _), seconds in each.items() if seconds is None))
    for label in dict.fromkeys(label for label, _ in each):
        spread = sorted(seconds for (name, _), seconds in least.items() if name == label)
        prices.append(f"{label} {' to '.join(dict.fromkeys(map(clock, (spread[0], spread[-1]))))}")
    single = f" ({', '.join(prices)} each)" if prices else ""
    unsure = or_more(slow) if slow else ", or more" if failed else ""
    yield (
        f"cost: about {clock(here + shared)} of processor time, {clock(idle)} on {counted(cores, 'idle core')}"
        f"{single}{unsure}"
    )
    if minutes and (unsure or idle > 60 * minutes):
        yield f"ends after {minutes:g} min, longer on a busy machine; what is left then is named at the end"


def _beside_attacks(
    plan: AuditPlan, candidates: AuditCandidates | None, keys: Sequence[ObservationKey]
) -> dict[Seen, float]:
    """Return the seconds of a row of each kind beside its attack: of its files and scores, and of telling which
    candidates are members, measured on the first update, for each of its rounds."""
    rounds, of_a_round = {key: len(plan.recording.recorded(key).pairs) for key in keys}, 0.0
    for _ in range(2):
        if candidates is None or of_a_round > LOADS:
            break
        begun = work_seconds()
        tell_candidates(candidates, plan.observation(keys[0]), plan.knowledge(keys[0]))
        of_a_round = (work_seconds() - begun) / rounds[keys[0]]
    parameters = sum(parameter.numel() for parameter in plan.model.parameters())
    of_a_row, kinds = SCORE[0] + SCORE[1] * parameters, {_seen(key) for key in keys}
    return {kind: of_a_row + of_a_round * mean(rounds[key] for key in keys if _seen(key) == kind) for kind in kinds}


def _measured(
    plan: AuditPlan, counts: Mapping[Priced, int], keys: Sequence[ObservationKey]
) -> tuple[dict[Priced, float | None], list[str]]:
    """Return (the mean seconds of each attack on the updates of each kind, None where it takes too long to measure; a
    line on each that fails there)."""
    alike, each, failed = dict[Seen, list[ObservationKey]](), dict[Priced, float | None](), []

    def update(key: ObservationKey) -> tuple[Observation, Knowledge]:
        return plan.observation(key), plan.knowledge(key)

    for key in keys:
        alike.setdefault(_seen(key), []).append(key)
    for one, (seen, own) in itertools.product(plan.attacks, alike.items()):
        if counts[one.label, seen]:
            run = AttackRun(one, plan.options.seed)
            try:
                sizes = [plan.knowledge(key).num_private or 0 for key in own]
                each[one.label, seen] = mean_seconds(run, own, sizes, update)
            except InputError:  # a refusal, as its row will say
                each[one.label, seen] = 0.0
            except Exception as error:
                whose, why = f"{seen[0]}, {owner(own[0].client)}", one_line_error(error)
                failed.append(f"{one.label} ({whose}): price not measured: it failed: {why}")
    return each, failed


def describe_rest(leakage: pd.DataFrame, workers: int | None) -> str:
    """Say what was left, and its price by the seconds of the same attacks by the clock; "" if nothing was left.
    workers: attacks at a time, default one per core. The seconds of a row are without the test of its candidates."""
    rest = leakage[leakage.detail.str.startswith(LEFT, na=False)]
    if rest.empty:
        return ""
    took = leakage[leakage.status == "ok"].groupby(["attack", "threat_model"]).seconds.mean()
    kinds = rest.groupby(["attack", "threat_model"], sort=False).size()
    each = [took[kind] for kind, count in kinds.items() if kind in took.index for _ in range(count)]
    at_a_time = min(workers or CORES, len(rest))
    price = max(sum(each) / at_a_time, *each, 0.0)
    how = f"{at_a_time} at a time" if at_a_time > 1 else "one by one"
    unknown = sorted(f"{attack} ({view})" for attack, view in kinds.index if (attack, view) not in took.index)
    names = ", ".join(dict.fromkeys(rest.attack))
    beside = f", without {', '.join(unknown)}, of which none has ended" if unknown else ""
    tested = "membership_candidates" in leakage and leakage.membership_candidates.notna().any()
    beside += "; the test of the candidates, for each row, comes on top" if tested else ""
    left = f"{len(rest)} of {len(leakage)} attacks are left ({names})"
    if unknown and price < 1:
        return f"{left}: how long they take is not known, as none of {', '.join(unknown)} has ended"
    return f"{left}: about {clock(price)} by the clock, {how}{beside}"
