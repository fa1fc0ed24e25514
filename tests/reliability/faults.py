"""The matrix: what is done wrong, and what becomes of it in a simulation and in a deployment."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """The status of the row, and its `detail`, in which … stands for anything."""

    status: str
    detail: str = ""

    def fits(self, status: str, detail: str) -> bool:
        pattern = ".*".join(map(re.escape, self.detail.split("…")))
        return status == self.status and re.fullmatch(pattern, detail) is not None

    def __str__(self) -> str:
        return f"`{self.status}`" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True)
class Fault:
    """who: client, attack, score or SuperNode. does: what, a name of `acts`, `faulty_client` or `faulty_attack`.
    simulated: None where there is no such thing. deployed: where it is not the same; attacks and scores run beside the
    server in both."""

    who: str
    does: str
    simulated: Outcome | None
    deployed: Outcome | None = None

    @property
    def label(self) -> str:
        """As an attack of a scenario is called."""
        return f"{self.who}_{self.does.replace(' ', '_')}"


def failed(detail: str) -> Outcome:
    return Outcome("failed", detail)


def late(detail: str) -> Outcome:
    return Outcome("timeout", detail)


def reply(detail: str) -> Outcome:
    return failed(f"the client's reply {detail}")


SAID = "RuntimeError: out of cheese in the [/bold] second line"
NO_ROOM = "RuntimeError: …can't allocate memory: …"
DIED = failed("the client's process ended: killed, out of memory, or by its own exit")
LOST = failed("the attack's worker died: …")
SILENT = late("no reply within federation.timeout = … s")
UNANSWERED = failed("ClientApp stopped responding.")  # Flower's own words
WAITS = late("no result within adversary.timeout = 3 processor seconds: it waits and does not compute")
UNENDING = late("attack or score did not end after adversary.timeout = 3 s: their worker was ended")
NOT_FINITE = reply("holds NaN or Inf in …: its training diverged")

LINE = ", in or below …acts.py:…"  # of the user's code

CLIENTS = (
    Fault("client", "raises", failed(f"{SAID} (acts.py, line …)")),
    Fault("client", "hangs", SILENT),
    Fault("client", "blocks signals", SILENT),
    Fault("client", "swallows its time limit", SILENT),
    Fault("client", "calls sys.exit", failed("SystemExit: 0 (acts.py, line …)")),
    Fault("client", "calls os._exit", DIED, UNANSWERED),
    Fault("client", "is killed", DIED, UNANSWERED),
    Fault("client", "raises MemoryError", failed("MemoryError (acts.py, line …)")),
    Fault("client", "exceeds its memory", failed(f"{NO_ROOM} (acts.py, line …)")),
    Fault("client", "sends other shapes", reply("has … of float32 (1, …), sent was float32 (…)")),
    Fault("client", "sends other types", reply("has … of int32 (…), sent was float32 (…)")),
    Fault("client", "sends NaN", NOT_FINITE),
    Fault("client", "sends Inf", NOT_FINITE),
    Fault("client", "sends huge numbers", reply("holds numbers up to 1e+30 in …: their squares overflow")),
    Fault("client", "sends no arrays", reply("has no record 'arrays'")),
    Fault("client", "sends other names", reply("lacks the array …, which was sent")),
    Fault("client", "says it has NaN images", reply("says num-examples = nan: no number of images")),
    Fault("client", "sends back what it got", Outcome("ok")),
)

LOST_NODE = Fault("SuperNode", "is lost", None, SILENT)

MADE = "InputError: Faulty.reconstruct (…faulty_attack.py:…)"
ATTACKS = (
    Fault("attack", "raises", failed(SAID + LINE)),
    Fault("attack", "cannot run", failed("InputError: attack 'faulty' needs another network")),
    Fault("attack", "hangs", WAITS),
    Fault("attack", "blocks signals", UNENDING),
    Fault("attack", "swallows its time limit", UNENDING),
    Fault("attack", "calls sys.exit", failed("SystemExit: 0" + LINE)),
    Fault("attack", "calls os._exit", LOST),
    Fault("attack", "is killed", LOST),
    Fault("attack", "raises MemoryError", failed("MemoryError" + LINE)),
    Fault("attack", "exceeds its memory", failed(NO_ROOM)),
    Fault("attack", "returns NaN", failed(f"{MADE} returned images with NaN or Inf in them")),
    Fault(
        "attack",
        "returns other shapes",
        failed(f"{MADE} returned images of shape (3, 7), not (M, 1, 8, 8)"),
    ),
)

SCORES = (
    Fault("score", "raises", Outcome("ok", f"…own measure: {SAID}…")),
    Fault("score", "hangs", Outcome("ok", "…own measure: OutOfTime: it waits and does not compute" + LINE)),
    Fault("score", "blocks signals", UNENDING),
    Fault("score", "calls sys.exit", Outcome("ok", "…own measure: SystemExit: 0…")),
    Fault("score", "calls os._exit", LOST),
    Fault("score", "raises MemoryError", Outcome("ok", "…own measure: MemoryError…")),
    Fault("score", "exceeds its memory", Outcome("ok", f"…own measure: {NO_ROOM}…")),
)
