"""The scores of a reconstruction image by image: its match, distance, PSNR, SSIM, and whether it is identified.

This is the one place that sees private images. It takes finished reconstructions: no attack calls it. `Identification`
compares every candidate with every image of the pool, as they are, up to offset and gain, and up to augmentations.

A *hit* is a pair of an image and a candidate with at least 20 dB that is identified: the candidate is nearer to this
image than to any other of the pool. Rows are images, columns candidates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its parts are imported where they are first used
import torch
from torch import Tensor

from attacks.interface.errors import InputError

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


def numbers_of(*images: Tensor) -> np.ndarray:
    """Number all of these images, (N, C, H, W) each, in the order in which they come: equal ones share a number."""
    seen: dict[bytes, int] = {}
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
    ssim: np.ndarray
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
        l2, identified = _lengths(guesses - own), np.zeros(len(own), dtype=bool)
        return ImageScores(none, l2, peak, ssim(own, guesses), identified, peak).at(distinct.of)
    scores = (unmatched or score_images(private, candidates[:0], pool)).at(distinct.first)
    known = None if len(own) * len(candidates) <= FEW else known
    distance = distances(own, candidates).numpy() if known is None else known.l2[: len(own), : len(candidates)]
    scores.match[:] = greedy_match(distance)
    rows = np.flatnonzero(scores.match >= 0)
    guesses, matched = candidates[scores.match[rows]], own[rows]
    scores.l2[rows] = _lengths(guesses - matched)
    scores.psnr[rows], scores.ssim[rows] = psnr(matched, guesses), ssim(matched, guesses)
    if known is None:
        scores.identified[rows] = _nearest_is_own(matched, guesses, scores.l2[rows], pool)
    else:
        scores.identified[rows] = known.nearest_is(rows, scores.match[rows], scores.l2[rows])
    match = hungarian_match(distance**2 * distinct.copies[:, None])
    rows = np.flatnonzero(match >= 0)
    scores.hungarian_psnr[rows] = psnr(own[rows], candidates[match[rows]])
    return scores.at(distinct.of)


def _lengths(images: Tensor) -> np.ndarray:
    return images.flatten(1).double().norm(dim=1).numpy()


def greedy_match(distance: np.ndarray) -> np.ndarray:
    """Match as Loo et al.'s curve does: take the closest pair of distance (N, M), remove both, repeat. Returns (N,)
    column of each row, -1 for rows left over; of equal distances the first row's, then column's, is closer."""
    match = np.full(len(distance), -1)
    rows, columns = np.arange(len(distance)), np.arange(distance.shape[1])
    while len(rows) and len(columns):  # every pair that is the closest of both is taken at once: none is in its way
        left = distance[np.ix_(rows, columns)]
        best = left.argmin(1)
        mutual = left.argmin(0)[best] == np.arange(len(rows))
        match[rows[mutual]] = columns[best[mutual]]
        rows, columns = rows[~mutual], np.delete(columns, best[mutual])
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
    return torch.from_numpy(_l2(a, b[distinct.first])[:, distinct.of])


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


def _nearest_is_own(private: Tensor, guesses: Tensor, l2: np.ndarray, pool: Pool) -> np.ndarray:
    """Return whether each guess is nearer to its private image, at `l2`, than to any other of the pool. Exact copies of
    the private image are no others, nor are those of the guess, which may be a public image."""
    numbers = numbers_of(private, guesses, pool.public, pool.private)
    images, guessed, everyone = np.split(numbers, np.cumsum([len(private), len(guesses)]))
    identified = np.zeros(len(private), dtype=bool)
    for rows in np.array_split(np.arange(len(private)), len(private) // BLOCK + 1):
        others = (everyone != images[rows, None]) & (everyone != guessed[rows, None])
        nearer = distances(guesses[rows], torch.cat([pool.public, pool.private])).numpy() <= l2[rows, None]
        identified[rows] = ~(nearer & others).any(1)
    return identified


Transformation = Callable[[Tensor], Tensor]
"""What a client may have done to its images before it trained on them: (N, C, H, W) -> (N, C, H, W)."""

LARGEST_MSE = 10 ** (-RECOVERED_PSNR / 10)


class Identification:
    """Images (Q, C, H, W) of a pool, the first of equal ones, and candidates (M, C, H, W).

    rows: (Q,), where those images stand among all that were given, in this order. guesses: (M,), the number of the
    image that a candidate is an exact copy of; Q or more where it is of none.
    """

    def __init__(self, images: Tensor, candidates: Tensor):
        numbers, self.guesses = np.split(numbers_of(images, candidates), [len(images)])
        self.rows = np.unique(numbers, return_index=True)[1]
        self.images, self.candidates = images[self.rows], candidates
        self.numbers = np.arange(len(self.rows))
        self.l2 = _l2(self.images, self.candidates)

    def hits(self) -> np.ndarray:
        """Return the hits pixel by pixel, (Q, M)."""
        return self._near(self.l2) & self._identified(self.l2)

    def nearest_is(self, rows: np.ndarray, columns: np.ndarray, l2: np.ndarray) -> np.ndarray:
        """Return whether each candidate is nearer to an image, at `l2`, than to any other, its exact copy aside."""
        own, copies = self.numbers[:, None] == rows, self.numbers[:, None] == self.guesses[columns]
        return ~((self.l2[:, columns] <= l2) & ~own & ~copies).any(0)

    def recognized(self, likeness: np.ndarray, least: float) -> np.ndarray:
        """Return the hits by an eye: the pairs more alike than `least`, and identified by their likeness, (Q, M)."""
        return (likeness > least) & self._identified(-likeness)

    def affine_hits(self, inputs: Tensor) -> np.ndarray:
        """Return hits after the offset and positive gain per channel that bring a candidate nearest to the image, (Q,
        M), by least squares. A candidate belongs to the image of whose variance the fit leaves the smallest share.

        inputs: (M, C, H, W), the candidates before anything clamped them.
        """
        if not len(inputs):
            return np.zeros(self.l2.shape, dtype=bool)
        images, candidates = (values.double().flatten(2) for values in (self.images, inputs))
        images, candidates = (values - values.mean(2, keepdim=True) for values in (images, candidates))
        if self.l2.size > FEW:  # half the time, and as near as 20 dB asks
            images, candidates = images.float(), candidates.float()
        size = candidates.square().sum(2).clamp_min(torch.finfo(torch.float32).tiny)
        along = torch.einsum("qcd,mcd->qmc", images, candidates).clamp_min(0)  # a negative fits with a gain of 0
        variance = images.square().sum((1, 2))[:, None]
        left = (variance - (along.square() / size).sum(2)).clamp_min(0)
        share = torch.where(variance > 0, left / variance, 1.0)
        return self._near(left.sqrt().numpy()) & self._identified(share.numpy())

    def hits_up_to(self, transformations: Sequence[Transformation]) -> np.ndarray:
        """Return the hits modulo transformations of the images: each image is as far as its nearest view, (Q, M)."""
        l2 = self.l2
        for transformation in transformations:
            l2 = np.minimum(l2, _l2(transformation(self.images), self.candidates))
        return self._near(l2) & self._identified(l2)

    def _near(self, l2: np.ndarray) -> np.ndarray:
        return l2**2 <= LARGEST_MSE * self.images[0].numel()

    def _identified(self, distance: np.ndarray) -> np.ndarray:
        """Return whether a candidate is nearer to an image than to any other, its exact copy aside."""
        others = np.where(self.numbers[:, None] == self.guesses, np.inf, distance)
        own = self.numbers[:, None] == others.argmin(0)
        beyond = np.where(own, np.inf, others).min(0)
        return distance < np.where(own, beyond, others.min(0))


def count_images(hits: np.ndarray, copies: np.ndarray) -> int:
    """Count the images (D,), as often as each occurs, that a largest matching gives one of their hits (D, M)."""
    rows = hits.any(1)
    hits, copies = hits[rows][:, hits.any(0)], copies[rows]  # mostly few: matching everything would take seconds
    weights = hits * copies[:, None]
    return int(weights[scipy.optimize.linear_sum_assignment(weights, maximize=True)].sum())


def _l2(a: Tensor, b: Tensor) -> np.ndarray:
    if not len(b):
        return np.zeros((len(a), 0))
    b = b.flatten(1).double()
    blocks = (rows.flatten(1).double() for rows in a.split(BLOCK))
    return torch.cat([torch.cdist(rows, b, compute_mode="use_mm_for_euclid_dist") for rows in blocks]).numpy()
