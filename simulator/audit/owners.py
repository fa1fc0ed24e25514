"""The truth of an audit: which of the images given are the private set of a row, and what they are told apart from.

A private set is known before the attack or not at all. Images of which nobody said whose they are, and that are more
than the row has, are candidates: which of them took part is a question of membership, and no attack is scored on them.

Which of the files of a truth is which recorded client's: by name, or else by what the updates themselves tell.
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
from attacks.interface.errors import nearest
from attacks.interface.pictures import Normalization
from attacks.membership import MembershipScore, MembershipTest
from attacks.scoring.images import Distinct
from attacks.update.private_set import infer_pixel_mean
from attacks.update.spectrum import infer_image_count
from simulator.audit.recording import SeenClient
from simulator.evaluation.image_files import ImageFiles, Shape, read_images, read_labels, read_truth
from simulator.evaluation.truth import CANDIDATES, NO_OTHERS, NO_TRUTH, Attacked, Truth
from simulator.results.keys import ObservationKey

GREY = 0.5  # of the only image that who knows no image at all can guess
WHOSE = (
    "to score attacks, say whose images are whose: a folder with a file or folder for each client (client_00.npz, …), "
    "called by its number, name or node id, or --owner NODE=FOLDER"
)
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
    """Where the truth lies. owners: the number of the file of each client; None where nobody said whose is whose.

    counts: private images of a row by its round and clients, where the federation told them. normalization: None where
    it is not told, then that of the attack is used.
    """

    path: Path
    public: Path | None
    shape: Shape
    owners: dict[int, int] | None
    counts: dict[ObservationKey, int]
    normalization: Normalization | None = None
    seed: int = 0

    def truth(self, attacked: Attacked) -> Truth | str:
        files, notes = read_truth(self.path, self.shape), []
        count = self._count(attacked)
        if self.owners is None:
            chosen = list(range(len(files.images)))
        else:
            clients = [client for client in attacked.recorded.clients if client in self.owners]
            if len(clients) < len(attacked.recorded.clients):
                return NO_TRUTH
            chosen = [number for client in clients for number in files.numbers(self.owners[client])]
        distinct = len(Distinct.among(files.images[chosen]).first)
        if count is None or distinct > count:
            row = "nothing tells how many images this row has" if count is None else f"this row has {count}"
            if self.owners is None:
                return f"{CANDIDATES}: {distinct} different ones are given, whose is not known, and {row}; {WHOSE}"
            if count is not None:
                notes.append(f"{distinct} different images are said to be private, and {row}: some took no part in it")
        if self.normalization is None:
            notes.append(UNTOLD)
        return self._truth(files, chosen, attacked, notes)

    def _truth(self, files: ImageFiles, chosen: list[int], attacked: Attacked, notes: list[str]) -> Truth:
        others, classes = self._others(files, chosen)
        unsure = ""
        if not len(others):
            notes, unsure = [*notes, NO_OTHERS], "there are no others: give --public"
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

    def _others(self, files: ImageFiles, chosen: list[int]) -> tuple[Tensor, Tensor | None]:
        """(what a guess is drawn from, its classes where all are known): public images, else those of the truth that
        are not of the row."""
        if self.public is not None:
            public = read_images(self.public, self.shape, "public images")
            return public, None if files.labels is None else read_labels(self.public, len(public))
        left = torch.ones(len(files.images), dtype=torch.bool)
        left[chosen] = False
        return files.images[left], None if files.labels is None else files.labels[left]

    def _count(self, attacked: Attacked) -> int | None:
        """How many images the row has: as the federation said, else as the update shows. What the adversary believes is
        asked only where the update shows nothing clear."""
        if (told := self.counts.get(attacked.recorded.key)) is not None:
            return told
        shown = infer_image_count(attacked.observation)
        if shown is not None and shown.has_spectral_gap:
            return shown.count
        return attacked.knowledge.num_private or attacked.found.num_inferred or (shown.count if shown else None)


def owners_said(files: ImageFiles, clients: Mapping[int, SeenClient], said: Mapping[str, str]) -> dict[int, int]:
    """Client -> number of its file, as somebody said: node -> file or folder. A node is known by its id, by its name,
    or by its number in the recording. InputError for a node or a file that is not there."""
    known = {str(number): number for number in clients}
    known |= {str(seen.name): number for number, seen in clients.items() if seen.name is not None}
    known |= {str(seen.node): number for number, seen in clients.items()}
    owners = {}
    for node, folder in said.items():
        file = Path(folder).name.removesuffix(".npz")
        if str(node) not in known:
            raise InputError(f"--owner {node}={folder}: the recording has no node {node!r}{nearest(node, [*known])}")
        if file not in files.names:
            raise InputError(f"--owner {node}={folder}: --truth holds no {file!r}{nearest(file, [*files.names])}")
        owners[known[str(node)]] = files.names.index(file)
    return owners


SURE = 0.75  # AUC of a file's images against those of all others, from which the update tells whose they are


def owners_by_name(files: ImageFiles, clients: Mapping[int, SeenClient]) -> dict[int, int] | None:
    """Client -> number of its file, by what the clients called themselves, or by their node ids; None where a client
    has no file. `client_03`, `3` and `03` are the file of client 3."""
    numbered = {_name(file): number for number, file in enumerate(files.names)}
    named = {client: str(seen.name) for client, seen in clients.items() if seen.name is not None}
    found = {client: numbered[name] for client, name in named.items() if name in numbered}
    if not found:
        by_id = {file: number for number, file in enumerate(files.names)}
        found = {client: by_id[str(seen.node)] for client, seen in clients.items() if str(seen.node) in by_id}
    return found if found and len(found) == len(clients) else None


def _name(file: str) -> str:
    """What a client is called whose file it is: the number at its end without zeros before it, else all of it."""
    number = re.search(r"(\d+)$", file)
    return str(int(number.group(1))) if number else file


def owners_by_update(
    files: ImageFiles,
    seen: Mapping[int, tuple[Observation, Knowledge]],
    normalization: Normalization | None,
) -> dict[int, int] | None:
    """Client -> number of the file whose images its update was rather trained on than on those of other files, one to
    one. seen: an observation of each client, and what is known of it. None where some update does not tell."""
    clients = list(seen)
    costs = np.zeros((len(clients), len(files.names)))
    told = np.zeros_like(costs)
    for row, client in enumerate(clients):
        try:
            residual = _strangeness(files, *seen[client], normalization)
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


def _strangeness(
    files: ImageFiles, observation: Observation, knowledge: Knowledge, normalization: Normalization | None
) -> torch.Tensor:
    """log ρ of every image, lower for members. InputError where the update tells nothing of the kind."""
    if normalization is None:
        mean = infer_pixel_mean(observation)
        if mean is None:
            raise InputError("the mean of the inputs is not known")
        normalization = Normalization(mean)
    inputs = normalization.inputs(files.images)
    return MembershipTest.of(observation, knowledge, inputs).residual(inputs).log()
