"""Where a client runs, and which code."""

import hashlib
import os
from pathlib import Path


def code_version() -> str:
    """A digest of the source that clients run: server and clients have to run the same."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for package in ("attacks", "clients") for path in (root / package).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def has_gpu_share() -> bool:
    """Whether this process may use a GPU: a worker of Ray only one that it was granted a share of, since others would
    crowd it; any other process what it finds."""
    import ray

    if not ray.is_initialized() or ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return True
    return bool(ray.get_gpu_ids())


def whereabouts() -> dict[str, str | int]:
    """Where a client ran: process, host and the accelerators that Ray granted it."""
    facts: dict[str, str | int] = {"pid": os.getpid(), "worker": "local", "gpu-ids": ""}
    import ray

    if ray.is_initialized():
        context = ray.get_runtime_context()
        worker = {ray.WORKER_MODE: "ray-worker", ray.SCRIPT_MODE: "ray-driver"}.get(context.worker.mode, "ray")
        facts |= {"worker": worker, "gpu-ids": ",".join(map(str, ray.get_gpu_ids()))}
    return facts
