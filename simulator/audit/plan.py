"""The plan of an audit: what a user said of a recording, checked before anything is written.

It also has the attacks that are tried where none is named, what they cost, and when the rest is left for another time.
"""

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from pydantic import ValidationError
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attacks import InputError, Knowledge, Observation
from attacks.interface.code_trust import allow_code
from attacks.interface.errors import nearest
from attacks.interface.pictures import Normalization
from clients.config import ModelConfig
from clients.models.factory import construct, outputs_of
from clients.time_limit import CORES, unhurried
from simulator.audit.owners import AuditTruth, owners_by_name, owners_by_update, owners_said
from simulator.audit.recording import Recording
from simulator.evaluation.attack_run import SCORE, AttackRun, attack_seconds, clock, not_counting, work_seconds
from simulator.evaluation.candidate_images import AuditCandidates, check_candidates, tell_candidates
from simulator.evaluation.image_files import Shape, read_images, read_truth
from simulator.evaluation.job import Job, JobResult, Setting, lost
from simulator.results.disk import contents_digest
from simulator.results.keys import ALL, ObservationKey
from simulator.results.storage import CellStore, make_knowledge
from simulator.scenario.sections import AttackConfig

OPERATIONS = 1e11  # that a short `ntk` may take: five to ten seconds of one core
PASSES = 48  # forward passes that an iteration on one candidate costs: two tangent kernels, and their gradients
CANDIDATES = 2  # for each private image
FEWEST, MOST = 50, 2_000  # iterations
ASSUMED_IMAGES = 16  # where nobody tells how many there are
FIRST = "mean_image"  # a baseline


def default_attacks(
    model: nn.Module, shape: Shape, most_images: int, members: bool = False
) -> tuple[AttackConfig, ...]:
    """`span`, and `ntk` for about ten seconds, whatever the machine: by counting operations, so that the same audit
    gives the same tables. most_images: of a client, 0 where nobody tells. members: whether candidates are given: every
    row tells them from others, and that of `mean_image`, which takes no time, is there first."""
    candidates = CANDIDATES * (most_images or ASSUMED_IMAGES)
    iterations = int(OPERATIONS / (forward_operations(model, shape) * PASSES * candidates))
    short = {"name": "ntk", "iterations": min(MOST, max(FEWEST, iterations))}
    names: list[Mapping[str, Any]] = [{"name": FIRST}] * members + [{"name": "span"}, short]
    return tuple(AttackConfig.model_validate(one) for one in names)


def forward_operations(model: nn.Module, shape: Shape) -> int:
    """Of one image (C, H, W)."""
    first = next(model.parameters())
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(torch.zeros(1, *shape, dtype=first.dtype))
    return max(1, counter.get_total_flops())


MOST_CHANNELS = 4  # of pictures
TIMEOUT = 600.0  # processor seconds that an attack may take, unless the user says otherwise


@dataclass(frozen=True)
class AuditOptions:
    """What an audit was asked for, as `audit.yaml` describes it; paths are absolute.

    model: FILE.py:FACTORY or package.module:FACTORY. mean, std: per channel, of the inputs' normalization; empty
    where nothing is told. truth, public, candidates: images, None where there are none. owners: node -> the file or
    folder of the truth that is its own, where somebody said so. attacks: empty for what applies. knowledge: field ->
    what the adversary believes, or false to withhold it. rounds, clients, threat_models: empty for all.
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
    def of(
        cls,
        model: str,
        truth: str | Path | None = None,
        public: str | Path | None = None,
        candidates: str | Path | None = None,
        **others: Any,
    ) -> "AuditOptions":
        """With absolute paths: workers have folders of their own. InputError for images that cannot be used."""
        file, colon, factory = model.rpartition(":")
        model = f"{absolute(file)}:{factory}" if colon and file.endswith(".py") else model
        truth, public, candidates = absolute(truth), absolute(public), absolute(candidates)
        options = cls(model=model, truth=truth, public=public, candidates=candidates, **others)
        check_order(options.shape)
        _check_images(options)
        return options

    @classmethod
    def described_by(cls, content: Mapping[str, Any]) -> "AuditOptions":
        """From the plain values of a description; InputError where the images are no longer there."""
        plain: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in content.items()}
        return cls.of(**plain | {"attacks": tuple(map(attack_of, content["attacks"]))})

    def described(self) -> dict[str, Any]:
        """As plain values."""
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
        """InputError names what does not fit."""
        recording = Recording(options.recording)
        allow_code(options.model)  # it was typed
        model = construct(ModelConfig(name=options.model), options.shape, outputs=0)
        if len(found := outputs_of(model, options.model, options.shape)) != 1:
            raise InputError(f"--model {options.model!r} has outputs of shape {found}: a row of class scores is needed")
        keys = _chosen(recording, options)
        most = max((recording.knowledge(key).num_private or 0 for key in keys), default=0)
        attacks = options.attacks or default_attacks(model, options.shape, most, options.candidates is not None)
        plan = cls(options, recording, model, attacks, keys, out)
        plan.knowledge(keys[0])
        plan.observation(keys[0])
        return plan

    @cached_property
    def normalization(self) -> Normalization | None:
        """None where nothing is told of it."""
        mean, std = (per_channel(values, self.options.shape) for values in (self.options.mean, self.options.std))
        return Normalization(mean or (0.0,) * self.options.shape[0], std) if mean or std else None

    @cached_property
    def digest(self) -> str:
        return digest_of(self.options, self.recording)

    def knowledge(self, key: ObservationKey) -> Knowledge:
        """What the adversary of an observation is told: by the recording, the normalization, and as --know has it."""
        told = self.recording.knowledge(key)
        if told.num_private is None:  # of all clients together: what each reports, added up
            told = replace(told, num_private=self.count(key))
        if self.normalization is not None:
            mean, std = self.normalization.mean, self.normalization.std
            told = replace(told, pixel_mean=mean, pixel_std=std or None, pixel_range=(0.0, 1.0))
        said = {name: value for name, value in (self.options.knowledge or {}).items() if name != "public_images"}
        held_back = [name for name, value in said.items() if value is False]
        believed = make_knowledge({name: value for name, value in said.items() if value not in (False, True, None)})
        given = {name: getattr(believed, name) for name in said if getattr(believed, name) is not None}
        return replace(told, **dict.fromkeys(held_back), **given)

    def observation(self, key: ObservationKey) -> Observation:
        """What there is to attack. InputError where the model is not that of the checkpoints."""
        pairs = self.recording.pairs(key, self.model.state_dict())
        return Observation(self.model, pairs, self.options.shape, key.round, key.client, key.threat_model)

    def truth(self) -> AuditTruth | None:
        """Where the truth lies, with whose file is whose; None where nobody knows it."""
        options = self.options
        if options.truth is None:
            return None
        files = read_truth(Path(options.truth), options.shape)
        clients, owners = self.recording.clients, None
        if options.owners:
            owners = owners_said(files, clients, options.owners)
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
        )

    def setting(self, timeout: float = TIMEOUT) -> Setting:
        """What its jobs have in common. timeout: processor seconds that an attack may take."""
        truth = self.truth()
        candidates = self.candidates(truth)
        return Setting(truth, seed=self.options.seed, timeout=timeout, candidates=candidates, limit="--timeout")

    def candidates(self, truth: AuditTruth | None) -> AuditCandidates | None:
        """What was given; else a truth of which nobody knows whose image is whose, where images that are no members
        are given beside it: which of it took part can be told all the same."""
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
        """What the server first saw of each client, and was told."""
        first: dict[int, ObservationKey] = {}
        for key in self.recording.observations():
            if key.threat_model == "server" and key.client != ALL:
                first.setdefault(key.client, key)
        return {client: (self.observation(key), self.recording.knowledge(key)) for client, key in first.items()}

    def count(self, key: ObservationKey) -> int | None:
        """Private images of an observation; None unless all its clients said how many they have."""
        said = {client: count for round in self.recording.rounds for client, count in round.images.items()}
        clients = self.recording.recorded(key).clients
        return sum(said[client] for client in clients) if all(client in said for client in clients) else None

    def store(self) -> CellStore:
        return CellStore(self.out)


def digest_of(options: AuditOptions, recording: Recording) -> str:
    """Of all that rows depend on, so that an audit is taken up by its own command only: what was asked for, what the
    files hold that it names, and the recording as far as it goes."""
    clients = [client.node for client in recording.clients.values()]
    keys = [repr(key) for key in _chosen(recording, options)]
    digest = hashlib.sha256(json.dumps([options.described(), clients, keys], sort_keys=True, default=str).encode())
    named = (options.truth, options.public, options.candidates, options.model.rpartition(":")[0])
    begun = sorted(recording.store.checkpoints.glob("*.safetensors"))[:1]  # another federation starts from others
    for path in (*map(Path, filter(None, named)), *begun):
        for file in sorted(path.rglob("*")) if os.path.isdir(path) else [path]:
            if os.path.isfile(file):
                digest.update(f"{file.name} {contents_digest(file)}".encode())
    return digest.hexdigest()[:10]


def typed_attack(given: str | Mapping[str, Any]) -> AttackConfig:
    """As `attack_of`, of what the user typed: her own code may run."""
    name = given if isinstance(given, str) else str(given.get("name"))
    if ":" in name:
        allow_code(name)
    return attack_of(given)


def attack_of(given: str | Mapping[str, Any]) -> AttackConfig:
    """An attack by its name, or as a scenario has it: name, label and options. InputError names what is wrong."""
    try:
        return AttackConfig.model_validate({"name": given} if isinstance(given, str) else dict(given))
    except ValidationError as error:
        raise InputError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def absolute(path: str | Path | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().resolve())


def check_order(shape: Shape) -> Shape:
    """The shape itself; InputError where it is certainly (H, W, C): no image has as many channels as rows, and 1, 3 or
    4 pixels in each."""
    first, second, last = shape
    if first == second > MOST_CHANNELS >= last != 2:
        raise InputError(
            f"--shape {first},{second},{last} is height,width,channels: write channels,height,width, "
            f"--shape {last},{first},{second}"
        )
    return shape


def per_channel(values: Sequence[float], shape: Shape) -> tuple[float, ...]:
    """One value stands for every channel. InputError where there are more or fewer than channels."""
    if len(values) not in (0, 1, shape[0]):
        raise InputError(f"{len(values)} values for {shape[0]} channels: give one, or one for each ({list(values)})")
    return tuple(values) * (shape[0] if len(values) == 1 else 1)


def _chosen(recording: Recording, options: AuditOptions) -> tuple[ObservationKey, ...]:
    """The observations to attack. InputError where one that was asked for was not recorded, or none is left."""
    keys = recording.observations()
    asked: list[tuple[str, Collection[Any]]] = [
        ("round", options.rounds),
        ("client", options.clients),
        ("threat_model", options.threat_models),
    ]
    for name, wanted in asked:
        known = sorted({getattr(key, name) for key in keys})
        if missing := [value for value in wanted if value not in known]:
            shown = nearest(str(missing[0]), list(map(str, known)))
            raise InputError(f"the recording {options.recording!r} has no {name} {missing[0]!r}{shown}")
        keys = [key for key in keys if not wanted or getattr(key, name) in wanted]
    if not keys:
        raise InputError(f"the recording {options.recording!r} holds no observation to attack: did a round finish?")
    return tuple(keys)


def _check_images(options: AuditOptions) -> None:
    """InputError where the images given cannot be used."""
    if options.truth is not None:
        read_truth(Path(options.truth), options.shape)
    elif options.owners:
        raise InputError("--owner says whose the files of a truth are: give --truth, the folder that holds them")
    if options.public is not None:
        read_images(Path(options.public), options.shape, "public images")
    check_candidates(options.candidates, options.public, options.shape)
    for name, value in (options.knowledge or {}).items():
        if name not in Knowledge.names():
            raise InputError(f"--know {name}: no such field{nearest(name, Knowledge.names())}")
        if value is True and name != "public_images":
            raise InputError(
                f"--know {name}=true: an audit knows no true value; give the value, or false to withhold it"
            )


MINUTES = 5.0
STARTUP = 15.0  # processor seconds that Ray and two workers take to come up
LEFT = "left for want of time"
REST = f"{LEFT}: --minutes 0 goes on with it"


@dataclass
class TimeLeft:
    """So many minutes of an idle machine; 0 without end.

    An attack begins if the longest of its kind so far would end in time.
    """

    minutes: float
    began: float = field(default_factory=time.monotonic)
    longest: dict[tuple[str, str], float] = field(default_factory=dict)

    def fits(self, job: Job) -> bool:
        return self.minutes == 0 or self.longest.get(_kind(job), 0.0) < self.seconds

    @property
    def seconds(self) -> float:
        """By the clock, until the time is over."""
        return unhurried(60 * self.minutes) - (time.monotonic() - self.began)

    @property
    def over(self) -> bool:
        return self.minutes > 0 and self.seconds <= 0

    def took(self, job: Job, seconds: float) -> None:
        self.longest[_kind(job)] = max(seconds, self.longest.get(_kind(job), 0.0))


def _kind(job: Job) -> tuple[str, str]:
    return job.attack.label, job.key.threat_model


def left_over(job: Job) -> JobResult:
    """The row of a job that the next call tries."""
    return lost(job, REST, "skipped")


def is_left(result: JobResult) -> bool:
    return str(result.leakage[0]["detail"]).startswith(LEFT)


def describe_audit(plan: AuditPlan, jobs: Sequence[Job], minutes: float) -> list[str]:
    """A few lines: what will be attacked, and what that costs by a look at the first update; a slow attack is only
    looked at for some seconds."""
    counts = Counter(job.attack.label for job in jobs)
    keys = sorted({job.key for job in jobs}, key=plan.keys.index)
    if not keys:
        return []
    observation, knowledge = plan.observation(keys[0]), plan.knowledge(keys[0])
    each = {one.label: _seconds(plan, one, observation, knowledge) for one in plan.attacks if counts[one.label]}
    start = work_seconds()
    if (source := jobs[0].setting.candidates) is not None:
        tell_candidates(source, observation, knowledge)
    parameters = sum(parameter.numel() for parameter in plan.model.parameters())
    beside = work_seconds() - start + SCORE[0] + SCORE[1] * parameters  # of every row
    known = STARTUP + sum(counts[label] * (beside + (seconds or 0.0)) for label, seconds in each.items())
    prices = [f"{counts[label]} × {label}" + ("" if s is None else f" of {clock(s)}") for label, s in each.items()]
    slow = ", ".join(label for label, seconds in each.items() if seconds is None)
    views = pd.Series([key.threat_model for key in keys]).value_counts(sort=False)
    lines = [
        f"{len(keys)} updates of {len({key.round for key in keys})} rounds "
        f"({', '.join(f'{count} {view}' for view, count in views.items())}): {', '.join(prices)}",
        f"cost: about {clock(known)} of processor time, {clock(known / CORES)} on {CORES} idle cores"
        + (not_counting(slow) if slow else ""),
    ]
    if minutes and (slow or known / CORES > 60 * minutes):
        lines.append(f"ends after {minutes:g} minutes of an idle machine; what is left then is named at the end")
    return lines


def _seconds(plan: AuditPlan, attack: AttackConfig, observation: Observation, knowledge: Knowledge) -> float | None:
    """As `attack_seconds`; 0 of an attack that this update ends at once, as its row will say."""
    try:
        return attack_seconds(AttackRun(attack, plan.options.seed), observation, knowledge)
    except Exception:
        return 0.0


def describe_rest(leakage: pd.DataFrame) -> str:
    """What was left, and its price by what the same attacks took by the clock, on as busy a machine; "" where nothing
    was."""
    rest = leakage[leakage.detail.str.startswith(LEFT, na=False)]
    if rest.empty:
        return ""
    took = leakage[leakage.status == "ok"].groupby(["attack", "threat_model"]).seconds.mean()
    kinds = rest.groupby(["attack", "threat_model"], sort=False).size()
    price = sum(count * took[kind] for kind, count in kinds.items() if kind in took.index)
    unknown = sorted({str(attack) for attack, view in kinds.index if (attack, view) not in took.index})
    names = ", ".join(dict.fromkeys(rest.attack))
    beside = f", without {', '.join(unknown)}, of which none has ended" if unknown else ""
    left = f"{len(rest)} of {len(leakage)} attacks are left ({names})"
    return f"{left}: about {clock(price)} by the clock, one by one{beside}"
