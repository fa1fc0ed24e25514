"""The scores of a reconstruction image by image: its match, distance, PSNR, similarity, and whether it is identified.

This is the one place that sees private images. It takes finished reconstructions: no attack calls it. `Identification`
compares every candidate with every image of the pool, as they are, up to offset and gain, and up to augmentations.

A *hit* is a pair of an image and a candidate with at least 20 dB that is identified: the candidate is nearer to this
image than to any other of the pool. Rows are images, columns candidates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
import scipy  # its parts are imported where they are first used
import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.scoring.recognition import Views, smoothed, unmoved

RECOVERED_PSNR = 20.0  # dB, peak 1
LARGE_IMAGE = 16  # pixels of the shorter side from which SSIM has its usual window
WINDOW, SMALL_WINDOW = 7, 3  # pixels of SSIM's uniform window


@dataclass(frozen=True)
class Pool:
    """The images among which a reconstruction has to identify its own.

    public: (P, C, H, W), images in [0, 1] that belong to nobody's private set.
    private: (Q, C, H, W), all private images of the round, those of other clients too.
    public_labels, private_labels: (P,) and (Q,), their classes, None where these are not known.
    """

    public: Tensor
    private: Tensor
    public_labels: Tensor | None = None
    private_labels: Tensor | None = None


@dataclass(frozen=True)
class Distinct:
    """Which of N images are exactly equal, pixel for pixel.

    first: (D,) the first of each.
    copies: (D,) how often it occurs.
    of: (N,) which of the D an image is.
    """

    first: np.ndarray
    copies: np.ndarray
    of: np.ndarray

    @classmethod
    def among(cls, images: Tensor) -> "Distinct":
        of = numbers_of(images)
        _, first, copies = np.unique(of, return_index=True, return_counts=True)
        return cls(first, copies, of)


def numbers_of(*images: Tensor, seen: dict[bytes, int] | None = None) -> np.ndarray:
    """Number all of these images, (N, C, H, W) each, in the order in which they come: equal ones share a number. seen:
    the numbers of images that have come before, by their content; these are added."""
    seen = {} if seen is None else seen
    rows = ((part.float() + 0.0).flatten(1).numpy() for part in images)  # −0 is 0
    return np.array([seen.setdefault(row.tobytes(), len(seen)) for part in rows for row in part], dtype=int)


@dataclass(frozen=True)
class ImageScores:
    """One entry per private image, (N,) each.

    match: index of the reconstruction, -1 where there was none left.
    """

    match: np.ndarray
    l2: np.ndarray
    psnr: np.ndarray
    identified: np.ndarray
    hungarian_psnr: np.ndarray

    @property
    def recovered(self) -> np.ndarray:
        return self.identified & (self.psnr >= RECOVERED_PSNR)

    def at(self, places: np.ndarray) -> "ImageScores":
        """Return those of these images, in this order."""
        return ImageScores(**{name: values[places] for name, values in vars(self).items()})


def score_images(
    private: Tensor,
    candidates: Tensor,
    pool: Pool,
    unmatched: ImageScores | None = None,
    known: "Identification | None" = None,
) -> ImageScores:
    """Match candidates to private images greedily by L2 and score every pair; equal private images are matched once. An
    image left without a match is scored against the mean public image and counts as not identified. unmatched: these
    scores of all of them, where they are there already; they cost more than those of a few candidates. known: the
    distances of the different private images, then of the pool, to these candidates and others behind them."""
    if not len(candidates) and unmatched is not None:
        return unmatched
    distinct = Distinct.among(private)
    own = private[distinct.first]
    if not len(candidates):
        guesses = pool.public.mean(0, keepdim=True).expand_as(own)
        peak, none = psnr(own, guesses), np.full(len(own), -1)
        l2, identified = lengths(guesses - own), np.zeros(len(own), dtype=bool)
        return ImageScores(none, l2, peak, identified, peak).at(distinct.of)
    scores = (unmatched or score_images(private, candidates[:0], pool)).at(distinct.first)
    if known is None:
        known = Identification(Gallery(torch.cat([own, pool.public, pool.private])), candidates, np.arange(len(own)))
    few = len(own) * len(candidates) <= FEW
    distance = distances(own, candidates).numpy() if few else known.l2[: len(own), : len(candidates)]
    scores.match[:] = greedy_match(distance)
    rows = np.flatnonzero(scores.match >= 0)
    guesses, matched = candidates[scores.match[rows]], own[rows]
    scores.l2[rows] = lengths(guesses - matched)
    scores.psnr[rows] = psnr(matched, guesses)
    scores.identified[rows] = known.nearest_is(rows, scores.match[rows], scores.l2[rows])
    match = hungarian_match(distance**2 * distinct.copies[:, None])
    rows = np.flatnonzero(match >= 0)
    scores.hungarian_psnr[rows] = psnr(own[rows], candidates[match[rows]])
    return scores.at(distinct.of)


def lengths(images: Tensor) -> np.ndarray:
    """Return the Euclidean lengths of flattened images, (N,), in float64."""
    return images.flatten(1).double().norm(dim=1).numpy()


def greedy_match(distance: np.ndarray) -> np.ndarray:
    """Match as Loo et al.'s curve does: take the closest pair of distance (N, M), remove both, repeat. Returns (N,)
    column of each row, -1 for rows left over; of equal distances the first row's, then column's, is closer.

    Every row asks for its closest column, and for the next one where a closer row has it (Gale and Shapley 1962): of
    one order of all pairs that is the greedy matching.
    """
    match = np.full(len(distance), -1)
    if len(distance) > distance.shape[1]:  # rows that are left over would ask for every column
        rows = greedy_match(distance.T)
        match[rows] = np.arange(len(rows))
        return match
    order = distance.argsort(1, kind="stable")
    asked, holder = np.zeros(len(distance), dtype=int), np.full(distance.shape[1], -1)
    asking = np.arange(len(distance))
    while len(asking):
        held = holder[order[asking, asked[asking]]]
        rows = np.concatenate([asking, held[held >= 0]])
        columns = order[rows, asked[rows]]
        by = np.lexsort((rows, distance[rows, columns], columns))
        closest = by[np.unique(columns[by], return_index=True)[1]]
        holder[columns[closest]] = rows[closest]
        asking = np.setdiff1d(rows, rows[closest])
        asked[asking] += 1
    match[holder[holder >= 0]] = np.flatnonzero(holder >= 0)
    return match


def hungarian_match(cost: np.ndarray) -> np.ndarray:
    """Find the assignment of least total cost, (N, M) -> (N,) column of each row, or -1 for rows left over."""
    match = np.full(len(cost), -1)
    rows, columns = scipy.optimize.linear_sum_assignment(cost)
    match[rows] = columns
    return match


FEW = 100_000  # pairs, whose distances are computed one by one
BLOCK = 1024  # rows at a time, for the sake of memory


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Compute Euclidean distances of flattened images, (N, M), in float64; of many pairs by products of matrices."""
    if len(b) == 0:
        return torch.zeros((len(a), 0), dtype=torch.float64)
    if len(a) * len(b) <= FEW:
        return torch.cdist(a.flatten(1).double(), b.flatten(1).double(), compute_mode="donot_use_mm_for_euclid_dist")
    distinct = Distinct.among(b)
    return torch.from_numpy(_l2(a.flatten(1).double(), b[distinct.first].flatten(1).double())[:, distinct.of])


def matched_l2(private: Tensor, candidates: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return ((N,) distances of the greedy matching, (N,) which candidate). Raises InputError for fewer than N."""
    if len(candidates) < len(private):
        raise InputError(f"{len(candidates)} candidates cannot be matched to {len(private)} images")
    table = distances(private, candidates).numpy()
    match = greedy_match(table)
    return table[np.arange(len(table)), match], match


def psnr(private: Tensor, guesses: Tensor) -> np.ndarray:
    """Compute the peak signal-to-noise ratio in dB with peak 1, (N,); an exact copy counts as 100 dB."""
    mse = ((private - guesses).double() ** 2).flatten(1).mean(1).clamp_min(1e-10)
    return (-10 * torch.log10(mse)).numpy()


def ssim(a: Tensor, b: Tensor) -> np.ndarray:
    """Compute structural similarity (Wang et al. 2004) of images (N, C, H, W) in [0, 1], (N,); NaN if too small."""
    side = min(a.shape[2:])
    if side < SMALL_WINDOW or not len(a):
        return np.full(len(a), np.nan)
    window = WINDOW if side >= LARGE_IMAGE else SMALL_WINDOW
    edge, sample = window // 2, window**2 / (window**2 - 1)
    x, y = a.float().numpy(), b.float().numpy()
    mean_x, mean_y, xx, yy, xy = (
        scipy.ndimage.uniform_filter(values, (1, 1, window, window)) for values in (x, y, x * x, y * y, x * y)
    )
    product, squares = mean_x * mean_y, mean_x**2 + mean_y**2
    covariance, variances = sample * (xy - product), sample * (xx - mean_x**2 + yy - mean_y**2)
    brightness, contrast = 0.01**2, 0.03**2
    likeness = (2 * product + brightness) * (2 * covariance + contrast)
    likeness /= (squares + brightness) * (variances + contrast)
    return likeness[..., edge:-edge, edge:-edge].mean((1, 2, 3), dtype=np.float64)


Transformation = Callable[[Tensor], Tensor]
"""What a client may have done to its images before it trained on them: (N, C, H, W) -> (N, C, H, W)."""

LARGEST_MSE = 10 ** (-RECOVERED_PSNR / 10)


class Gallery:
    """The different ones of images (N, C, H, W), Q, with what is compared of them, computed once.

    seen: their numbers, by content. numbers: (N,) of those that were given. rows: (Q,), where they stand among these.
    """

    def __init__(self, images: Tensor):
        self.seen: dict[bytes, int] = {}
        self.numbers = numbers_of(images, seen=self.seen)
        self.rows = np.unique(self.numbers, return_index=True)[1]
        self.images = images[self.rows]

    @cached_property
    def flat(self) -> Tensor:
        return self.images.flatten(1).double()

    @cached_property
    def small(self) -> Tensor:
        return smoothed(self.images)

    @cached_property
    def units(self) -> Tensor:
        return unmoved(self.small)


Chosen = np.ndarray | slice
Measure = Callable[[np.ndarray, Chosen], np.ndarray]
"""Returns how far images of a gallery are from candidates, (N, M), by the numbers of both."""


class Identification:
    """Candidates (M, C, H, W) beside the images of a gallery, Q.

    inputs: candidates before they were clamped to [0, 1]. guesses: (M,), the number of the image that one is an exact
    copy of; Q or more where it is of none. judged: (J,), the images that are asked about, default all. Others may be
    nearer, and meet only what would be hits.
    """

    def __init__(self, gallery: Gallery, candidates: Tensor, judged: np.ndarray | None = None):
        everyone = np.arange(len(gallery.images))
        self.gallery, self.judged = gallery, everyone if judged is None else judged
        self.others = np.setdiff1d(everyone, self.judged)
        self.inputs, self.candidates = candidates, candidates.clamp(0, 1)
        self.guesses = numbers_of(self.candidates, seen=dict(gallery.seen))

    @cached_property
    def flat(self) -> Tensor:
        return self.candidates.flatten(1).double()

    @cached_property
    def l2(self) -> np.ndarray:
        return self._plain(self.judged, slice(None))

    def hits(self) -> np.ndarray:
        """Return the hits pixel by pixel, (J, M)."""
        return self._identified(self._near(self.l2**2), self.l2, self._plain)

    def nearest_is(self, rows: np.ndarray, columns: np.ndarray, l2: np.ndarray) -> np.ndarray:
        """Return whether each candidate is nearer to an image, at `l2`, than to any other, its exact copy aside."""
        own, copies = self.judged[:, None] == rows, self.judged[:, None] == self.guesses[columns]
        nearest = ~((self.l2[:, columns] <= l2) & ~own & ~copies).any(0)
        nearest[nearest] = self._beyond(self._plain, columns[nearest]) > l2[nearest]
        return nearest

    def recognized(self, least: float) -> np.ndarray:
        """Return the hits by an eye: the pairs more alike than `least`, and identified by their likeness, (J, M)."""
        views = Views(smoothed(self.inputs))

        def unlike(rows: np.ndarray, columns: Chosen) -> np.ndarray:
            return -views.at(columns).likeness(self.gallery.units[rows], least)

        if not len(self.guesses):
            return np.zeros(self.l2.shape, dtype=bool)
        found = unlike(self.judged, slice(None))
        return self._identified(found < -least, found, unlike)

    def affine_hits(self) -> np.ndarray:
        """Return hits after the offset and positive gain per channel that bring a candidate, not clamped, nearest to
        the image, (J, M), by least squares. It belongs to the image of whose variance the fit leaves the smallest
        share."""
        if not len(self.inputs):
            return np.zeros(self.l2.shape, dtype=bool)
        exact = torch.float64 if self.l2.size <= FEW else torch.float32  # half the time, and as near as 20 dB asks
        candidates = _centred(self.inputs.to(exact))
        size = candidates.square().sum(2).clamp_min(torch.finfo(torch.float32).tiny)

        def share(rows: np.ndarray, columns: Chosen) -> np.ndarray:
            images, found = _centred(self.gallery.images[rows].to(exact)), torch.zeros((), dtype=exact)
            for own, other, of in zip(images.unbind(1), candidates[columns].unbind(1), size[columns].T, strict=True):
                along = (own @ other.T).clamp_min_(0)  # a negative fits with a gain of 0
                found = along.square_().div_(of).add_(found)
            variance = images.square().sum((1, 2))[:, None]
            return torch.where(variance > 0, (variance - found).clamp_min_(0).div_(variance), 1.0).numpy()

        found = share(self.judged, slice(None))
        variance = _centred(self.gallery.images[self.judged].to(exact)).square().sum((1, 2))[:, None].numpy()
        return self._identified(self._near(found * variance), found, share)

    def hits_up_to(self, transformations: Sequence[Transformation]) -> np.ndarray:
        """Return the hits modulo transformations of the images: each image is as far as its nearest view, (J, M)."""

        def nearest(rows: np.ndarray, columns: Chosen) -> np.ndarray:
            views = (transformation(self.gallery.images[rows]) for transformation in transformations)
            others = (_l2(view.flatten(1).double(), self.flat[columns]) for view in views)
            return reduce(np.minimum, others, self._plain(rows, columns))

        found = nearest(self.judged, slice(None))
        return self._identified(self._near(found**2), found, nearest)

    def _plain(self, rows: np.ndarray, columns: Chosen) -> np.ndarray:
        candidates = self.flat[columns]
        return _l2(self.gallery.flat[rows], candidates) if len(candidates) else np.zeros((len(rows), 0))

    def _near(self, squares: np.ndarray) -> np.ndarray:
        return squares <= LARGEST_MSE * self.gallery.images[0].numel()

    def _beyond(self, measure: Measure, columns: np.ndarray) -> np.ndarray:
        """Return how far the nearest image that is not judged is from some candidates, exact copies aside."""
        copies = self.others[:, None] == self.guesses[columns]
        return np.where(copies, np.inf, measure(self.others, columns)).min(0, initial=np.inf)

    def _identified(self, near: np.ndarray, distance: np.ndarray, measure: Measure) -> np.ndarray:
        """Return which pairs that are near are of a candidate that is nearer to the image than to any other, its exact
        copy aside."""
        columns, found = np.flatnonzero(near.any(0)), np.zeros_like(near)
        others, places = distance[:, columns], np.arange(len(columns))
        copies = np.nonzero(self.judged[:, None] == self.guesses[columns])
        exact, others[copies] = others[copies], np.inf
        closest = others.argmin(0)
        least, others[closest, places] = others[closest, places], np.inf
        hits = least < others.min(0)  # by the closest image, and by the one that a candidate copies
        found[closest[hits], columns[hits]] = True
        hits = exact < least[copies[1]]
        found[copies[0][hits], columns[copies[1][hits]]] = True
        found &= near
        some = np.flatnonzero(found.any(0))
        found[:, some] &= distance[:, some] < self._beyond(measure, some)
        return found


def _centred(images: Tensor) -> Tensor:
    """Return images (N, C, H, W) without the mean of each channel, (N, C, H W)."""
    images = images.flatten(2)
    return images - images.mean(2, keepdim=True)


def count_images(hits: np.ndarray, copies: np.ndarray) -> int:
    """Count the images (D,), as often as each occurs, that a largest matching gives one of their hits (D, M)."""
    rows = hits.any(1)
    hits, copies = hits[rows][:, hits.any(0)], copies[rows]  # mostly few: matching everything would take seconds
    weights = hits * copies[:, None]
    return int(weights[scipy.optimize.linear_sum_assignment(weights, maximize=True)].sum())


def _l2(a: Tensor, b: Tensor) -> np.ndarray:
    """Compute the distances of vectors, (N, d) and (M, d), by products of matrices, in two thirds of `cdist`'s time."""
    squares = b.square().sum(1).expand(min(len(a), BLOCK), -1)
    blocks = [
        torch.addmm(squares[: len(rows)], rows, b.T, alpha=-2).add_(rows.square().sum(1, keepdim=True))
        for rows in a.split(BLOCK)
    ]
    return torch.cat([block.clamp_min_(0).sqrt_() for block in blocks]).numpy()
