"""Types of `import fedspill`, installed as `fedspill-stubs`: a module of one file carries no `py.typed` (PEP 561)."""

from attacks import Attack as Attack
from attacks import InputError as InputError
from attacks import Knowledge as Knowledge
from attacks import Observation as Observation
from attacks import Reconstruction as Reconstruction
from attacks import get_attack as get_attack
from simulator.audit.record import Record as Record
from simulator.audit.run_audit import audit as audit
from simulator.rundir.run import Run as Run
from simulator.rundir.run import load as load

__version__: str

def attack(
    name: str,
    observation: Observation,
    knowledge: Knowledge | None = None,
    seed: int = 0,
    **options: object,
) -> Reconstruction: ...
def main() -> None: ...
