"""What the first two layers' updates tell an attacker, and whether a search for images in them makes sense."""

from dataclasses import dataclass

from attacks.span.evidence.known_defense import UpdateAsSent
from attacks.span.evidence.layers import FirstLayers, informative_rounds
from attacks.span.thresholds import EVIDENCE, constants_of
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
    """

    layers: FirstLayers
    defense: UpdateAsSent
    spectrum: Spectrum
    inferred: int
    count: int
    tests: dict[int, Spectrum]
    directions: int
    outside: float
    doubts: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, layers: FirstLayers, defense: UpdateAsSent, spectrum: Spectrum, inferred: int, num_private: int | None
    ) -> "PixelEvidence":
        """From the layers before the defense. inferred: the rank of the first one. num_private: N where known."""
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
        outside = spectrum.relative_residual(count)
        tests = informative_rounds(layers.second, count)
        size = layers.second.shape[1]
        most = int(min(EVIDENCE.directions_per_image * count, EVIDENCE.directions_of_width * layers.width, size))
        directions = defense.directions(list(tests.values()), count, most, outside)
        return cls(layers, defense, spectrum, inferred, count, tests, directions, outside, doubts)

    @property
    def second_noise(self) -> float:
        """‖E‖ / ‖Δ‖ of the noise in the second layer's updates."""
        return self.defense.second_noise(list(self.tests.values()), self.outside)

    @property
    def error(self) -> float:
        """‖E‖ / ‖Δ‖ of the error in the first layer's update."""
        return max(self.outside, self.defense.distortion)

    @property
    def refusal(self) -> str | None:
        """Why a search makes no sense."""
        rank = self.defense.highest_rank(self.spectrum)
        no_sum = self.outside > EVIDENCE.refused_above and not self.defense.explains_error
        if self.count < 1 or self.count >= rank or no_sum:
            return (
                f"nothing returned: the first layer's update has rank {rank} and {self.outside:.2g} of its norm lies "
                f"outside {self.count} directions (at most {EVIDENCE.refused_above:g}): it is not a sum over few "
                "images, as after SGD (local Adam, much added noise, entries left out, more images than units or "
                "pixels?)"
            )
        needed = EVIDENCE.directions_needed * self.count
        if self.directions < needed:
            return (
                f"nothing returned: {self.count} images need {needed:.0f} directions of the second layer's rows, "
                f"{self.directions} can tell ({EVIDENCE.directions_of_width:g} of the width {self.layers.width}, and "
                "no more than the layer's outputs)"
            )
        return None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was undone, and what is in doubt where a search makes sense."""
        found, rank = [*self.layers.warnings, *self.doubts], self.defense.highest_rank(self.spectrum)
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
    def facts(self) -> dict[str, float]:
        read = {"k": float(self.directions), "used_num_private": float(self.count), "outside_span": self.outside}
        return self.layers.facts | read | constants_of(EVIDENCE)
