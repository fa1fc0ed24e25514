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


class Seen(NamedTuple):
    """The observation, what its adversary knows, and the run it is of; None beside two checkpoints."""

    observation: "Observation"
    knowledge: "Knowledge"
    record: "Record | None"


@dataclass(frozen=True)
class Target:
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

    def observe(self) -> Seen:
        """Load it. --know replaces what the adversary of a run was told."""
        from simulator.results.record import Record
        from simulator.tools.attack_pair import observe_pair, parse_knowledge

        knowledge = parse_knowledge(self.know or [])
        pair = {"--model": self.model, "--initial": self.initial, "--final": self.final, "--shape": self.shape}
        if self.run is None:
            return Seen(observe_pair(self.model, self.initial, self.final, self.shape), knowledge, None)
        if given := ", ".join(option for option, value in pair.items() if value is not None):
            raise InputError(f"--run {str(self.run)!r} brings its model and checkpoints: leave out {given}, or --run")
        record = Record(self.run)
        observation, told = record.observation(self.round, self.client, self.seen_by, self.cell)
        return Seen(observation, knowledge if self.know else told, record)

    @property
    def seen_by(self) -> str:
        """The threat model: the server sees clients, an observer the union of a round's (-1)."""
        return self.threat_model or ("server" if self.client >= 0 else "observer")


def takes_target(command: Callable[..., None]) -> Callable[..., None]:
    """A command with a parameter `target` has the options of Target in its place on the command line."""
    own = [parameter for name, parameter in signature(command).parameters.items() if name != "target"]
    options = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in signature(Target).parameters.values()]

    @wraps(command)
    def with_options(**given: Any) -> None:
        target = Target(**{field.name: given.pop(field.name) for field in fields(Target)})
        command(target=target, **given)

    shown = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in own]
    vars(with_options)["__signature__"] = signature(command).replace(parameters=shown + options)
    with_options.__annotations__ = {p.name: p.annotation for p in shown + options}
    return with_options
