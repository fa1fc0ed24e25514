"""The settings of a client, validated: data, partition, model, local training, defenses."""

import functools
import json
import math
from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails
from torch import nn

from attacks.interface.errors import InputError
from clients.batch_norm import BatchNormMode

Fraction = Annotated[float, Field(gt=0, le=1)]
# larger values are slips of the finger, and are refused before memory is asked for them
Positive = Annotated[float, Field(gt=0, le=1e36)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Crowd = Annotated[int, Field(ge=1, le=10**6)]  # of rounds, of clients
Seconds = Annotated[float, Field(gt=0, le=365 * 86400)]  # at most a year: timers refuse far longer times


Made = TypeVar("Made")


def first_fault(error: ValidationError) -> ErrorDetails:
    """Return the first fault that pydantic found, its message without the name of an exception."""
    fault = error.errors()[0]
    return {**fault, "msg": fault["msg"].removeprefix("Value error, ")}


class ModelOptionError(InputError):
    """A key of the section `model` that its network does not have, or a wrong value. model: the network's name. error:
    pydantic's, its `loc` counted from the section. known: the network's options."""

    def __init__(self, model: str, error: Any, known: Sequence[str] = ()) -> None:
        self.model, self.error, self.known = model, error, tuple(known)
        key = ".".join(map(str, error["loc"]))
        options = f" (the options of model {model!r} are {', '.join(known)})" if known else ""
        super().__init__(f"model.{key} is {error['input']!r}: {error['msg']}{options}")


def as_json(values: dict[str, Any], called: str) -> str:
    """Return the values as JSON text, which pydantic reads strictly; raise InputError for one that is not plain."""
    try:
        return json.dumps(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{called} holds plain YAML values only: {error}") from None


@functools.lru_cache(maxsize=256)
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Return the adapter of a type: making one takes milliseconds, and every cell of a sweep needs the same few."""
    return TypeAdapter(kind)


def made_with(kind: type[Made], called: str, options: dict[str, Any]) -> Made:
    """Make a dataclass with type-checked options; InputError names the wrong option. called: its name in errors."""
    for option, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{called}: option {option!r} is {value}: it has to be finite")
    text = as_json(options, called)
    try:
        made: Made = adapter_of(cast(Hashable, kind)).validate_json(text, strict=True)
        return made
    except ValidationError as error:
        fault = first_fault(error)
        option = f"{called}: option {fault['loc'][0]!r} is {fault['input']!r}: " if fault["loc"] else ""
        raise InputError(f"{option}{fault['msg']}") from None


class Section(BaseModel):
    """A section of a scenario: immutable, no unknown keys, no numbers from strings, no NaN or Inf."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=(), allow_inf_nan=False)


class DataConfig(Section):
    """Which images, how they are split and what has to be predicted."""

    name: str = Field("digits", description="a data set of the list below, or OWNER/NAME of the Hugging Face hub")
    root: str | None = Field(None, description="folder (or npz file) that holds the data")
    task: str | dict[str, list[int | str]] | None = Field(
        None, description="odd_even, animal_vehicle, or {group: [classes]}; default: the classes themselves"
    )
    public: Count = Field(500, description="images of the public pool, disjoint from every client")
    test: Count = Field(500, description="test images, at most; measures utility")
    mean: Literal["public", "none"] | list[float] = Field(
        "public", description="per-channel mean that every client subtracts: of the public pool, none, or given"
    )
    std: list[Positive] = Field(
        default_factory=list,
        description="per-channel standard deviation that clients then divide by, e.g. [0.3081]; default none",
    )
    image_column: str = Field("image", description="hub data sets: column of the images")
    label_column: str = Field("label", description="hub data sets: column of the labels")


class PartitionConfig(Section):
    """How private images are spread over clients (flwr-datasets)."""

    kind: Literal["exact", "balanced", "iid", "dirichlet", "pathological"] = Field(
        "exact",
        description="exact: as many images of each client as `images` says, drawn at random; balanced: the same with "
        "equally many of every group, to within one; iid, dirichlet, pathological: all images, as flwr-datasets "
        "spreads them",
    )
    images: Count | list[Count] | None = Field(
        None,
        description="exact, balanced: images of each client (default 8); other kinds: limit for each client",
    )
    alpha: Positive = Field(0.5, description="dirichlet: concentration")
    classes: Count = Field(2, description="pathological: classes per client")

    def images_of(self, client: int) -> int | None:
        """Return the number (exact, balanced) or the limit (otherwise) of one client's images; None for no limit."""
        if isinstance(self.images, list):
            return self.images[client]
        return self.images or (8 if self.fixed_size else None)

    @property
    def fixed_size(self) -> bool:
        """Whether `images` is the number of images of each client, not the limit."""
        return self.kind in ("exact", "balanced")


class TrainingConfig(Section):
    """Local training: what a client does with a checkpoint it receives."""

    loss: Literal["cross_entropy", "mse", "hinge"] = "cross_entropy"
    coding: tuple[float, float] | None = Field(
        None,
        description="mse: target of the other classes and of the right one; default −1, 1 (one output) or −0.1, 0.9",
    )
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: Positive = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    epochs: Count | None = Field(
        None, description="passes over the client's images; default 5, where steps is not given"
    )
    steps: Count | None = Field(None, description="optimizer steps instead of epochs")
    batch_size: Count | None = Field(None, description="images per step; default: all of them")
    stop_at_loss: Positive | None = Field(None, description="stop when the mean loss of an epoch falls below this")
    batch_norm: BatchNormMode = Field(
        "train",
        description="train: BatchNorm normalizes with statistics of the batch and moves its running ones, which are "
        "returned with the update; eval: it normalizes with those received and keeps them",
    )
    dynamics: Literal["standard", "linearized"] = Field(
        "standard",
        description="linearized: around the checkpoint received; BatchNorm has to be in eval",
    )
    autocast: Literal["bfloat16"] | None = Field(
        None,
        description="mixed precision: torch computes products of matrices, forwards and backwards, in this type; "
        "parameters, the optimizer and checkpoints stay float32",
    )

    @model_validator(mode="after")
    def _one_length(self) -> "TrainingConfig":
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps exclude each other: give one of them")
        if self.optimizer != "sgd" and self.momentum:
            raise ValueError(f"momentum belongs to sgd, not to {self.optimizer}: remove it")
        return self


class ModelOptions(Section):
    """The options of a built-in network, as fields of a subclass, which builds the network."""

    @abstractmethod
    def build(self, shape: tuple[int, int, int], outputs: int) -> nn.Module:
        """Build the network for images of this shape (C, H, W), with outputs (N, outputs); it is initialized later."""


class PretrainConfig(TrainingConfig):
    """Training on public images before the first round."""

    data: DataConfig | None = Field(
        None,
        description="other public images, `data.public` of them, scaled to the federation's size; their classes get a "
        "last layer of their own, which is dropped; default: the federation's public pool",
    )
    folder: str | None = Field(None, description="keeps the weights for further runs; default: the run's own directory")


class ModelConfig(Section):
    """The network of the federation: its name, the options of that network beside it, and what all networks share."""

    name: str = Field("mlp", description="a network of the list below, or your own package.module:NAME or FILE.py:NAME")
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="options of a built-in network, which may also stand beside `name`; keyword arguments of your own "
        "factory, which may not",
    )
    outputs: Count | None = Field(None, description="default: 1 for two groups under mse or hinge, else one per class")
    initialization: Literal["lecun_truncated", "lecun", "own"] | None = Field(
        None, description="default lecun_truncated (as Flax); for your own factory `own`"
    )
    precision: Literal["float32", "float64"] = Field("float32", description="of parameters, training and checkpoints")
    checkpoint: str | None = Field(
        None, description="file that the federation starts from: safetensors, a .pt or .pth state dict, or npz"
    )
    replace_head: bool = Field(False, description="draw the last linear layers anew after checkpoint and pretraining")
    pretrain: PretrainConfig | None = Field(None, description="train on public images before the first round")
    frozen: list[str] = Field(default_factory=list, description="names, with * and ?, of parameters not to train")

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, values: Any) -> Any:
        """Accept `{name: mlp, width: 64}` as the resolved form, `{name: mlp, options: {width: 64}}`."""
        if not isinstance(values, dict):
            return values
        name, given = values.get("name", "mlp"), values.get("options", {})
        beside = {key: value for key, value in values.items() if key not in cls.model_fields}
        if not isinstance(name, str) or not isinstance(given, dict):
            return values
        if ":" in name:
            for option, value in beside.items():
                reason = "your own factory takes its keyword arguments under model.options"
                raise ModelOptionError(name, {"type": "value_error", "loc": (option,), "msg": reason, "input": value})
            return values
        shared = {key: value for key, value in values.items() if key not in beside}
        options = {key: value for key, value in {**given, **beside}.items() if value is not None}
        return {**shared, "options": options}

    def without_initial_weights(self) -> "ModelConfig":
        """Return the network without the origin of its weights, for receivers of the weights."""
        return self.model_copy(update={"checkpoint": None, "pretrain": None})

    def with_options(self, **options: Any) -> "ModelConfig":
        """Return the network with some of its own options changed."""
        return self.model_copy(update={"options": {**self.options, **options}})


class NamedSection(Section):
    """A section that may be written as its name alone; subclasses have the fields `name`, `label` and `options`."""

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, values: Any) -> Any:
        """Accept `clipping` and `{name: clipping, norm: 1}` as the resolved form."""
        if isinstance(values, str):
            values = {"name": values}
        if not isinstance(values, dict) or not isinstance(values.get("name"), str):
            return values
        shared = {key: value for key, value in values.items() if key in cls.model_fields}
        beside = {key: value for key, value in values.items() if key not in shared}
        given = values.get("options", {})
        options = {**given, **beside} if isinstance(given, dict) else given
        return {"label": cls.default_label(shared), **shared, "options": options}

    @classmethod
    def default_label(cls, values: dict[str, Any]) -> str:
        """Return the default name in tables. values: of its fields, as they were written."""
        return str(values["name"]).rpartition(":")[2]


class DefenseConfig(NamedSection):
    """One defense: its name, or the import path of a Flower mod, its options beside it, and a label for the tables."""

    name: str
    label: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.=-]*$")
    options: dict[str, Any] = Field(default_factory=dict)


class ClientConfig(Section):
    """All that the server tells a client; sent as one JSON string with every checkpoint."""

    seed: int
    clients: Crowd
    data: DataConfig
    partition: PartitionConfig
    model: ModelConfig
    training: TrainingConfig
    defenses: list[DefenseConfig] = []
    rounds: Crowd = Field(1, description="of the federation: a privacy budget is spread over them")
    fraction: Fraction = Field(1.0, description="of the clients in each round")
    cell: str = Field("", description="which cell of a sweep this is: the key for what a client keeps between rounds")
    use_gpu: bool = False
    threads: Count = 1
