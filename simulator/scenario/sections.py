"""The sections of a scenario beside those that describe the clients (`clients.config`)."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator, model_validator

from attacks import ATTACKS, Attack, Knowledge
from attacks.base import check_options
from attacks.interface.errors import did_you_mean
from clients.config import Count, Crowd, Fraction, NamedSection, Positive, Seconds, Section, made_with
from simulator.results.threat_models import ThreatModelName

# of flwr.serverapp.strategy, by the beginning of their names: they clip, sort or compare the updates of single clients
NEED_SINGLE_UPDATES = (
    *("DifferentialPrivacyServerSide", "FedMedian", "FedTrimmedAvg"),
    *("Krum", "MultiKrum", "Bulyan", "QFedAvg"),
)
PLAIN_MEAN = ("FedAvg", "FedProx")
Threads = Annotated[int, Field(ge=1, le=1024)]
WEIGHT = "num-examples"  # of a client in the mean: the number of its images


class StrategyConfig(Section):
    """A Flower strategy by its class name, with keyword arguments of its constructor."""

    name: str = Field("FedAvg", description="any strategy of flwr.serverapp.strategy that aggregates tensors")
    options: dict[str, Any] = Field(
        default_factory=dict, description="its keyword arguments; `strategy` names the one that it wraps, if it does"
    )

    @property
    def needs_single_updates(self) -> str:
        """The name of the strategy, of itself and those inside it, that needs each client's update; else ""."""
        if self.name.startswith(NEED_SINGLE_UPDATES):
            return self.name
        wrapped = self.options.get("strategy")
        return StrategyConfig.model_validate(wrapped).needs_single_updates if wrapped else ""

    @property
    def plain_mean(self) -> bool:
        """Whether the global checkpoint becomes the mean of the replies, weighted by images."""
        return self.name in PLAIN_MEAN and self.options.get("weighted_by_key", WEIGHT) == WEIGHT

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class FederationConfig(Section):
    """Rounds, clients, and how their updates are aggregated."""

    rounds: Crowd = 2
    clients: Crowd = 3
    fraction: Fraction = Field(1.0, description="share of the clients that trains in a round")
    strategy: StrategyConfig = Field(StrategyConfig(), description="a Flower strategy: its name, or {name, options}")
    timeout: Seconds = Field(
        600.0,
        description="processor seconds that a client may take in a round, all threads together; one that waits as long "
        "without computing is ended too. In a deployment the server waits as many seconds by the clock",
    )
    max_failures: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="stop the run when more than this share of a round's clients fails"
    )

    @property
    def clients_a_round(self) -> int:
        """How many train in a round; where each throws a coin, about as many."""
        return max(1, int(self.clients * self.fraction))


class EngineConfig(Section):
    """Where it runs. Clients are Ray actors; attacks are Ray tasks on the same cluster."""

    cpus: Positive = Field(1.0, description="CPU share of one client")
    gpus: Annotated[float, Field(ge=0)] | None = Field(
        None, description="GPU share of one client; default: 0.3 where there is a GPU, else 0"
    )
    address: str | None = Field(None, description="an existing Ray cluster; default: one of our own on this machine")
    attack_workers: Threads | None = Field(None, description="attacks at a time; default: the number of CPU cores")
    threads: Threads = Field(1, description="torch threads of each client and attack")


class AttackConfig(NamedSection):
    """One attack of the adversary: its name, its options beside it, and a label where a name occurs twice."""

    name: str = Field(description="of the attack")
    label: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="how tables call it; default: its name, of an adaptive one NAME-adaptive",
    )
    adaptive: bool = Field(
        False,
        description="whether it is told which defense is in force: noise, entries left out, quantization, clip bound",
    )
    optional: bool = Field(
        False, description="whether it is left out where it cannot run, with a row `skipped` that says why"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="of the attack; also beside `name`")

    @classmethod
    def default_label(cls, values: dict[str, Any]) -> str:
        name = values["name"]
        if ":" in name:  # at an import path: what the class calls itself
            name = getattr(ATTACKS.find(name), "name", name.rpartition(":")[2])
        return f"{name}-adaptive" if values.get("adaptive") is True else name

    @model_validator(mode="after")
    def _known(self) -> "AttackConfig":
        self.make()
        return self

    def make(self) -> Attack:
        """Return the attack with its options type-checked; InputError names the option that is wrong."""
        check_options(self.name, self.options)
        return made_with(ATTACKS.find(self.name), f"attack {self.name!r}", self.options)


# What runs where no attack is named: seconds where span applies, and a short search that applies everywhere.
DEFAULT_ATTACKS = ({"name": "span", "optional": True}, {"name": "ntk", "kernel": "hybrid", "iterations": 1000})

# Every client normalizes pixels of this range, so whoever takes part knows how.
PARTICIPANTS_KNOW = {"pixel_mean": True, "pixel_std": True, "pixel_range": True}


class AdversaryConfig(Section):
    """Who looks at what, with which attacks, knowing what."""

    threat_models: list[ThreatModelName] = Field(
        ["server"],
        min_length=1,
        description="server: what each client returned; observer: the global models before and after a round; history: "
        "all rounds so far at once, for each of these two that is named, or for the server alone; server_history: the "
        "same for the server, whoever is named",
    )
    attacks: list[AttackConfig] = Field(
        default_factory=lambda: list(map(AttackConfig.model_validate, DEFAULT_ATTACKS)),
        min_length=1,
        description="names, or {name, label, options …}; default span where it applies, and a short ntk, which "
        "needs num_private behind convolutions and in transformers",
    )
    knowledge: dict[str, Any] = Field(
        default_factory=PARTICIPANTS_KNOW.copy,
        description="a list of fields to grant, or field: true to grant the true value, false to withhold it, or the "
        "value the adversary believes; pixel_mean, pixel_std and pixel_range, which every participant knows, are "
        "granted unless they are withheld",
    )
    when: Literal["every"] | list[Count] = Field("every", description="rounds to attack: every, or a list")
    timeout: Seconds = Field(
        3600.0,
        description="processor seconds that one attack may take, all threads together; one that waits as long without "
        "computing is ended too. An attack that ran out of time is tried again by the same command, with another limit "
        "where that is set",
    )

    @model_validator(mode="before")
    @classmethod
    def _granted_by_name(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        given = values.get("knowledge")
        if isinstance(given, list):
            given = {str(name): True for name in given}
        return {**values, "knowledge": PARTICIPANTS_KNOW | given} if isinstance(given, dict) else values

    @model_validator(mode="after")
    def _consistent(self) -> "AdversaryConfig":
        for name in self.knowledge:
            if name not in Knowledge.names():
                raise ValueError(f"unknown knowledge {name!r}{did_you_mean(name, Knowledge.names())}")
        labels = [attack.label for attack in self.attacks]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"two attacks are called {label!r}: give each a `label` of its own")
        return self

    def attacks_in(self, round: int) -> bool:
        return self.when == "every" or round in self.when


class KeepLast(Section):
    """The last rounds. Older checkpoints are removed while the run goes on, each as soon as no attack will read it."""

    last: Count = Field(description="how many of them")


def _which_rounds(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Raise one error, whichever of the three was meant."""
    try:
        return validate(value)
    except ValidationError:
        raise ValueError("write attacked, all, or {last: K} for the last K rounds, K at least 1") from None


class OutputConfig(Section):
    """What a run writes, and where."""

    root: str = Field("runs", description="folder of run directories, where --out names none")
    figures: bool = True
    keep: Annotated[Literal["attacked", "all"] | KeepLast, WrapValidator(_which_rounds)] = Field(
        "attacked", description="checkpoints of which rounds: those that some attack reads, all, or {last: K}"
    )
    track: list[Literal["mlflow", "wandb"]] = Field(
        default_factory=list, description="where rows are sent as they come, beside the tables: mlflow, wandb"
    )
    diagnostics: bool = Field(True, description="whether rows say how linear the network was along the update")
