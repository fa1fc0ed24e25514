"""What a client needs to know, validated: data, partition, model, local training, defenses."""

import json
import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from attacks.interface.errors import InputError, nearest

if TYPE_CHECKING:
    from clients.defenses import Defense

Fraction = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=365 * 86400)]  # at most a year: timers take no more than a time of day can


Made = TypeVar("Made")


def as_json(values: dict[str, Any], called: str) -> str:
    """The values for pydantic's strict reading of JSON; InputError, of what is `called` so, where one is no plain YAML
    value (a set, bytes, or a mapping whose keys are no text, a list in
    itself)."""
    try:
        return json.dumps(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{called} holds plain YAML values only: {error}") from None


def made_with(kind: type[Made], called: str, options: dict[str, Any]) -> Made:
    """A dataclass made with type-checked options; InputError names the option that is wrong, of what is `called` so."""
    for option, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{called}: option {option!r} is {value}: it has to be finite")
    text = as_json(options, called)
    try:
        return TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        wrong = error.errors()[0]
        message = wrong["msg"].removeprefix("Value error, ")
        option = f"option {wrong['loc'][0]!r} is {wrong['input']!r}: " if wrong["loc"] else ""
        raise InputError(message if not option else f"{called}: {option}{message}") from None


class Section(BaseModel):
    """A section of a scenario: immutable, no unknown keys, no numbers from strings, none that JSON cannot hold."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=(), allow_inf_nan=False)


class DataConfig(Section):
    """Which images, how they are split and what has to be predicted."""

    name: str = Field(
        "digits",
        description="digits, mnist, fashion_mnist, cifar10, tiny_imagenet, folder, npz, or OWNER/NAME of the hub",
    )
    root: str | None = Field(None, description="folder (or npz file) that holds the data")
    task: str | dict[str, list[int | str]] | None = Field(
        None, description="odd_even, animal_vehicle, or {group: [classes]}; default: the classes themselves"
    )
    public: Count = Field(500, description="images of the public pool, disjoint from every client")
    test: Count = Field(500, description="test images, at most; measures utility")
    mean: Literal["public", "none"] | list[float] = Field(
        "public", description="per-channel mean that every client subtracts: of the public pool, none, or given"
    )
    image_column: str = Field("image", description="hub data sets: column of the images")
    label_column: str = Field("label", description="hub data sets: column of the labels")


class PartitionConfig(Section):
    """How private images are spread over clients (flwr-datasets)."""

    kind: Literal["exact", "balanced", "iid", "dirichlet", "pathological"] = Field(
        "exact", description="balanced: exact, with equally many images of every group, to within one"
    )
    images: Count | list[Count] | None = Field(
        None,
        description="exact, balanced: images of each client (default 8); else at most so many of each share",
    )
    alpha: Positive = Field(0.5, description="dirichlet: concentration")
    classes: Count = Field(2, description="pathological: classes per client")

    def images_of(self, client: int) -> int | None:
        """The number (exact, balanced) or the limit (otherwise) of one client's images; None: no limit."""
        if isinstance(self.images, list):
            return self.images[client]
        return self.images or (8 if self.fixed_size else None)

    @property
    def fixed_size(self) -> bool:
        """Whether `images` says how many each client has, not at most how many."""
        return self.kind in ("exact", "balanced")


class TrainingConfig(Section):
    """Local training: what a client does with a checkpoint it receives."""

    loss: Literal["cross_entropy", "mse", "hinge"] = "cross_entropy"
    coding: tuple[float, float] | None = Field(
        None,
        description="target of the other classes and of the right one; default −1, 1 (one output) or −0.1, 0.9",
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
    dynamics: Literal["standard", "linearized"] = "standard"

    @model_validator(mode="after")
    def _one_length(self) -> "TrainingConfig":
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps exclude each other: give one of them")
        if self.optimizer != "sgd" and self.momentum:
            raise ValueError(f"momentum belongs to sgd, not to {self.optimizer}: remove it")
        return self


class PretrainConfig(TrainingConfig):
    """Training on public images before the first round. BatchNorm learns its statistics here."""

    data: DataConfig | None = Field(
        None,
        description="other public images, `data.public` of them, scaled to the federation's size; their classes get a "
        "last layer of their own, which is dropped; default: the federation's public pool",
    )
    folder: str | None = Field(None, description="keeps the weights for further runs; default: the run's own directory")


class ModelConfig(Section):
    """The network of the federation."""

    name: str = Field("mlp", description="mlp, lenet5, resnet18, or your own package.module:factory or FILE.py:factory")
    options: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of your own factory")
    outputs: Count | None = Field(None, description="default: 1 for two groups under mse or hinge, else one per class")
    depth: Annotated[int, Field(ge=0)] = Field(2, description="mlp: hidden layers")
    width: Count = Field(512, description="mlp: units of a hidden layer")
    bias: bool = True
    bottleneck: Count | None = Field(None, description="mlp: units of its middle hidden layer; default as the others")
    activation: Literal["relu", "tanh", "sigmoid", "softplus", "gelu", "softmax", "maxout"] = "relu"
    output_activation: Literal["linear", "sigmoid", "tanh", "softmax"] = "linear"
    parameterization: Literal["standard", "ntk"] = "standard"
    multiplier: Count = Field(1, description="lenet5: width multiplier")
    channels: Count = Field(64, description="resnet18: channels of the first stage; 64 is the published network")
    initialization: Literal["lecun_truncated", "lecun", "own"] | None = Field(
        None, description="default lecun_truncated (as Flax), and `own` for your own factory"
    )
    head: list[Count] = Field([], description="resnet18: units of hidden layers in its head; as published, none")
    precision: Literal["float32", "float64"] = Field("float32", description="of parameters, training and checkpoints")
    checkpoint: str | None = Field(
        None, description="file that the federation starts from: safetensors, or a .pt or .pth state dict"
    )
    replace_head: bool = Field(False, description="draw the last linear layers anew after checkpoint and pretraining")
    pretrain: PretrainConfig | None = Field(None, description="train on public images before the first round")
    frozen: list[str] = Field(
        default_factory=list, description="parameter names, with * and ?, that clients leave alone"
    )

    def without_initial_weights(self) -> "ModelConfig":
        """The same network without where its weights come from: for those who are given them."""
        return self.model_copy(update={"checkpoint": None, "pretrain": None})


class DefenseConfig(Section):
    """One defense: its name, or the import path of a Flower mod, its options beside it, and a label for the tables."""

    name: str
    label: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.=-]*$")
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, values: Any) -> Any:
        """`clipping`, `{name: clipping, norm: 1}` and the resolved form all mean the same."""
        if isinstance(values, str):
            values = {"name": values}
        if not isinstance(values, dict) or not isinstance(values.get("name"), str):
            return values
        options = {key: value for key, value in values.items() if key not in ("name", "label", "options")}
        given = values.get("options", {})
        return {
            "name": values["name"],
            "label": values.get("label", values["name"].rpartition(":")[2]),
            "options": {**given, **options} if isinstance(given, dict) else given,
        }

    @model_validator(mode="after")
    def _known(self) -> "DefenseConfig":
        self.make()
        return self

    def make(self) -> "Defense":
        """The defense with its options type-checked; InputError names what is wrong."""
        from clients.defenses import DEFENSES  # defenses know what a client's configuration is
        from clients.defenses.flower_mod import FlowerMod

        if ":" in self.name:
            return FlowerMod(self.name, self.options)
        if self.name not in DEFENSES:
            raise InputError(
                f"unknown defense {self.name!r}{nearest(self.name, sorted(DEFENSES))} "
                "(a Flower mod is named package.module:mod)"
            )
        known = [field for field in DEFENSES[self.name].__dataclass_fields__ if field != "name"]
        for option in self.options:
            if option not in known:
                raise InputError(f"defense {self.name!r} has no option {option!r}{nearest(option, known)}")
        return made_with(DEFENSES[self.name], f"defense {self.name!r}", self.options)


class ClientConfig(Section):
    """All that the server tells a client; sent as one JSON string with every checkpoint."""

    seed: int
    clients: Count
    data: DataConfig
    partition: PartitionConfig
    model: ModelConfig
    training: TrainingConfig
    defenses: list[DefenseConfig] = []
    rounds: Count = Field(1, description="of the federation: a privacy budget is spread over them")
    fraction: Fraction = Field(1.0, description="of the clients in each round")
    cell: str = Field("", description="which cell of a sweep this is: the key for what a client keeps between rounds")
    use_gpu: bool = False
    threads: Count = 1
