"""The matrix: what is done wrong, and what becomes of it in a simulation and in a deployment."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """The status of the row, and the regular expression that its `detail` matches."""

    status: str
    reason: str = "^$"


@dataclass(frozen=True)
class Fault:
    """who: client, attack or score. does: what, a key of `misbehaving`. deployed: where it differs from simulated; of
    attacks and scores, which run beside the server, it does not."""

    who: str
    does: str
    simulated: Outcome
    deployed: Outcome | None = None

    @property
    def label(self) -> str:
        """As an attack of a scenario is called."""
        return f"{self.who}_{self.does.replace(' ', '_')}"

    def outcome(self, deployment: bool) -> Outcome:
        return self.deployed if deployment and self.deployed is not None else self.simulated


def failed(reason: str) -> Outcome:
    return Outcome("failed", reason)


def late(reason: str) -> Outcome:
    return Outcome("timeout", reason)


SAID = r"^RuntimeError: out of cheese in the \[/bold\] second line"
DIED = failed("^the client's process ended: killed, out of memory, or by its own exit$")
LOST = failed("^the attack's worker died: ")
NO_ROOM = r"(MemoryError|can't allocate memory|not enough memory)"
SILENT = late(r"^no reply within federation.timeout = \d+ s$")
UNENDING = late(r"^attack or score did not end after adversary.timeout = \d+ s: their worker was ended$")

CLIENTS = (
    Fault("client", "raises", failed(SAID)),
    Fault("client", "hangs", SILENT),
    Fault("client", "calls sys.exit", failed("^SystemExit: 0 ")),
    Fault("client", "calls os._exit", DIED),
    Fault("client", "is killed", DIED),
    Fault("client", "raises MemoryError", failed("^MemoryError")),
    Fault("client", "exceeds its memory", failed(NO_ROOM)),
    Fault("client", "sends other shapes", failed(r"^the client's reply has '.*' of float32 \(1, \d+\), sent was ")),
    Fault("client", "sends other types", failed("^the client's reply has '.*' of int32 .*, sent was float32 ")),
    Fault("client", "sends NaN", failed("^the client's reply holds NaN or Inf in ")),
    Fault("client", "sends Inf", failed("^the client's reply holds NaN or Inf in ")),
    Fault("client", "sends huge numbers", failed("^the client's reply holds numbers up to 1e[+]30 in ")),
    Fault("client", "sends no arrays", failed("^the client's reply has no record 'arrays'$")),
    Fault("client", "sends other names", failed("^the client's reply (lacks|has) the array ")),
    Fault("client", "says it has NaN images", failed("^the client's reply says num-examples = nan: ")),
    Fault("client", "sends back what it got", Outcome("ok")),
)

ATTACKS = (
    Fault("attack", "raises", failed(SAID)),
    Fault("attack", "cannot run", failed("^InputError: attack 'faulty' needs another network")),
    Fault("attack", "hangs", late(r"^no result within adversary.timeout = \d+ s")),
    Fault("attack", "blocks signals", UNENDING),
    Fault("attack", "swallows its time limit", UNENDING),
    Fault("attack", "calls sys.exit", failed("^SystemExit: 0")),
    Fault("attack", "calls os._exit", LOST),
    Fault("attack", "is killed", LOST),
    Fault("attack", "raises MemoryError", failed("^MemoryError")),
    Fault("attack", "exceeds its memory", failed(NO_ROOM)),
    Fault("attack", "returns NaN", failed("^ValueError: the attack returned images with NaN or Inf in them$")),
    Fault("attack", "returns other shapes", failed(r"^ValueError: the attack returned images of shape \(3, 7\), not ")),
)

SCORES = (
    Fault("score", "raises", Outcome("ok", r"own measure: RuntimeError: out of cheese")),
    Fault("score", "hangs", UNENDING),
    Fault("score", "calls sys.exit", Outcome("ok", "own measure: SystemExit: 0")),
    Fault("score", "calls os._exit", LOST),
    Fault("score", "raises MemoryError", Outcome("ok", "own measure: MemoryError")),
    Fault("score", "exceeds its memory", Outcome("ok", f"own measure: .*{NO_ROOM}")),
)
