"""The truth of an audit: which of the images given are the private set of a row, and what they are told apart from.

A private set is known before the attack or not at all. Images of which nobody said whose they are, and that are more
than the row has, are candidates: which of them took part is a question of membership, and no attack is scored on them.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from attacks import Pool
from attacks.interface.normalization import Normalization
from attacks.scoring.images import Distinct
from attacks.update.first_layer import infer_image_count
from simulator.audit.images import ImageFiles, Shape, read_images, read_labels, read_truth
from simulator.evaluation.truth import CANDIDATES, NO_TRUTH, Attacked, Truth
from simulator.results.keys import ObservationKey

GREY = 0.5  # of the only image that who knows no image at all can guess
NO_OTHERS = "the floor is a grey image: give --public for a better one"
WHOSE = "to score attacks, say whose images are whose: a folder with a file for each client (client_00.npz, …)"
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
