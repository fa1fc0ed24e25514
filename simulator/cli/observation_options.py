"""What `fedspill attack`, `member` and `diagnose` look at: two checkpoints, or a recorded observation of a run."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from attacks.interface.errors import InputError

if TYPE_CHECKING:
    from attacks import Knowledge, Observation
    from simulator.results.record import Record


class LoadedObservation(NamedTuple):
    """The observation, what its adversary was granted, and the run it is of; None beside two checkpoints."""

    observation: "Observation"
    knowledge: "Knowledge"
    record: "Record | None"


@dataclass(frozen=True)
class ObservationOptions:
    """The options that name an observation, as they were typed."""

    model: Annotated[str | None, typer.Option(metavar="FILE.py:FACTORY", help="returns the nn.Module")] = None
    initial: Annotated[Path | None, typer.Option(help="checkpoint sent (safetensors state dict)")] = None
    final: Annotated[Path | None, typer.Option(help="checkpoint returned (safetensors state dict)")] = None
    shape: Annotated[str | None, typer.Option(help="of an input image: channels,height,width")] = None
    run: Annotated[Path | None, typer.Option(help="a recorded run instead of two checkpoints")] = None
    round: Annotated[int, typer.Option(help="with --run")] = 1
    client: Annotated[int, typer.Option(help="with --run; -1 is the union of a round's clients")] = -1
    threat_model: Annotated[str | None, typer.Option(help="with --run; default server, for -1 observer")] = None
    cell: Annotated[str, typer.Option(help="with --run: which cell of a sweep")] = ""
    know: Annotated[list[str] | None, typer.Option(metavar="FIELD=VALUE", help="what the adversary is told")] = None

    def observe(self) -> LoadedObservation:
        """Load it. --know replaces what the adversary of a run was told."""
        from simulator.adversary.threat_models import default_threat_model
        from simulator.results.keys import subject_of
        from simulator.results.record import Record
        from simulator.tools.attack_pair import observe_pair, parse_knowledge

        knowledge = parse_knowledge(self.know or [])
        pair = {"--model": self.model, "--initial": self.initial, "--final": self.final, "--shape": self.shape}
        if self.run is None:
            return LoadedObservation(observe_pair(self.model, self.initial, self.final, self.shape), knowledge, None)
        if given := ", ".join(option for option, value in pair.items() if value is not None):
            raise InputError(f"--run {str(self.run)!r} brings its model and checkpoints: leave out {given}, or --run")
        record = Record(self.run)
        threat_model = self.threat_model or default_threat_model(subject_of(self.client))
        observation, granted = record.observation(self.round, self.client, threat_model, self.cell)
        return LoadedObservation(observation, knowledge if self.know else granted, record)


def with_observation_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with a parameter `which` has the options of ObservationOptions in its place on the command line."""
    own = [parameter for name, parameter in signature(command).parameters.items() if name != "which"]
    options = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in signature(ObservationOptions).parameters.values()]

    @wraps(command)
    def with_options(**given: Any) -> None:
        which = ObservationOptions(**{field.name: given.pop(field.name) for field in fields(ObservationOptions)})
        command(which=which, **given)

    shown = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in own]
    vars(with_options)["__signature__"] = signature(command).replace(parameters=shown + options)
    with_options.__annotations__ = {p.name: p.annotation for p in shown + options}
    return with_options
