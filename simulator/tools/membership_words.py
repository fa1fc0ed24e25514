"""What membership scores mean, in words: how many candidates are members, at which rate of false alarms."""

from torch import Tensor

from attacks.calibration import FEWEST_OUTSIDERS, Calibrated

WIDE_GAP = 1.0  # in score: the residuals on its two sides differ by a factor of e
UNLIKELY = 0.01  # probability of as many by chance, from which on candidates are told at all


def membership_words(residual: Tensor, outsiders: Tensor | None, num_private: int) -> list[str]:
    """Sentences with a threshold and counts.

    residual: (Q,) of the candidates. outsiders: (P,) of images that are known to be no members, held out to calibrate
    the threshold; None where there are none. num_private: images that the update was trained on.
    """
    scores = -residual.double().log()
    if outsiders is None:
        return _by_gap(scores, num_private)
    found = Calibrated.of(residual, outsiders)
    if found is None:
        few = f"{len(outsiders)} images that are no members are too few to calibrate a threshold: give at least"
        return [f"{few} {FEWEST_OUTSIDERS}", *_by_gap(scores, num_private)]
    said = (
        f"{found.told} of {found.candidates} candidates are told to be members at a false-positive rate of at most "
        f"{100 * found.rate:g} %: score above {found.threshold:.2f}, which at most {found.passed} of {found.outsiders} "
        "images that are no members reach"
    )
    chance = f"about {found.rate * found.candidates:.1f}"
    if found.p > UNLIKELY:
        return [f"{said}; {chance} would be by chance (p = {found.p:.2g}): this update does not tell"]
    return [f"{said}; {chance} of them are by chance"]


def _by_gap(scores: Tensor, num_private: int) -> list[str]:
    """Without outsiders there is no rate of false alarms: only whether the scores fall into two groups."""
    no_rate = "how many of them are false alarms is not known: give images that are no members with --public"
    order = scores.sort(descending=True).values
    if len(order) < 2:
        return [f"the candidate's score is {float(order[0]):.2f}; {no_rate}"]
    gaps = order[:-1] - order[1:]
    above = int(gaps.argmax()) + 1
    if float(gaps.max()) < WIDE_GAP or above > num_private:
        return [
            f"the scores, {float(order[-1]):.2f} to {float(order[0]):.2f}, form no two groups: no threshold is told"
        ]
    return [
        f"{above} of {len(order)} candidates look like members: their scores are {float(order[above - 1]):.2f} to "
        f"{float(order[0]):.2f}, all others' at most {float(order[above]):.2f}, and the update holds {num_private} "
        f"images; {no_rate}"
    ]
