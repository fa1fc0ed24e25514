"""Every attack on the card that is not there: what the CPU gives, on one device, and loops that do not wait for it."""

from collections import Counter

import pytest
import torch

from attacks import ATTACKS
from tests.device.card import card
from tests.device.cases import CASES

pytestmark = pytest.mark.slow

FEW, MORE, MOST = 3, 9, 15  # runs of every loop
MOST_IN_A_RUN = 60  # waits at one place; a loop that no option counts shows here
DECIDES = {
    "attacks/gradient_matching/attack.py:solve": "torch's L-BFGS decides on the host",
    "attacks/gradient_matching/simulation.py:_draw": "the order of the images comes from the CPU's random numbers",
    "attacks/span/feature_space/cone.py:cone_features": "a vertex of a linear program on the host, image by image",
    "attacks/span/feature_space/cone.py:search": "linear programs on the host, until they lead to nothing new",
    "attacks/span/feature_space/cone.py:_takes": "whether a vertex of a linear program on the host is certified",
    "attacks/span/feature_space/cone.py:silent_signals": "whether features of the host are certified",
    "attacks/span/feature_space/cone.py:_is_nonnegative": "whether features of the host are certified",
    "attacks/span/feature_space/cone.py:_is_pinned": "whether a vertex of a linear program on the host is certified",
    "attacks/span/feature_space/cone.py:_left_without_one": "whether a vertex of a linear program is certified",
    "attacks/span/feature_space/cone.py:_left_by_zeros": "whether features of the host are certified",
    "attacks/span/feature_space/cone.py:_zeros": "whether features of the host are certified",
    "attacks/span/feature_space/cone.py:_vertices": "linear programs on the host",
    "attacks/span/feature_space/cone.py:_sharpened": "a vertex of a linear program on the host, one at a time",
    "attacks/span/search/descent.py:extreme_images": "linear programs on the host, where images are missing",
    "attacks/span/sparse_duals.py:_reweighted": "whether to go on, once for each reweighting of one image",
    "attacks/span/sparse_duals.py:_trimmed": "whether to go on, once for each trim of one image",
    "attacks/span/acceptance.py:_ridge_solution": "torch checks every Cholesky factor, two for each iteration",
    "attacks/update/spectrum.py:_tail": "scipy looks for the root of a function of the update",
}
"""The places that may wait in a loop, and why."""


def on_the_card(case, budget):
    with card() as waits:
        return case.run("cuda", budget), waits.by_place()


def grown(few: Counter[str], more: Counter[str]) -> set[str]:
    """Places that wait once, or more often, for every further run of the loops."""
    return {place for place in more if more[place] - few[place] >= MORE - FEW}


@pytest.mark.filterwarnings("error::UserWarning")  # a step that no graph can hold
@pytest.mark.parametrize("name", CASES)
def test_an_attack_gives_what_the_cpu_gives_and_its_loops_do_not_wait(name):
    case = CASES[name]
    here, (there, few) = case.run("cpu", FEW), on_the_card(case, FEW)
    for field in ("images", "residual", "duals", "held", "features"):
        one, other = getattr(here, field), getattr(there, field)
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4, equal_nan=True)
    more = on_the_card(case, MORE)[1]
    if suspected := grown(few, more) - set(DECIDES):  # or is it that more is found, of which each is looked at once?
        assert not suspected & grown(more, on_the_card(case, MOST)[1])
    assert not {place for place, count in few.items() if count > MOST_IN_A_RUN} - set(DECIDES)


def test_every_registered_attack_has_cases():
    assert {case.attack for case in CASES.values()} == set(ATTACKS)


def test_a_loop_that_waits_is_told():
    def looped(times):
        with card() as waits:
            total = torch.ones((), device="cuda")
            for _ in range(times):
                float(total)
        return waits.by_place()

    assert grown(looped(FEW), looped(MORE)) == {"test_attacks.py:looped"}
