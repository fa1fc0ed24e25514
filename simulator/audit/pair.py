"""One attack on one pair of checkpoints, written down as an audit of a recording with one round and one client."""

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from attacks import Knowledge, Observation, Reconstruction
from simulator.audit.audit import make_jobs
from simulator.audit.plan import TIMEOUT, AuditOptions, AuditPlan
from simulator.audit.recording import CONTENTS, FORMAT, Contents, RecordedRound, SeenClient
from simulator.evaluation.job import finish_job
from simulator.evaluation.truth import Attacked
from simulator.results.disk import make_out
from simulator.results.formats import write_json
from simulator.results.keys import ObservationKey, RecordedObservation
from simulator.results.ledger import Ledger
from simulator.results.run import AUDIT
from simulator.results.storage import CellStore
from simulator.run.description import surroundings
from simulator.run.folder import claimed_folder

RECORDING = "recording"  # below the folder of the result
KEY = ObservationKey(1, 0, "server")


def audit_pair(
    out: Path, options: AuditOptions, observation: Observation, knowledge: Knowledge, found: Reconstruction
) -> None:
    """Make `out` the audit of what an attack, the only one of `options`, found in one pair: tables and files from which
    reports are made. Its scores are those of an audit."""
    make_out(out)
    write_recording(out / RECORDING, observation, knowledge)
    plan = AuditPlan.of(replace(options, recording=str(out / RECORDING)), out)
    description = {"audit": plan.options.described(), "digest": plan.digest, **surroundings()}
    with claimed_folder(out, AUDIT, description, overwrite=True):
        (job,), ledger = make_jobs(plan, TIMEOUT), Ledger(out)
        recorded = plan.store().recorded(KEY)
        ledger.add(job.name, **finish_job(job, Attacked(recorded, observation, knowledge, found))._asdict())
        ledger.mark_done(job.name)
        ledger.write_tables()


def write_recording(folder: Path, observation: Observation, knowledge: Knowledge) -> None:
    """What `fedspill.Record` would have written of a federation with one client and one round."""
    store, (initial, final) = CellStore(folder), observation.pairs[0]
    store.checkpoints.mkdir(parents=True, exist_ok=True)
    pair = (store.save_global(0, initial), store.save_client(1, 0, final))
    store.save_observation(RecordedObservation(KEY, (pair,), (0,), (0,)), knowledge)
    round = RecordedRound(1, (0,), {})  # how many images there are nobody reported: what is known may be a belief
    contents = Contents(FORMAT, version("fedspill"), "two checkpoints", {0: SeenClient(0)}, (round,))
    write_json(folder / CONTENTS, contents.as_json())
