"""Plan an audit: check what a user says of a recording before anything is written."""

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attacks import InputError, Knowledge, Observation
from attacks.interface.errors import did_you_mean
from attacks.interface.normalization import Normalization
from attacks.interface.observation import State
from attacks.interface.plugins import allow_code
from attacks.networks.probing import biases_without_gradient
from clients.config import ModelConfig, first_fault
from clients.models.factory import check_left_out, construct, count_scores
from simulator.audit import TIMEOUT
from simulator.audit.owners import (
    AuditTruth,
    describe_names,
    describe_owners,
    doubt_owners,
    owners_by_name,
    owners_by_update,
    owners_said,
)
from simulator.audit.recording import Recording
from simulator.evaluation.candidate_images import AuditCandidates, check_candidates
from simulator.evaluation.image_files import Shape, read_images, read_truth
from simulator.evaluation.job import JobSettings
from simulator.results.disk import contents_digest
from simulator.results.keys import ALL, ObservationKey, owner
from simulator.results.storage import make_knowledge
from simulator.scenario.sections import AttackConfig

OPERATIONS = 1e11  # that a short `ntk` may take: five to ten seconds of one core
PASSES = 48  # forward passes that an iteration on one candidate costs: two tangent kernels, and their gradients
CANDIDATES = 2  # for each private image
FEWEST, MOST = 50, 2_000  # iterations
ASSUMED_IMAGES = 16  # where nobody tells how many there are
FIRST = "mean_image"  # a baseline
# layers whose initial weights PyTorch draws from ±1/√(inputs of a unit)
DRAWN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def default_attacks(
    model: nn.Module, shape: Shape, most_images: int, members: bool = False
) -> tuple[AttackConfig, ...]:
    """Return `span`, and an `ntk` of about ten seconds. It counts operations, not seconds, so that the same audit gives
    the same tables.

    most_images: of a client, 0 if unknown. members: whether candidates are given. Every row tells them from others, and
    that of `mean_image`, which takes no time, comes first.
    """
    candidates, counter = CANDIDATES * (most_images or ASSUMED_IMAGES), FlopCounterMode(display=False)
    with torch.no_grad(), counter:  # of a forward pass on one image
        model(torch.zeros(1, *shape, dtype=next(model.parameters()).dtype))
    iterations = int(OPERATIONS / (max(1, counter.get_total_flops()) * PASSES * candidates))
    short = {"name": "ntk", "iterations": min(MOST, max(FEWEST, iterations))}
    names: list[Mapping[str, Any]] = [{"name": FIRST}] * members + [{"name": "span"}, short]
    return tuple(AttackConfig.model_validate(one) for one in names)


MOST_CHANNELS, LONGEST_SIDE = 4, 8  # of pictures; the side is in units of the other one
IMAGES = ("truth", "public", "candidates")  # options that name images


@dataclass(frozen=True)
class AuditOptions:
    """The options of an audit, as `fedspill.audit` explains them and `audit.yaml` describes them. Paths are absolute;
    what was not given is empty or None.

    knowledge: there `know`.
    """

    recording: str
    model: str
    shape: Shape
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    truth: str | None = None
    owners: Mapping[str, str] | None = None
    public: str | None = None
    candidates: str | None = None
    attacks: tuple[AttackConfig, ...] = ()
    knowledge: Mapping[str, Any] | None = None
    rounds: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    threat_models: tuple[str, ...] = ()
    seed: int = 0

    @classmethod
    def of(cls, model: str, **others: Any) -> "AuditOptions":
        """Make paths absolute: workers have folders of their own. Raise InputError for images that cannot be used."""
        file, colon, factory = model.rpartition(":")
        model = f"{absolute(file)}:{factory}" if colon and file.endswith(".py") else model
        paths = {name: absolute(others.get(name)) for name in IMAGES}
        options = cls(model=model, **others | paths)
        check_order(options.shape)
        check_mean(options.mean, f"mean {', '.join(map(str, options.mean))}")
        _check_images(options)
        return options

    @classmethod
    def described_by(cls, content: Mapping[str, Any]) -> "AuditOptions":
        """Return the options of a description; raise InputError if the images are no longer there."""
        plain: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in content.items()}
        return cls.of(**plain | {"attacks": tuple(map(attack_of, content["attacks"]))})

    def described(self) -> dict[str, Any]:
        """Return the options as plain values."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        if not plain["owners"]:
            del plain["owners"]
        return plain | {"attacks": [attack.model_dump(mode="json") for attack in self.attacks]}


@dataclass(frozen=True)
class AuditPlan:
    """An audit that has passed every check, and where it will be written."""

    options: AuditOptions
    recording: Recording
    model: nn.Module
    attacks: tuple[AttackConfig, ...]
    keys: tuple[ObservationKey, ...]
    out: Path

    @classmethod
    def of(cls, options: AuditOptions, out: Path) -> "AuditPlan":
        """Check the options; InputError names what does not fit."""
        recording = Recording(options.recording)
        allow_code(options.model)  # it was typed
        model = construct(ModelConfig(name=options.model), options.shape, outputs=0)
        count_scores(model, options.model, options.shape)
        keys = _chosen(recording, options)
        most = max((recording.granted(key).num_private or 0 for key in keys), default=0)
        attacks = options.attacks or default_attacks(model, options.shape, most, options.candidates is not None)
        plan = cls(options, recording, model, attacks, keys, out)
        plan.knowledge(keys[0])
        check_left_out(model, options.model, options.shape, plan.observation(keys[0]).initial)
        plan.settings()  # owners that do not fit are refused before anything is written
        return plan

    @cached_property
    def normalization(self) -> Normalization | None:
        """How clients normalize their images; None if unknown."""
        mean, std = (per_channel(values, self.options.shape) for values in (self.options.mean, self.options.std))
        return Normalization(mean or (0.0,) * self.options.shape[0], std) if mean or std else None

    @cached_property
    def digest(self) -> str:
        return digest_of(self.options, self.recording)

    def knowledge(self, key: ObservationKey) -> Knowledge:
        """Return the knowledge of an adversary: from the recording, the normalization and --know."""
        told = self.recording.granted(key)
        if told.num_private is None:  # all clients together: the sum of what each reports
            told = replace(told, num_private=self.count(key) or None)
        if self.normalization is not None:
            mean, std = self.normalization.mean, self.normalization.std
            told = replace(told, pixel_mean=mean, pixel_std=std or None, pixel_range=(0.0, 1.0))
        said = {name: value for name, value in (self.options.knowledge or {}).items() if name != "public_images"}
        held_back = [name for name, value in said.items() if value is False]
        believed = make_knowledge({name: value for name, value in said.items() if value not in (False, True, None)})
        given = {name: getattr(believed, name) for name in said if getattr(believed, name) is not None}
        return replace(told, **dict.fromkeys(held_back), **given)

    def observation(self, key: ObservationKey) -> Observation:
        """Read an observation. Raise InputError if the model does not fit the checkpoints."""
        pairs = self.recording.pairs(key, self.model.state_dict())
        return Observation(self.model, pairs, self.options.shape, key.round, key.client, key.threat_model)

    @cached_property
    def truth(self) -> AuditTruth | None:
        """The place of the truth and the owners of its files; None if there is none."""
        options = self.options
        if options.truth is None:
            return None
        files = read_truth(Path(options.truth), options.shape)
        clients, owners = self.recording.clients, None
        if options.owners:
            owners = owners_said(files, clients, options.owners)
            told = owners_by_update(files, self._one_of_each_client(), self.normalization) or {}
            for client, file in owners.items():
                if told.get(client, file) != file:
                    raise InputError(
                        f"--owner {clients[client].node}={files.names[file]}: the update of this node shows the images "
                        f"of {files.names[told[client]]!r}; leave --owner out, and the updates tell whose file is whose"
                    )
        elif files.by_client:
            owners = owners_by_name(files, clients)
            owners = owners or owners_by_update(files, self._one_of_each_client(), self.normalization)
        return AuditTruth(
            path=Path(options.truth),
            public=None if options.public is None else Path(options.public),
            shape=options.shape,
            owners=owners,
            counts={key: count for key in self.keys if (count := self.count(key)) is not None},
            normalization=self.normalization,
            seed=options.seed,
            without=tuple(client for client, count in self._said.items() if count == 0),
        )

    @property
    def whose_truth(self) -> tuple[list[str], list[str]]:
        """Lines on what clients call themselves and the file that is the truth of each, and doubts about that."""
        clients = self.recording.clients
        if self.truth is None:
            return describe_names(clients), []
        return describe_owners(self.truth, clients), doubt_owners(self.truth, clients, self.options.owners or {})

    @property
    def doubts_of_model(self) -> list[str]:
        """A line where the model trains what the first client's first update does not move, and one where the two
        checkpoints of that update seem to be swapped."""
        try:
            seen = self.observation(self.keys[0])
            swapped = looks_swapped(self.model, *seen.pairs[0])
        except Exception:  # a checkpoint is damaged, as the rows of its update will say
            return []
        doubts = [doubt_trained(seen), f"{owner(seen.client)}: {SWAPPED}" if swapped else ""]
        return [f"round {seen.round}, {doubt}" for doubt in doubts if doubt]

    def settings(self, timeout: float = TIMEOUT) -> JobSettings:
        """Return the settings of all jobs. timeout: processor seconds that an attack may take."""
        truth, seed = self.truth, self.options.seed
        return JobSettings(truth, seed=seed, timeout=timeout, candidates=self.candidates(truth), limit="--timeout")

    def candidates(self, truth: AuditTruth | None) -> AuditCandidates | None:
        """Return the candidates: those given, else a truth without owners. It needs public images beside it, and then
        can be told which of its images took part."""
        options, path = self.options, self.options.candidates
        if path is None and truth is not None and truth.owners is None:
            path = options.truth
        if path is None or options.public is None:
            return None
        try:
            check_candidates(path, options.public, options.shape)
        except InputError:  # too few to calibrate on, and nobody asked
            return None
        return AuditCandidates(Path(path), Path(options.public), options.shape)

    def _one_of_each_client(self) -> dict[int, tuple[Observation, Knowledge]]:
        first: dict[int, ObservationKey] = {}
        for key in self.recording.observations():
            if key.threat_model == "server" and key.client != ALL and self._said.get(key.client) != 0:
                first.setdefault(key.client, key)
        return {client: (self.observation(key), self.recording.granted(key)) for client, key in first.items()}

    def count(self, key: ObservationKey) -> int | None:
        """Return the number of private images of an observation; None unless all its clients reported theirs."""
        said, clients = self._said, self.recording.recorded(key).clients
        return sum(said[client] for client in clients) if all(client in said for client in clients) else None

    @cached_property
    def _said(self) -> dict[int, int]:
        """By client, the number of images that it said last; 0 if it never said that it had any."""
        said = [pair for round in self.recording.rounds for pair in round.images.items()]
        return dict(sorted(said, key=lambda pair: pair[1] > 0))


SWAPPED = "what was returned looks less trained than what was sent: are the two checkpoints swapped?"


def doubt_trained(observation: Observation) -> str:
    """Name parameters that the model trains and that did not move, unless none did; "" for none. Biases that have no
    gradient, as ahead of BatchNorm and of attention's keys, say nothing."""
    still, trained = list(observation.unmoved), observation.trainable
    if still and len(still) < len(trained):
        idle = biases_without_gradient(observation.model, observation.input_shape, observation.pairs[0])
        still = [name for name in still if name not in idle]
    if not still or len(still) == len(trained):
        return ""
    named = f"{', '.join(still[:2])}{', …' if len(still) > 2 else ''}"
    return (
        f"{owner(observation.client)}: {len(still)} of {len(trained)} parameters that --model trains did not move "
        f"({named}): where clients freeze them, freeze them in --model, too, by requires_grad_(False), as "
        "attacks follow that"
    )


def looks_swapped(model: nn.Module, initial: State, final: State) -> bool:
    """Return whether the second checkpoint seems to come before the first: BatchNorm counted fewer batches in it, or
    all its weights just fill the range that PyTorch draws them from, and some of the first exceed it."""
    if any(final[name] < initial[name] for name in final if name.endswith("num_batches_tracked") and name in initial):
        return True
    weights = [f"{name}.weight".lstrip(".") for name, part in model.named_modules() if isinstance(part, DRAWN)]
    reach = [
        [float(state[name].abs().max()) * state[name][0].numel() ** 0.5 for name in weights if name in state]
        for state in (initial, final)
    ]
    return bool(weights) and all(0.9 < r <= 1 + 1e-6 for r in reach[1]) and any(r > 1 + 1e-6 for r in reach[0])


def digest_of(options: AuditOptions, recording: Recording) -> str:
    """Return a digest of all that rows depend on, so that only its own command resumes an audit: the options, the
    content of the files that they name, and the observations of the recording."""
    clients = [client.node for client in recording.clients.values()]
    keys, images = [repr(key) for key in _chosen(recording, options)], [one.images for one in recording.rounds]
    told = [options.described(), clients, keys, images]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode())
    named = (options.truth, options.public, options.candidates, options.model.rpartition(":")[0])
    begun = sorted(recording.checkpoints.glob("*.safetensors"))[:1]  # another federation starts from others
    for path in (*map(Path, filter(None, named)), *begun):
        for file in sorted(path.rglob("*")) if os.path.isdir(path) else [path]:
            if os.path.isfile(file):
                digest.update(f"{file.name} {contents_digest(file)}".encode())
    return digest.hexdigest()[:10]


def typed_attack(given: str | Mapping[str, Any]) -> AttackConfig:
    """Do as `attack_of`, and allow the code of an attack that the user typed."""
    name = given if isinstance(given, str) else str(given.get("name"))
    if ":" in name:
        allow_code(name)
    return attack_of(given)


def attack_of(given: str | Mapping[str, Any]) -> AttackConfig:
    """Make an attack from its name, or from a mapping as in a scenario. InputError names what is wrong."""
    try:
        return AttackConfig.model_validate({"name": given} if isinstance(given, str) else dict(given))
    except ValidationError as error:
        raise InputError(first_fault(error)["msg"]) from None


def absolute(path: str | Path | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().resolve())


def check_order(shape: Shape) -> Shape:
    """Return the shape; raise InputError if it is (H, W, C), or (H, C, W) of a square image. Pictures have 1, 3 or 4
    channels, and more rows and columns than that; signals are longer than pictures are wide."""
    first, second, last = shape
    if first == last > MOST_CHANNELS >= second != 2:
        raise InputError(
            f"--shape {first},{second},{last} has the channels in the middle: write channels,height,width, "
            f"--shape {second},{first},{last}"
        )
    shorter, longer = sorted((first, second))
    if longer <= LONGEST_SIDE * shorter and shorter > MOST_CHANNELS >= last != 2:
        raise InputError(
            f"--shape {first},{second},{last} is height,width,channels: write channels,height,width, "
            f"--shape {last},{first},{second}"
        )
    return shape


def check_mean(mean: Sequence[float], called: str) -> None:
    """Raise InputError for a mean that no pixels in [0, 1] have. called: it, as it was typed."""
    if max(mean, default=0.0) > 1:
        raise InputError(f"{called}: pixels are from 0 to 1 here, and so is their mean: divide mean and std by 255")


def per_channel(values: Sequence[float], shape: Shape) -> tuple[float, ...]:
    """Return a value for each channel: one value stands for all. Raise InputError for another number of values."""
    if len(values) not in (0, 1, shape[0]):
        given = ",".join(map(str, values))
        raise InputError(f"--mean or --std {given}: give one value, or one for each channel ({shape[0]})")
    return tuple(values) * (shape[0] if len(values) == 1 else 1)


def _chosen(recording: Recording, options: AuditOptions) -> tuple[ObservationKey, ...]:
    """Return the observations to attack. Raise InputError if one that was asked for is missing, or none is left."""
    keys = recording.observations()
    asked: dict[str, Collection[Any]] = {"round": options.rounds, "client": options.clients}
    asked["threat_model"] = options.threat_models
    for name, wanted in asked.items():
        known = sorted({getattr(key, name) for key in keys})
        if missing := [value for value in wanted if value not in known]:
            shown = did_you_mean(str(missing[0]), list(map(str, known)))
            raise InputError(f"the recording {options.recording!r} has no {name} {missing[0]!r}{shown}")
        keys = [key for key in keys if not wanted or getattr(key, name) in wanted]
    if not keys:
        why = recording.contents.problems[0] if recording.contents.problems else "did a round finish?"
        raise InputError(f"the recording {options.recording!r} holds no observation to attack: {why}")
    return tuple(keys)


def _check_images(options: AuditOptions) -> None:
    if options.truth is not None:
        read_truth(Path(options.truth), options.shape)
    elif options.owners:
        raise InputError("--owner says whose the files of a truth are: give --truth, the folder that holds them")
    if options.public is not None:
        read_images(Path(options.public), options.shape, "public images")
    check_candidates(options.candidates, options.public, options.shape)
    for name, value in (options.knowledge or {}).items():
        if name not in Knowledge.names():
            raise InputError(f"--know {name}: no such field{did_you_mean(name, Knowledge.names())}")
        if value is True and name != "public_images":
            raise InputError(
                f"--know {name}=true: an audit knows no true value; give the value, or false to withhold it"
            )
