"""Find the truth of an audit: the private images of a row, among those given, and the owners of their files.

A private set is known before the attack or not at all. Images without an owner that are more than the row has are
candidates: membership tells which of them took part, and no attack is scored on them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attacks import InputError, Knowledge, Observation, Pool
from attacks.interface.errors import did_you_mean
from attacks.interface.normalization import Normalization
from attacks.membership import MembershipScore, MembershipTest
from attacks.scoring.images import Distinct
from attacks.update.private_set import infer_pixel_mean
from attacks.update.spectrum import infer_image_count
from simulator.audit.recording import SeenClient
from simulator.evaluation.image_files import ImageFiles, Shape, no_members, read_images, read_labels, read_truth
from simulator.evaluation.truth import CANDIDATES, NO_OTHERS, NO_TRUTH, Attacked, Truth
from simulator.results.keys import ObservationKey

GREY = 0.5  # value of the image that stands in for public ones
WHOSE = (
    "to score attacks, say whose images are whose: a folder with a file or folder for each client (client_00.npz, …), "
    "called by its number, name or node id (of a single client by anything), or --owner NODE=FOLDER of `fedspill audit`"
)
UNTOLD_FILES = (
    "the updates could not tell which file or folder of --truth is whose: say so by --owner NODE=FOLDER, with the node "
    "ids in recording.json"
)
NO_IMAGES = "the client said that it had no images: no scores"
UNTOLD = (
    "how inputs are normalized was not told, and a deviation of 1 assumed: where it is another, images are off in "
    "brightness and contrast, and count as not recovered; give --mean and --std"
)
NO_CLASSES = (
    "classes are not known, so that a guess at these may look like leakage: give an array `labels` in the npz files of "
    "--truth and --public"
)


@dataclass(frozen=True)
class AuditTruth:
    """The place of the truth.

    path: of the private images, as `read_truth` takes it.
    public: path of the images of no members, None without any.
    shape: (C, H, W) of an image.
    owners: the number of the file of each client, None if unknown.
    counts: private images by observation, if the federation told them.
    normalization: None if unknown; that of the attack is used then.
    seed: of what a score draws at random.
    without: clients that said they had no images.
    """

    path: Path
    public: Path | None
    shape: Shape
    owners: dict[int, int] | None
    counts: dict[ObservationKey, int]
    normalization: Normalization | None = None
    seed: int = 0
    without: tuple[int, ...] = ()

    def truth(self, attacked: Attacked) -> Truth | str:
        files, notes, count = read_truth(self.path, self.shape), [], self._count(attacked)
        with_images = [one for one in attacked.recorded.clients if one not in self.without]
        if not with_images:
            return NO_IMAGES
        if self.owners is None:
            chosen = list(range(len(files.images)))
        else:
            clients = [client for client in with_images if client in self.owners]
            if len(clients) < len(with_images):
                return NO_TRUTH
            chosen = [number for client in clients for number in files.numbers(self.owners[client])]
        distinct = len(Distinct.among(files.images[chosen]).first)
        if count is None or distinct > count:
            unknown = "nothing tells how many images this row has (--know num_private=N does)"
            row = unknown if count is None else f"this row has {count}"
            if self.owners is None:
                given = f"{distinct} different ones are given" if distinct != 1 else "1 is given"
                return f"{CANDIDATES}: {given}, whose is not known, and {row}; {_ask_whose(files)}"
            if count is not None:
                notes.append(f"{distinct} different images are said to be private, and {row}: some took no part in it")
        if self.normalization is None:
            notes.append(UNTOLD)
        return self._truth(files, chosen, attacked, notes)

    def _truth(self, files: ImageFiles, chosen: list[int], attacked: Attacked, notes: list[str]) -> Truth:
        others, classes, left_out = self._others(files, chosen)
        notes, unsure = [*notes, *filter(None, [left_out])], ""
        if not len(others):
            notes, unsure = [*notes, NO_OTHERS], "not measured, as there are no images of non-members: give --public"
            others = torch.full_like(files.images[:1], GREY)
        elif classes is None:
            notes = [*notes, NO_CLASSES]
        return Truth(
            private=files.images[chosen],
            pool=Pool(others, files.images, classes, files.labels),
            normalization=self.normalization or Normalization(attacked.found.pixel_mean, attacked.found.pixel_std),
            seed=self.seed,
            diagnosed=False,
            numbers=tuple(chosen),
            no_membership=unsure,
            more_public="give more images with --public",
            notes=tuple(notes),
            labels=None if classes is None or files.labels is None else files.labels[chosen],
        )

    def _others(self, files: ImageFiles, chosen: list[int]) -> tuple[Tensor, Tensor | None, str]:
        """Return (images for guesses, their classes if known, a line on those left out): public ones, else those of the
        truth of other rows. None of them is one of the row's, which no guess may have."""
        if self.public is not None:
            public, called = read_images(self.public, self.shape, "public images"), "the private ones"
            labels = None if files.labels is None else read_labels(self.public, len(public))
            kept, line = no_members(public, files.images[chosen], called)
            return public[kept], None if labels is None else labels[kept], line
        left, _ = no_members(files.images, files.images[chosen], "")
        return files.images[left], None if files.labels is None else files.labels[left], ""

    def _count(self, attacked: Attacked) -> int | None:
        """Return the number of images of a row: as the federation said, the update shows, or the adversary believes."""
        if (told := self.counts.get(attacked.recorded.key)) is not None:
            return told
        shown = infer_image_count(attacked.observation)
        if shown is not None and shown.has_spectral_gap:
            return shown.count
        return attacked.knowledge.num_private or attacked.found.num_inferred or (shown.count if shown else None)


def describe_names(clients: Mapping[int, SeenClient]) -> list[str]:
    """Say what the clients of a recording call themselves, in a line; nothing where these are their numbers."""
    named = {client: str(seen.name) for client, seen in clients.items() if seen.name is not None}
    called = [f"{client} is {name!r}" for client, name in named.items() if name != str(client)]
    return [f"clients: {', '.join(called)}"] if called else []


def describe_owners(truth: AuditTruth, clients: Mapping[int, SeenClient]) -> list[str]:
    """Say from which file the truth of each client is, a line each."""
    files, lines = read_truth(truth.path, truth.shape), []
    if truth.owners is None:
        return [*describe_names(clients), f"all clients: truth from {truth.path.name} ({len(files.images)} images)"]
    for client, file in truth.owners.items():
        seen, place = clients[client], f"/{files.names[file]}" if files.by_client else ""
        name = f"node {seen.node}" if seen.name is None else str(seen.name)
        called = f"client {client}" if str(client) in (name, str(seen.node)) else f"client {client} ({name})"
        lines.append(f"{called}: truth from {truth.path.name}{place} ({files.counts[file]} images)")
    return [*lines, *(f"client {client}: it said that it had no images" for client in truth.without)]


def doubt_owners(truth: AuditTruth, clients: Mapping[int, SeenClient], said: Mapping[str, str]) -> list[str]:
    """Name clients that share a truth, and those that `--owner` (said) calls by a number that is not their own."""
    files, owners, doubts = read_truth(truth.path, truth.shape), truth.owners, []
    if owners is None:
        one = f"{len(clients)} clients are compared with one truth, {truth.path.name!r}: {_ask_whose(files)}"
        return [one] if len(clients) > 1 else []
    for file in {file: None for file in owners.values() if list(owners.values()).count(file) > 1}:
        shared = " and ".join(str(client) for client in owners if owners[client] == file)
        one = f"clients {shared} are compared with one truth, {files.names[file]!r}"
        doubts.append(f"{one}: give each its own by --owner")
    for client in owners:
        if str(client) in said and str(client) != str(clients[client].name):
            doubts.append(
                f"--owner {client}: no client calls itself so; it is client {client} of the recording, in the order in "
                "which the server first saw them"
            )
    return doubts


def _ask_whose(files: ImageFiles) -> str:
    """Say what is to be given where nobody knows the owners of these files."""
    return UNTOLD_FILES if files.by_client else WHOSE


def owners_said(files: ImageFiles, clients: Mapping[int, SeenClient], said: Mapping[str, str]) -> dict[int, int]:
    """Return client -> number of its file. said: node -> file or folder; a node by its id, its name, or its number in
    the recording. Raise InputError for a node or a file that is not there."""
    known = {str(number): number for number in clients}
    known |= {str(seen.name): number for number, seen in clients.items() if seen.name is not None}
    known |= {str(seen.node): number for number, seen in clients.items()}
    owners = {}
    for node, folder in said.items():
        file = Path(folder).name.removesuffix(".npz")
        if str(node) not in known:
            ids = [f"{seen.node} (client {number})" for number, seen in clients.items()]
            some = f"{', '.join(ids[:MOST_NAMED])}{', …' * (len(ids) > MOST_NAMED)}"
            raise InputError(
                f"--owner {node}={folder}: {str(node)!r} is no node of the recording: write NODE=FOLDER, with one of "
                f"the node ids {some}"
            )
        if file not in files.names:
            meant = did_you_mean(file, [*files.names])
            raise InputError(f"--owner {node}={folder}: --truth holds no file or folder {file!r}{meant}")
        owners[known[str(node)]] = files.names.index(file)
    return owners


MOST_NAMED = 10  # node ids, in an error
SURE = 0.75  # AUC of a file's images against all others, from which on the update tells the owner


def owners_by_name(files: ImageFiles, clients: Mapping[int, SeenClient]) -> dict[int, int] | None:
    """Return client -> number of its file, by the clients' own names, or by their node ids; None if clients have no
    file and files no client. `client_03`, `3` and `03` are the file of client 3; one file is that of the one client."""
    if len(files.names) == len(clients) == 1:
        return {next(iter(clients)): 0}
    numbered = {_name(file): number for number, file in enumerate(files.names)}
    named = {client: str(seen.name) for client, seen in clients.items() if seen.name is not None}
    found = {client: numbered[name] for client, name in named.items() if name in numbered}
    if not found:
        by_id = {file: number for number, file in enumerate(files.names)}
        # a node whose id is its place in the recording was numbered by the recording: no file means it by that
        ids = {client: str(seen.node) for client, seen in clients.items() if seen.node != client}
        found = {client: by_id[node] for client, node in ids.items() if node in by_id}
    whole = len(found) == len(clients) or set(found.values()) == set(range(len(files.names)))
    return found if found and whole else None


def _name(file: str) -> str:
    """Return the name of the client of a file: the number at its end without leading zeros, else all of it."""
    number = re.search(r"(\d+)$", file)
    return str(int(number.group(1))) if number else file


def owners_by_update(
    files: ImageFiles, seen: Mapping[int, tuple[Observation, Knowledge]], normalization: Normalization | None
) -> dict[int, int] | None:
    """Match clients and files by membership; return client -> number of its file, None if some update does not tell.
    seen: an observation of each client, and the knowledge of the server."""
    clients = list(seen)
    costs = np.zeros((len(clients), len(files.names)))
    told = np.zeros_like(costs)
    for row, client in enumerate(clients):
        try:
            residual = _membership_residual(files, *seen[client], normalization)
        except InputError:
            return None
        for file in range(len(files.names)):
            own = torch.zeros(len(residual), dtype=torch.bool)
            own[list(files.numbers(file))] = True
            costs[row, file] = float(residual[own].mean())
            told[row, file] = MembershipScore.of(residual[own], residual[~own]).auc
    rows, columns = linear_sum_assignment(costs)
    if len(rows) < len(clients) or (len(files.names) > 1 and not (told[rows, columns] >= SURE).all()):
        return None
    return {clients[row]: int(column) for row, column in zip(rows, columns, strict=True)}


def _membership_residual(
    files: ImageFiles, observation: Observation, knowledge: Knowledge, normalization: Normalization | None
) -> torch.Tensor:
    """Return log ρ of every image, lower for members. Raise InputError if the update does not tell."""
    if normalization is None:
        mean = infer_pixel_mean(observation)
        if mean is None:
            raise InputError("the mean of the inputs is not known")
        normalization = Normalization(mean)
    inputs = normalization.inputs(files.images)
    return MembershipTest.of(observation, knowledge, inputs).residual(inputs).log()
