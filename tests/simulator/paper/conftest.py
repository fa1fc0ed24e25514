"""What tests of the papers' experiments share: the claims of a file, judged by statistics."""

import pytest

from simulator.paper.claims import judge, load_claims


@pytest.fixture
def judged():
    """A function (experiment, statistics) -> its claims by key, as `fedspill paper` judges them."""

    def judged(name, statistics):
        rules = load_claims(name)
        return dict(zip(rules, judge(rules, {"seeds": "1 seed", **statistics}), strict=True))

    return judged


@pytest.fixture
def holds(judged):
    """The same, as a list of whether their rules are met by all that was measured."""
    return lambda name, statistics: [claim.met for claim in judged(name, statistics).values()]
