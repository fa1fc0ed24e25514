"""`fedspill audit`: attack what a recording holds, and say what it gives away.

import fedspill
run = fedspill.audit("runs/mine", "myapp/task.py:Net", (1, 28, 28), mean=0.13, std=0.31)
run.leakage                       # a row for each round, client, threat model and attack
run.page                          # report.html; `run.show()` has the pictures of what leaked worst
"""

import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks import InputError, Observation
from clients.config import ModelConfig
from clients.models.factory import count_scores
from simulator.audit import MINUTES, TIMEOUT
from simulator.audit.plan import AuditOptions, AuditPlan, absolute, digest_of, typed_attack
from simulator.audit.price import REST, TimeLeft, describe_audit, is_left
from simulator.audit.recording import CONTENTS, Recording
from simulator.evaluation.image_files import Shape
from simulator.evaluation.job import Job, JobResult, empty_result, run_job
from simulator.results.ledger import JOURNAL, Ledger, out_of_time, read_journal
from simulator.results.storage import CellStore
from simulator.run.display import Display
from simulator.run.run_folder import TABLE_FILES, claimed_folder, is_free, surroundings
from simulator.run_errors import one_line_error
from simulator.rundir.run import AUDIT, Run, read_description
from simulator.scenario.sections import EngineConfig

if TYPE_CHECKING:
    from simulator.evaluation.dispatch import Dispatcher
JOBS = "jobs"  # in `audit.yaml`: how many attacks on updates the audit has
TRUTHS = "clients and their truth"  # likewise: what they call themselves, and which file is whose


def audit(
    recording: str | Path,
    model: str,
    shape: Shape,
    *,
    mean: float | Sequence[float] = (),
    std: float | Sequence[float] = (),
    truth: str | Path | None = None,
    owners: Mapping[str, str] | None = None,
    public: str | Path | None = None,
    candidates: str | Path | None = None,
    attacks: Iterable[str | Mapping[str, Any]] = (),
    know: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    rounds: Iterable[int] = (),
    clients: Iterable[int] = (),
    threat_models: Iterable[str] = (),
    seed: int = 0,
    timeout: float = TIMEOUT,
    minutes: float = MINUTES,
    workers: int | None = None,
    overwrite: bool = False,
    page: bool = True,
    display: Display | None = None,
) -> Run:
    """Attack every round, client and threat model of a recording, score the results, and write tables and a page.

    model: FILE.py:NAME, which returns the nn.Module. shape: (C, H, W) of an input. mean, std: of the inputs'
    normalization, one value or one per channel; the updates tell the rest. truth: the private images, a folder with a
    file for each client or one npz file. owners: node -> file or folder of `truth`. public: images of no members, for
    floors and to calibrate membership. candidates: images that may have taken part; they need `public`. attacks: names,
    or mappings as in a scenario; default `span` and a short `ntk`. know: further knowledge of the adversary, false to
    withhold some. out: default beside the recording. rounds, clients, threat_models: default all. timeout: processor
    seconds of each attack. minutes: of an idle machine, after which the audit ends; the rest has rows that say so, and
    the next call goes on with it, with 0 to the end. workers: attacks at a time, default one per core; 1 runs them in
    this process, without Ray. page: whether report.html and its figures are made.

    An interrupted audit goes on, and attacks that ran out of time are tried again; a finished one is read, unless
    `overwrite`. Raise InputError for what does not fit, before anything is written.
    """
    if not (Path(recording) / CONTENTS).exists():
        from simulator.audit.record import recording_of  # Flower: half a second

        recording = recording_of(Path(recording))
    options = AuditOptions.of(
        recording=absolute(recording),
        model=model,
        shape=shape,
        mean=_values(mean),
        std=_divisors(std),
        truth=truth,
        owners=owners,
        public=public,
        candidates=candidates,
        attacks=tuple(map(typed_attack, attacks)),
        knowledge=know,
        rounds=tuple(rounds),
        clients=tuple(clients),
        threat_models=tuple(threat_models),
        seed=seed,
    )
    folder = Path(out or f"{options.recording}-audit").resolve()
    try:
        finished = not overwrite and is_finished(folder, digest_of(options, Recording(options.recording)))
    except InputError:
        AuditPlan.of(options, folder)  # another --out does not mend a wrong model
        raise
    if not finished:
        plan = AuditPlan.of(options, folder)
        left = TimeLeft(minutes)
        run_audit(plan, display or Display(), left, timeout=timeout, workers=workers, overwrite=overwrite)
    if page:
        _write_page(folder)
    return Run(folder)


def is_finished(folder: Path, digest: str) -> bool:
    """Return whether an audit is there with all its tables and no attack that ran out of time; this needs no network.
    Raise InputError if something else is there."""
    if is_free(folder, AUDIT, digest, "audit", "audit"):
        return False
    jobs, found = read_description(folder / AUDIT).get(JOBS), read_journal(folder / JOURNAL)
    complete = jobs == len(found.done) and not out_of_time(found)
    return complete and all((folder / name).exists() for name in TABLE_FILES)


def run_audit(
    plan: AuditPlan,
    display: Display,
    left: TimeLeft,
    *,
    timeout: float,
    workers: int | None = None,
    overwrite: bool = False,
) -> None:
    """Do what is still to do of an audit, and write its tables."""
    is_free(plan.out, AUDIT, plan.digest, "audit", "audit")
    jobs = len(plan.keys) * len(plan.attacks)
    whose, doubts = plan.whose_truth
    description = {"audit": plan.options.described(), "digest": plan.digest, JOBS: jobs, **surroundings()}
    description |= {TRUTHS: [*whose, *doubts]} if whose else {}
    with claimed_folder(plan.out, AUDIT, description, overwrite) as notes:
        ledger = Ledger(plan.out)
        for line in (*notes, *ledger.problems):
            display.note(line)
        again = {name for name, _ in ledger.out_of_time}
        todo = [job for job in make_jobs(plan, timeout) if job.name in again or job.name not in ledger.done]
        display.price(lambda: itertools.chain(whose, describe_audit(plan, todo, left.minutes, workers)))
        noted = [f"recording: {line}" for line in plan.recording.contents.problems]
        for line in (*noted, *plan.doubts_of_model, *doubts):
            display.note(f"warning: {line}")
        display.updates = len(plan.keys)
        display.start(0, len(todo))
        try:
            for job, result in _results(plan, todo, display, workers, left):
                if is_left(result):  # a row of the tables, and no more: the next call has it to do
                    if job.name not in again:
                        ledger.add(job.name, **result._asdict())
                    continue
                ledger.put(job.name, job.columns, **result._asdict())
                if job.name not in again:
                    ledger.mark_done(job.name)
                display.attack_done(result.leakage[0], job.subject)
        finally:  # whatever stopped the audit, what was found is kept
            try:
                ledger.write_tables()
            finally:
                display.stop()


def make_jobs(plan: AuditPlan, timeout: float) -> list[Job]:
    """Write the observations, and return a job for each of them and each attack, one attack after the other."""
    store, shape = CellStore(plan.out), plan.options.shape
    store.create(ModelConfig(name=plan.options.model), shape, count_scores(plan.model, "", shape), plan.options.seed)
    settings = plan.settings(timeout)
    for key in plan.keys:
        store.save_observation(plan.recording.recorded(key), plan.knowledge(key), plan.recording.checkpoints)
    jobs = [Job(settings, plan.out, key, attack) for key in plan.keys for attack in plan.attacks]
    return sorted(jobs, key=lambda job: plan.attacks.index(job.attack))


def _results(
    plan: AuditPlan, jobs: list[Job], display: Display, workers: int | None, left: TimeLeft
) -> Iterator[tuple[Job, JobResult]]:
    """Yield each job once with its result, as they finish: first the jobs that an attack refuses for the network alone,
    last those for which no time is left."""
    start = plan.model.state_dict()
    able = deque[Job]()
    for job in jobs:
        try:
            blank = Observation(plan.model, ((start, start),), plan.options.shape)
            job.attack.make().check(blank, plan.knowledge(job.key))
        except InputError as error:
            yield job, empty_result(job, str(error), "skipped")
            continue
        except Exception:  # the job raises it again, and makes a row of it
            pass
        able.append(job)
    if workers == 1 or len(able) <= 1:
        while able:
            job, begun = able.popleft(), time.monotonic()
            yield job, _within(left, job) if left.fits(job) else empty_result(job, REST, "skipped")
            left.took(job, time.monotonic() - begun)
        return
    with _dispatcher(workers) as dispatcher:
        yield from _of_workers(dispatcher, able, display, left)


def _within(left: TimeLeft, job: Job) -> JobResult:
    """Do a job in this process, in no more processor seconds than are left."""
    seconds = min(job.timeout, max(1.0, left.idle_seconds))
    result = run_job(replace(job, settings=replace(job.settings, timeout=seconds)))
    cut = seconds < job.timeout and result.leakage[0]["status"] == "timeout"
    return empty_result(job, REST, "skipped") if cut else result


def _of_workers(
    dispatcher: "Dispatcher", jobs: deque[Job], display: Display, left: TimeLeft
) -> Iterator[tuple[Job, JobResult]]:
    """Send as many jobs at a time as there are workers: a job that is not sent when the time is over costs nothing."""
    begun: dict[str, float] = {}
    while (jobs or dispatcher.pending) and not left.over:
        while jobs and len(dispatcher.pending) < dispatcher.at_a_time:
            job = jobs.popleft()
            if left.fits(job):
                begun[job.name] = time.monotonic()
                dispatcher.submit(job)
            else:
                yield job, empty_result(job, REST, "skipped")
        for job, result in dispatcher.collect(timeout=0.5):
            seconds = time.monotonic() - begun[job.name]
            if line := left.of_the_rest(job, seconds, jobs, dispatcher.at_a_time):
                display.note(line)
            left.took(job, seconds)
            yield job, result
        display.attacks_running(dispatcher.shares())
    for job in (*dispatcher.pending, *jobs):
        yield job, empty_result(job, REST, "skipped")


@contextlib.contextmanager
def _dispatcher(workers: int | None) -> Iterator["Dispatcher"]:
    """Start a Ray that ends with the dispatcher, unless there is one already."""
    from simulator.evaluation.dispatch import Dispatcher  # Ray: 0.4 s that an audit without two attacks to do is spared
    from simulator.run.cluster import start_ray, stop_ray, worker_environment

    engine = EngineConfig(attack_workers=workers)
    ours = start_ray(engine)
    environment = None if ours else worker_environment(engine.threads)  # of a notebook: its workers know nothing of us
    try:
        with contextlib.closing(Dispatcher(workers, environment)) as dispatcher:
            yield dispatcher
    finally:
        if ours:
            stop_ray()


def _write_page(folder: Path) -> None:
    """Write the page if it is older than the tables. A page that cannot be made costs a line in the log."""
    from simulator.reports.page.pages import is_current, write_report  # Matplotlib: 0.5 s that `page=False` spares

    say = logging.getLogger("fedspill").warning
    try:
        if not is_current(folder):
            write_report(folder, say)
    except Exception as error:
        say(f"the page could not be made: {one_line_error(error)}")


def _values(given: float | Sequence[float]) -> tuple[float, ...]:
    return (float(given),) if isinstance(given, int | float) else tuple(map(float, given))


def _divisors(given: float | Sequence[float]) -> tuple[float, ...]:
    values = _values(given)
    if not all(value > 0 for value in values):
        raise InputError(f"std {given!r}: divide by numbers above 0")
    return values
