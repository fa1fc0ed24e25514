"""The truth of an audit: which of the images given are the private set of a row, and what they are told apart from."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from attacks import InputError, Pool
from attacks.interface.normalization import Normalization
from attacks.membership import MembershipTest
from attacks.scoring.identification import Identification
from attacks.scoring.images import distances, score_images
from simulator.audit.images import ImageFiles, Shape, read_images, read_truth
from simulator.evaluation.truth import Attacked, Truth
from simulator.results.keys import ObservationKey

GREY = 0.5  # of the only image that who knows no image at all can guess
NO_OTHERS = "the floor is a grey image: give --public for a better one"
UNOWNED = (
    "whose image is whose is not known, so that no client's is scored: --public, images that are no members, tells "
    "which of these images took part"
)
TOLD = (
    "whose image is whose is not known, so that no client's is scored: `membership_told` says how many of these images "
    "took part"
)
UNTOLD = (
    "how inputs are normalized was not told, and a deviation of 1 assumed: where it is another, images are off in "
    "brightness and contrast, and count as not recovered; give --mean and --std"
)


@dataclass(frozen=True)
class AuditTruth:
    """Where the truth lies. owners: the number of the file of each client; None where all files are one pool.

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

    def truth(self, attacked: Attacked) -> Truth | None:
        files = read_truth(self.path, self.shape)
        if self.owners is None:
            chosen, notes = self._among_all(files, attacked)
            unsure = (UNOWNED if self.public is None else TOLD) if len(chosen) < len(files.images) else ""
        else:
            clients = [client for client in attacked.recorded.clients if client in self.owners]
            if len(clients) < len(attacked.recorded.clients):
                return None
            chosen = [number for client in clients for number in files.numbers(self.owners[client])]
            notes, unsure = [], ""
        if self.normalization is None:
            notes = [*notes, UNTOLD]
        others = self._others(files.images, chosen)
        if not len(others):
            notes, unsure = [*notes, NO_OTHERS], unsure or "there are no others: give --public"
            others = torch.full_like(files.images[:1], GREY)
        return Truth(
            private=files.images[chosen],
            pool=Pool(others, files.images),
            normalization=self._normalization(attacked),
            seed=self.seed,
            diagnosed=False,
            numbers=tuple(chosen),
            no_membership=unsure,
            more_public="give more images with --public",
            notes=tuple(notes),
        )

    def _normalization(self, attacked: Attacked) -> Normalization:
        return self.normalization or Normalization(attacked.found.pixel_mean, attacked.found.pixel_std)

    def _others(self, images: Tensor, chosen: list[int]) -> Tensor:
        """What a guess is drawn from: public images, else those of the truth that are not of the row."""
        if self.public is not None:
            return read_images(self.public, self.shape, "public images")
        left = torch.ones(len(images), dtype=torch.bool)
        left[chosen] = False
        return images[left]

    def _among_all(self, files: ImageFiles, attacked: Attacked) -> tuple[list[int], list[str]]:
        """(which images of one pool count as the row's, notes): as many as the client said, those first that the attack
        recovered, with their brightness and contrast or without, since whatever came out of an update was in it, then
        those that the update tells to be members."""
        images, found = files.images, attacked.found
        told = self.counts.get(attacked.recorded.key)
        count = min(told or found.num_inferred or len(images), len(images))
        if count == len(images):
            return list(range(count)), []
        candidates = torch.cat([found.pixels(clamped=False), found.held_pixels(clamped=False)]).float()
        recovered = torch.from_numpy(score_images(images, candidates, Pool(images, images)).recovered)
        alike = torch.from_numpy(Identification(images, candidates).affine_hits(candidates).any(1))
        order = (self._strangeness(images, attacked) - 1e6 * recovered - 1e5 * alike).argsort(stable=True)
        first, known = int(recovered.sum()), "the client says" if told else "the update shows"
        return sorted(order[:count].tolist()), [
            f"{len(images)} images were given for all clients: the {count} of this row, as many as {known}, are the "
            f"{min(first, count)} that the attack recovered, then those that the update tells to be members"
        ]

    def _strangeness(self, images: Tensor, attacked: Attacked) -> Tensor:
        """(T,), lower for images that an update was rather trained on: log ρ of the membership test, or, where there is
        none, the distance to what was reconstructed."""
        inputs = self._normalization(attacked).inputs(images)
        try:
            return MembershipTest.of(attacked.observation, attacked.knowledge, inputs).residual(inputs).log()
        except InputError:
            near = distances(images, attacked.found.pixels().float())
            return near.min(1).values if near.shape[1] else torch.zeros(len(images))
