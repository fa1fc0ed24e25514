"""What the updates of an MLP's first two layers show of the images: how many they are, and what can test them."""

import math
from dataclasses import dataclass

from torch import Tensor

from attacks.base import Facts
from attacks.span.evidence.known_defense import UndoneDefense
from attacks.span.evidence.layers import at_rest, informative_rounds
from attacks.span.thresholds import CROWDED, EVIDENCE, SEARCH, constants_of
from attacks.update.private_set import CONSTANT_MISFIT
from attacks.update.spectrum import ROUNDING, Spectrum


@dataclass(frozen=True)
class RoundsApart:
    """Evidence that the rounds do not share one private set, as where clients take turns: each is attacked alone.

    rounds: indices of the pairs that images left a trace in. together: how many images all of them show. most: how
    many the round shows that shows most of them.
    """

    rounds: tuple[int, ...]
    together: int
    most: int


@dataclass(frozen=True)
class PixelEvidence:
    """The rank and the row spaces of the first two layers' updates.

    spectrum: of the first layer, in all rounds together. inferred: N as the spectrum shows it. count: N as it is used.
    tests: the rounds whose second layer tests candidates, with its spectrum. directions: k, how many directions of each
    of these hold the images' features. outside: ‖Δ − Δ_N‖ / ‖Δ‖ of the first layer. doubts: warnings on the number.
    crowded: whether there are so many images for the width that the search goes a way of its own, and still: whether
    their features did not move, so that N directions hold them exactly.
    """

    defense: UndoneDefense
    spectrum: Spectrum
    inferred: int
    count: int
    tests: dict[int, Spectrum]
    directions: int
    outside: float
    doubts: tuple[str, ...] = ()
    crowded: bool = False
    still: bool = False

    @classmethod
    def of(
        cls, defense: UndoneDefense, spectrum: Spectrum, inferred: int, num_private: int | None, relu: bool
    ) -> "PixelEvidence":
        """inferred: the rank of the first layer before the defense. num_private: N where known. relu: whether the
        network's activation is ReLU."""
        count = num_private or inferred
        doubts: tuple[str, ...] = ()
        if defense.count is not None:
            inferred = count = defense.count
        elif inferred < count < len(spectrum.values) and spectrum.values[count - 1] < ROUNDING * spectrum.values[0]:
            doubts = (
                f"{count} images were expected, the first layer's update has {inferred} directions above rounding: "
                "so many were looked for (images seen twice, or more than the pixels can tell apart)",
            )
            count = inferred
        elif count < inferred and _shows_all(defense.layers.change, spectrum, inferred):
            doubts = (
                f"{count} images were expected, the first layer's update has {inferred} directions and nothing behind "
                "them: so many were looked for (every view of an augmented image is one)",
            )
            count = inferred
        layers, outside = defense.layers, spectrum.relative_residual(count)
        tests = informative_rounds(layers.second, count)
        size = layers.second.shape[1]
        most = int(min(EVIDENCE.directions_per_image * count, EVIDENCE.directions_of_width * layers.width, size))
        exact = relu and not defense.explains_error and outside <= EVIDENCE.noisy_above
        crowded = exact and count > CROWDED.images_of_width * layers.width
        still = crowded and count <= CROWDED.still_of_width * layers.width and at_rest(tests.values(), count)
        if crowded:
            wanted = min(EVIDENCE.directions_needed * count, CROWDED.directions_of_width * layers.width)
            most = count if still else max(most, min(math.ceil(wanted), size))
        directions = defense.directions(list(tests.values()), count, most, outside)
        return cls(defense, spectrum, inferred, count, tests, directions, outside, doubts, crowded, still)

    @property
    def path(self) -> tuple[float, ...]:
        """Where features are tested on the way from the sent parameters (0) to the returned ones (1)."""
        return CROWDED.path if self.crowded and not self.still else CROWDED.path[:1]

    @property
    def leading_directions(self) -> int | None:
        """How many directions hold nearly all of the second layer's updates, as features that hardly moved need; None
        where that takes all of them."""
        few = math.ceil(SEARCH.leading_per_image * self.count)
        left = max(part.relative_residual(few) for part in self.tests.values())
        return few if few < self.directions and left < SEARCH.leading_misses else None

    @property
    def enough_directions(self) -> bool:
        """Whether the second layer's rows can test candidates."""
        return self.still or self.directions >= EVIDENCE.directions_needed * self.count

    @property
    def error(self) -> float:
        """‖E‖ / ‖Δ‖ of the error in the first layer's update."""
        return max(self.outside, self.defense.distortion)

    @property
    def zeros_tell(self) -> bool:
        """Whether zeros of a dual are units that its image left inactive. Where entries of the update were left out,
        any dual has zeros; such an update has nearly as many directions as pixels can have, where a sum over few images
        that are black in places has few."""
        few = self.count < EVIDENCE.left_out_rank * self.defense.highest_rank(self.spectrum)
        return few or not _leaves_entries_out(self.defense.layers.change)

    @property
    def like_adam(self) -> bool:
        """Whether the first layer's update looks like one of local Adam."""
        return looks_like_adam(self.defense, self.spectrum, self.inferred)

    @property
    def refusal(self) -> str | None:
        """Why a search makes no sense."""
        rank, width = self.defense.highest_rank(self.spectrum), self.defense.layers.width
        if self.like_adam:
            return (
                "nothing returned: the first layer's update has full rank and entries of similar size (their mean is "
                f"{_evenness(self.defense.layers.change):.2f} of their root mean square), which is what local Adam "
                "looks like: no number of images can be read off it, nor images (much added noise and more images than "
                "units or pixels have full rank too)"
            )
        no_sum = self.outside > EVIDENCE.refused_above and not self.defense.explains_error
        if self.count < 1 or self.count >= rank or no_sum:
            return (
                f"nothing returned: the first layer's update has rank {rank} and {self.outside:.2g} of its norm lies "
                f"outside {self.count} directions (at most {EVIDENCE.refused_above:g}): it is not a sum over few "
                "images, as after SGD (local Adam, much added noise, entries left out, more images than units or "
                "pixels?)"
            )
        if not self.enough_directions:
            needed = EVIDENCE.directions_needed * self.count
            share = CROWDED.directions_of_width if self.crowded else EVIDENCE.directions_of_width
            return (
                f"nothing returned: {self.count} images need {needed:.0f} directions of the second layer's rows, "
                f"{self.directions} can tell ({share:g} of the width {width}, and "
                "no more than the layer's outputs); local Adam looks like so many images too"
            )
        return None

    @property
    def hopeless(self) -> bool:
        """Whether a search cannot even give candidates to hold: no span of few images, or nothing that tests them."""
        few = 1 <= self.count < self.defense.highest_rank(self.spectrum)
        return self.like_adam or not (self.enough_directions and few)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was undone, and what is in doubt where a search makes sense."""
        found, rank = [*self.defense.layers.warnings, *self.doubts], self.defense.highest_rank(self.spectrum)
        if self.refusal is not None:
            return tuple(found)
        if self.outside > EVIDENCE.noisy_above:
            gap = float(self.spectrum.values[self.count - 1] / self.spectrum.values[self.count])
            sure = self.defense.explains_error or gap >= EVIDENCE.clear_gap
            guess = f", and a gap of {gap:.2g} between singular values makes {self.count} images a guess"
            found.append(
                f"{self.outside:.2g} of the first layer's update lies outside {self.count} directions: it is noisy"
                f"{'' if sure else guess}"
            )
        if self.count >= EVIDENCE.rank_exhausted * rank:
            found.append(
                f"{self.count} is near {rank}, the highest rank these pixels allow: a lower bound on the number"
            )
        return tuple(found)

    @property
    def facts(self) -> Facts:
        read = {"k": float(self.directions), "used_num_private": float(self.count), "outside_span": self.outside}
        used = (EVIDENCE, CROWDED) if self.crowded else (EVIDENCE,)
        return self.defense.layers.facts | ({} if self.like_adam else read) | constants_of(*used)


def looks_like_adam(defense: UndoneDefense, spectrum: Spectrum, inferred: int) -> bool:
    """Whether the first layer's update looks like one of steps that are equal in size for every entry. Its singular
    values then have no gap, nor do they end in a floor as those of SGD do, whether of noise or of rounding; or it has
    all the rank that its pixels allow, and entries of nearly equal size.

    spectrum: of that update. inferred: the number of images that it seems to show.
    """
    if defense.count is not None or not 1 <= inferred < len(spectrum.values):
        return False
    change = defense.layers.change
    last, behind = spectrum.values[inferred - 1 : inferred + 1].tolist()
    if last < EVIDENCE.clear_gap * behind:
        return spectrum.floor_flatness() < EVIDENCE.flat_floor
    exhausted = inferred >= EVIDENCE.rank_exhausted * min(spectrum.rows, 1 + _varying_pixels(change))
    return exhausted and _evenness(change) > EVIDENCE.even_entries


def _evenness(change: Tensor) -> float:
    """The mean of the sizes of an update's entries that moved, as a share of their root mean square."""
    sizes = change[change != 0].abs()
    return float(sizes.mean() / sizes.square().mean().sqrt())


def _leaves_entries_out(change: Tensor) -> bool:
    """Whether the first layer's update (W, in + 1) has zeros that are none of a whole row or column."""
    moved = change[change.any(1)][:, change.any(0)]
    return bool((moved == 0).float().mean() > EVIDENCE.entries_left_out)


def _shows_all(change: Tensor, spectrum: Spectrum, inferred: int) -> bool:
    """Whether the first layer's update (W, in + 1) is a sum over so many inputs: nothing but rounding lies behind, the
    pixels allow a much higher rank, and no entries were left out, as those of a sum are 0 by rows and columns only.
    Constant pixels say what the bias says, whatever made the update."""
    if _leaves_entries_out(change):
        return False
    exact = spectrum.relative_residual(inferred) <= EVIDENCE.noisy_above
    return exact and inferred < EVIDENCE.rank_exhausted * _varying_pixels(change)


def _varying_pixels(change: Tensor) -> int:
    """How many columns of the first layer's update (W, in + 1) are no multiple of the bias's."""
    bias = change[:, -1:]
    rest = change - bias * (bias.T @ change) / bias.square().sum()
    return int((rest.norm(dim=0) > CONSTANT_MISFIT * change.norm(dim=0)).sum())
