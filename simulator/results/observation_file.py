"""What the JSON file of an observation holds, checked when it is read: a run directory may come by mail."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from attacks import InputError
from clients.defenses.differential_privacy.guarantee import Adversary, Guarantee
from simulator.results.keys import ObservationKey, RecordedObservation


class ObservationFile(BaseModel):
    """As `CellStore.save_observation` writes it. knowledge: fields of `Knowledge`, its own checks come later."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    round: int
    client: int
    threat_model: str
    clients: tuple[int, ...]
    round_clients: tuple[int, ...]
    pairs: tuple[tuple[str, str], ...] = Field(min_length=1)
    knowledge: dict[str, Any]
    defense_facts: dict[str, Any] = {}
    adversary: Adversary = "server"
    guarantees: tuple[Guarantee, ...] = ()

    @classmethod
    def of(cls, content: dict[str, Any], path: str) -> "ObservationFile":
        """InputError, with the name of the file, for what is no observation."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(map(str, wrong["loc"]))
            raise InputError(f"{path!r} is damaged: {where}: {wrong['msg'].lower()}") from None

    @property
    def key(self) -> ObservationKey:
        return ObservationKey(self.round, self.client, self.threat_model)

    @property
    def recorded(self) -> RecordedObservation:
        """What was written down of it, without what was granted."""
        return RecordedObservation(
            self.key, self.pairs, self.clients, self.round_clients, self.defense_facts, self.adversary, self.guarantees
        )
