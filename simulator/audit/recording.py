"""A recording of somebody's federation: a folder with the checkpoints and `recording.json`.

    recording.json    the format's number, who took part in which round, what could not be written
    checkpoints/      the files of a scenario (`CellStore`): global_0000.safetensors, client_00_round_0001.safetensors,
                      and one JSON for each observation of a threat model

It has no architecture: an attack on the recording gets the model from its user.
"""

from collections.abc import Mapping
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from attacks import InputError
from attacks.interface.observation import State
from clients.models.checkpoint import read_checkpoint
from simulator.results.disk import inside, read_json, read_model
from simulator.results.keys import ObservationKey
from simulator.results.storage import CellStore

FORMAT = 1
CONTENTS = "recording.json"


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class SeenClient(_Part):
    """A client as the server knows it.

    node: its node id.
    name: what it called itself in a reply, None if nothing.
    """

    node: int
    name: str | int | None = None


class RecordedRound(_Part):
    """A round that is kept.

    clients: the clients whose checkpoint is kept.
    images: the number of images that a client said it trained on.
    """

    round: int
    clients: tuple[int, ...]
    images: dict[int, int] = {}


class RecordingContents(_Part):
    """The content of `recording.json`.

    fedspill: the version that wrote it.
    clients: by the number that files and tables have for a client, in the order in which clients were first seen.
    problems: what could not be written down, and why.
    """

    format: int = FORMAT
    fedspill: str = Field(default_factory=partial(version, "fedspill"))
    strategy: str
    clients: dict[int, SeenClient]
    rounds: tuple[RecordedRound, ...]
    problems: tuple[str, ...] = ()


class Recording(CellStore):
    """A recording, opened for reading: the files of a scenario, and who took part.

    recording = Recording("runs/mine")
    for key in recording.observations():
        pairs = recording.pairs(key, like=model.state_dict())
    """

    def __init__(self, path: str | Path):
        """Open a recording; raise InputError if there is none, or one of another format."""
        super().__init__(Path(path))
        if not (self.path / CONTENTS).exists():
            near = [
                one.parent for one in (*self.path.glob(f"*/{CONTENTS}"), self.path.parent / CONTENTS) if one.exists()
            ]
            makes = (
                f"; did you mean {str(near[0])!r}?"
                if near
                else "; fedspill.Record makes one, or give a folder with round_1/global.pt, round_1/CLIENT.pt, …"
            )
            raise InputError(f"{str(path)!r} is no recording: it has no {CONTENTS}{makes}")
        content = read_json(inside(self.path, self.path / CONTENTS))
        if content.get("format") != FORMAT:
            raise InputError(
                f"recording {str(path)!r} has format {content.get('format')!r}, this fedspill reads {FORMAT}: "
                f"it was made by fedspill {content.get('fedspill')}, use that one"
            )
        self.contents = read_model(inside(self.path, self.path / CONTENTS), RecordingContents)
        self.clients, self.rounds = self.contents.clients, self.contents.rounds

    def __repr__(self) -> str:
        counts = f"{len(self.rounds)} rounds, {len(self.clients)} clients"
        return f"Recording({str(self.path)!r}: {self.contents.strategy}, {counts})"

    @cached_property
    def _keys(self) -> list[ObservationKey]:
        return self.observation_keys()

    def observations(self) -> list[ObservationKey]:
        """Return a key for each observation: of a round, client and threat model."""
        return list(self._keys)

    def pairs(self, key: ObservationKey, like: Mapping[str, Tensor] | None = None) -> tuple[tuple[State, State], ...]:
        """Return (sent, returned) for every round of an observation that is kept.

        like: the network's state dict, for checkpoints that were sent as lists of arrays without names.
        """
        recorded = self.recorded(key)
        states = {name: read_checkpoint(self.checkpoint_path(name), like) for name in recorded.files}
        return tuple((states[initial], states[final]) for initial, final in recorded.pairs)
