"""Read off the updates of an MLP's first two layers how many images there are, and what can test candidates."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import torch
from torch import Tensor

from attacks.base import Facts
from attacks.span.evidence.known_defense import UndoneDefense
from attacks.span.evidence.layers import at_rest, informative_rounds
from attacks.span.stages import Refusal
from attacks.span.thresholds import CROWDED, EVIDENCE, SEARCH, constants_of
from attacks.update.private_set import CONSTANT_MISFIT
from attacks.update.spectrum import ROUNDING, Spectrum

TOLD_APART = 64  # units by which columns of an update are told from each other
EQUAL = 1e-4  # of a column's norm: the distance below which two are one, float32 parameters being rounded


class Regime(Enum):
    """What kind of update the first two layers show. It decides how the update is tested, searched and judged."""

    PLAIN = "plain"
    """A sum over few images, exact but for rounding."""
    CROWDED = "crowded"
    """An exact sum over many images for the width of a ReLU layer, which needs another search."""
    STILL = "still"
    """Crowded, but features did not move during training: N directions of the second layer hold them exactly."""
    NOISY = "noisy"
    """A larger error than rounding: it hides the zeros of duals, and N may be a guess."""
    KNOWN_NOISE = "known noise"
    """Noise of a size that the attacker knows: it hides the zeros of duals."""
    COMPLETED = "completed"
    """A quantized or sparsified update, completed from the intervals of its entries."""

    @property
    def many_images(self) -> bool:
        """Whether there are many images for the width."""
        return self in (Regime.CROWDED, Regime.STILL)

    @property
    def exact(self) -> bool:
        """Whether the update holds no error but that of rounding."""
        return self in (Regime.PLAIN, Regime.CROWDED, Regime.STILL)

    @property
    def explained(self) -> bool:
        """Whether a known defense explains what lies outside N directions."""
        return self in (Regime.KNOWN_NOISE, Regime.COMPLETED)


def regime_of(defense: UndoneDefense, tests: Iterable[Spectrum], count: int, outside: float, relu: bool) -> Regime:
    """Decide the regime of an update.

    tests: spectra of the second layer, round by round.
    count: N, the number of images.
    outside: ‖Δ − Δ_N‖ / ‖Δ‖ of the first layer.
    relu: whether the activation is ReLU.
    """
    width = defense.layers.width
    if defense.second_rank is not None:
        return Regime.COMPLETED
    if defense.second_deviation is not None:
        return Regime.KNOWN_NOISE
    if outside > EVIDENCE.noisy_above:
        return Regime.NOISY
    if not relu or count <= CROWDED.images_of_width * width:
        return Regime.PLAIN
    still = count <= CROWDED.still_of_width * width and at_rest(tests, count)
    return Regime.STILL if still else Regime.CROWDED


@dataclass(frozen=True)
class PixelEvidence:
    """The rank and the row spaces of the first two layers' updates.

    defense: the layers, without what is known of a defense.
    spectrum: singular values and rows of the first layer's update, all rounds together.
    inferred: N as the spectrum shows it.
    count: N as it is used.
    tests: round -> spectrum of the second layer's update, for the rounds that test candidates.
    directions: k, how many directions of each of these hold the images' features.
    outside: ‖Δ − Δ_N‖ / ‖Δ‖ of the first layer.
    doubts: warnings that `count` is not the number that was expected.
    told: whether N as it is used was told, and so is no guess.
    """

    defense: UndoneDefense
    spectrum: Spectrum
    inferred: int
    count: int
    tests: dict[int, Spectrum]
    directions: int
    outside: float
    doubts: tuple[str, ...] = ()
    regime: Regime = Regime.PLAIN
    told: bool = False

    @classmethod
    def of(
        cls, defense: UndoneDefense, spectrum: Spectrum, inferred: int, num_private: int | None, relu: bool
    ) -> "PixelEvidence":
        """Read the evidence off the layers.

        inferred: rank of the first layer's update before the defense.
        num_private: N where it is known.
        relu: whether the network's activation is ReLU.
        """
        inferred, count, doubts = _numbers(defense, spectrum, inferred, num_private)
        if defense.count is None and (layers := defense.layers.steadied(spectrum, count)) is not defense.layers:
            defense, spectrum = replace(defense, layers=layers), Spectrum.of(layers.change)
        layers, outside = defense.layers, spectrum.relative_residual(count)
        tests = informative_rounds(layers.second, count)
        regime = regime_of(defense, tests.values(), count, outside, relu)
        size = layers.second.shape[1]
        most = int(min(EVIDENCE.directions_per_image * count, EVIDENCE.directions_of_width * layers.width, size))
        if regime is Regime.STILL:
            most = count
        elif regime is Regime.CROWDED:
            wanted = min(EVIDENCE.directions_needed * count, CROWDED.directions_of_width * layers.width)
            most = max(most, min(math.ceil(wanted), size))
        directions = defense.directions(list(tests.values()), count, most, outside)
        told = num_private == count
        return cls(defense, spectrum, inferred, count, tests, directions, outside, doubts, regime, told)

    @property
    def path(self) -> tuple[float, ...]:
        """Where features are tested, from the sent parameters (0) to the returned ones (1)."""
        return CROWDED.path if self.regime is Regime.CROWDED else CROWDED.path[:1]

    @property
    def leading_directions(self) -> int | None:
        """How many directions hold nearly all of the second layer's updates; None if it takes all of them."""
        few = math.ceil(SEARCH.leading_per_image * self.count)
        left = max(part.relative_residual(few) for part in self.tests.values())
        return few if few < self.directions and left < SEARCH.leading_misses else None

    @property
    def error(self) -> float:
        """‖E‖ / ‖Δ‖ of the error in the first layer's update."""
        return max(self.outside, self.defense.distortion)

    @property
    def rough(self) -> bool:
        """Whether the update holds a larger error than float32's rounding, as mixed precision leaves it: mixtures of
        duals have as many zeros there as duals."""
        return self.outside > EVIDENCE.decay_sought_above

    @property
    def rank(self) -> int:
        """The highest rank that the first layer's update can have."""
        return self.defense.highest_rank(self.spectrum)

    @property
    def testable(self) -> bool:
        """Whether the second layer has enough directions to test candidates."""
        return self.regime is Regime.STILL or self.directions >= EVIDENCE.directions_needed * self.count

    @cached_property
    def has_left_out_entries(self) -> bool:
        """Whether the client left entries of the update out, so that the duals of all points have zeros."""
        return _leaves_entries_out(self.defense.layers.change, self.count, self.rank)

    @cached_property
    def like_adam(self) -> bool:
        """Whether the first layer's update looks like one of local Adam."""
        return looks_like_adam(self.defense, self.spectrum, self.inferred)

    @cached_property
    def refusal(self) -> Refusal | None:
        """Why no image may be returned, or None. Candidates may be held if few images span the update and can be
        tested."""
        if self.like_adam:
            return Refusal(
                f"nothing returned: the first layer's update has {self._entries}, which is what local Adam "
                "looks like, or a server's (FedAdam) between global checkpoints, whose first round can be undone "
                "(docs/howto/audit_in_full.md): no number of images can be read off it, nor images (much added noise, "
                "rounding, entries left out and more images than units or pixels have full rank too)"
            )
        needed, layers = EVIDENCE.directions_needed * self.count, self.defense.layers
        if self.count >= self.rank:
            return Refusal(
                f"nothing returned: the first layer's update has rank {self.rank}, the highest that its units and "
                "pixels allow, of which one that is 0 in every image adds none (as many images or more, local Adam, "
                "much added noise, entries left out?)"
            )
        if not self.count or (self.outside > EVIDENCE.refused_above and not self.regime.explained):
            return Refusal(
                f"nothing returned: the first layer's update has rank {self.rank} and {self.outside:.2g} of its norm "
                f"lies outside {self.count} directions (at most {EVIDENCE.refused_above:g}): it is not a sum over few "
                "images, as after SGD (local Adam, much added noise, entries left out, more images than units or "
                "pixels?)",
                hopeless=not (self.count and self.testable),
            )
        if not self.testable:
            share = CROWDED.directions_of_width if self.regime.many_images else EVIDENCE.directions_of_width
            return Refusal(
                f"nothing returned: {self.count} images need {needed:.0f} directions of the second layer's rows, "
                f"{self.directions} can tell ({share:g} of the width {layers.width}, and "
                "no more than the layer's outputs), and an update by local Adam, or by a server's "
                "(docs/howto/audit_in_full.md), looks like one of so many images too"
            )
        return None

    @property
    def _entries(self) -> str:
        """What the update's entries have in common, in words."""
        if self.inferred == 1:
            return "rank 1 and columns of equal size, the signs of pixels"
        mean = f"{_evenness(self.defense.layers.change):.2f} of their root mean square"
        return f"full rank and entries of similar size (their mean is {mean})"

    @property
    def guessed(self) -> bool:
        """Whether the number of images is a guess: the update is noisy, and nothing else tells it."""
        if self.outside <= EVIDENCE.noisy_above or self.told or self.regime.explained:
            return False
        return self._gap < EVIDENCE.clear_gap

    @property
    def _gap(self) -> float:
        return float(self.spectrum.values[self.count - 1] / self.spectrum.values[self.count])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was undone, and what is in doubt where a search makes sense."""
        found = [*self.defense.layers.warnings, *self.doubts]
        if self.refusal is not None:
            return tuple(found)
        if self.outside > EVIDENCE.noisy_above:
            guess = f", and a gap of {self._gap:.2g} between singular values makes {self.count} images a guess"
            found.append(
                f"{self.outside:.2g} of the first layer's update lies outside {self.count} directions: it is noisy"
                f"{guess if self.guessed else ''}"
            )
        if self.count >= EVIDENCE.rank_exhausted * self.rank:
            found.append(
                f"{self.count} is near {self.rank}, the highest rank these pixels allow: a lower bound on the number"
            )
        return tuple(found)

    @property
    def facts(self) -> Facts:
        read = {"k": float(self.directions), "used_num_private": float(self.count), "outside_span": self.outside}
        used = (EVIDENCE, CROWDED) if self.regime.many_images else (EVIDENCE,)
        return self.defense.layers.facts | ({} if self.like_adam else read) | constants_of(*used)


def _numbers(
    defense: UndoneDefense, spectrum: Spectrum, inferred: int, num_private: int | None
) -> tuple[int, int, tuple[str, ...]]:
    """Return (N as the update shows it, N to use, warnings). inferred, num_private: as of `PixelEvidence.of`."""
    count = num_private or inferred
    if defense.count is not None:
        return defense.count, defense.count, ()
    if inferred < count < len(spectrum.values) and spectrum.values[count - 1] < ROUNDING * spectrum.values[0]:
        doubt = (
            f"{count} images were expected, the first layer's update has {inferred} directions above rounding: "
            "so many were looked for (images seen twice, others in rounds that are not used or moved nothing, more "
            "than the pixels can tell apart, or an update that was sent as a matrix of low rank?)"
        )
        return inferred, inferred, (doubt,)
    if count < inferred and _shows_all(defense.layers.change, spectrum, inferred):
        doubt = (
            f"{count} images were expected, the first layer's update has {inferred} directions and nothing behind "
            "them: so many were looked for (every view of an augmented image is one)"
        )
        return inferred, inferred, (doubt,)
    return inferred, count, ()


def looks_like_adam(defense: UndoneDefense, spectrum: Spectrum, inferred: int) -> bool:
    """Return whether the first layer's update looks as if each step had changed all entries by the same size.

    Either its singular values have no gap and no floor, or it has all the rank that its pixels allow and entries of
    equal size, or shows the signs of one image. spectrum: of that update. inferred: the number of images that it seems
    to show.
    """
    if defense.count is not None or not 1 <= inferred < len(spectrum.values):
        return False
    change = defense.layers.change
    last, behind = spectrum.values[inferred - 1 : inferred + 1].tolist()
    if last < EVIDENCE.clear_gap * behind:
        return spectrum.floor_flatness() < EVIDENCE.flat_floor
    if inferred == 1:
        return shows_signs(change)
    exhausted = inferred >= EVIDENCE.rank_exhausted * min(spectrum.rows, 1 + different_columns(change))
    return exhausted and _evenness(change) > EVIDENCE.even_entries


def shows_signs(change: Tensor) -> bool:
    """Return whether what feeds a layer of this update (W, in + 1) has entries of −1, 0 and 1 alone. However far apart
    the units' entries are, adaptive steps leave no more of an image."""
    sizes = change.norm(dim=0)
    pixels, bias = sizes[:-1][sizes[:-1] > 0], sizes[-1]
    return bool(((pixels - bias).abs() <= EVIDENCE.sign_error * bias).double().mean() >= EVIDENCE.signs)


def _evenness(change: Tensor) -> float:
    """Return the mean size of the nonzero entries of an update over their root mean square."""
    sizes = change[change != 0].abs()
    return float(sizes.mean() / sizes.square().mean().sqrt())


def _leaves_entries_out(change: Tensor, count: int, rank: int) -> bool:
    """Return whether the first layer's update (W, in + 1) has zeros outside of rows and columns of zeros, and `count`
    directions, nearly as many as the highest rank that it can have: black pixels of few images make zeros, too."""
    if count < EVIDENCE.left_out_rank * rank:
        return False
    moved = change[change.any(1)][:, change.any(0)]
    return bool((moved == 0).float().mean() > EVIDENCE.entries_left_out)


def _shows_all(change: Tensor, spectrum: Spectrum, inferred: int) -> bool:
    """Return whether the first layer's update (W, in + 1) is a sum over `inferred` inputs: only rounding lies behind
    them, its pixels allow a much higher rank, and no entries were left out."""
    if _leaves_entries_out(change, inferred, min(spectrum.rows, spectrum.columns)):
        return False
    exact = spectrum.relative_residual(inferred) <= EVIDENCE.noisy_above
    return exact and inferred < EVIDENCE.rank_exhausted * different_columns(change)


def different_columns(change: Tensor) -> int:
    """Count the different columns of the first layer's update (W, in + 1) that are not a multiple of the bias's.
    Constant pixels have such multiples. Rounding to a few bits spoils the multiples, but leaves equal columns equal."""
    bias = change[:, -1:]
    rest = change - bias * (bias.T @ change) / bias.square().sum()
    varying = change[:, rest.norm(dim=0) > CONSTANT_MISFIT * change.norm(dim=0)]
    rows = varying[varying.norm(dim=1).topk(min(TOLD_APART, len(varying))).indices]
    mixed = torch.arange(1, len(rows) + 1).to(rows).cos() @ rows  # sorting by it puts equal columns side by side
    rows = rows[:, mixed.argsort()]
    other = rows.diff(dim=1).norm(dim=0) > EQUAL * rows[:, 1:].norm(dim=0)
    return int(other.sum()) + (rows.shape[1] > 0)
