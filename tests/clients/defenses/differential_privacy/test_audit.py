"""One run with canaries says how small ε cannot be; the accountant's figure has to lie above that."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import nn

from clients.chain import ChainedDefense
from clients.config import TrainingConfig
from clients.training import train
from tests.clients.defenses.differential_privacy.lower_bound import epsilon_lower_bound, p_value
from tests.clients.defenses.parts import context, make

CANARIES, GUESSES, STEPS = 1000, 400, 4


def audited(seed, multiplier, added=None):
    """(ε that is printed, ε that is proven to be exceeded) of one training run of a linear network on canaries.

    Every canary is one bright pixel of its own, so that its gradient, which is clipped, meets no other's. multiplier:
    of the noise that is accounted for. added: of the noise that is added, where that is another.
    """
    random = np.random.default_rng(seed)
    included = random.random(CANARIES) < 0.5
    images = 10 * torch.eye(CANARIES)[torch.from_numpy(included)].reshape(-1, 1, 1, CANARIES)
    targets = torch.zeros(len(images), dtype=torch.long)
    model = nn.Sequential(nn.Flatten(), nn.Linear(CANARIES, 2, bias=False))
    nn.init.zeros_(model[1].weight)
    training = TrainingConfig(steps=STEPS, learning_rate=1e-3)
    where = context(model=model, steps=STEPS, epochs=None, batch_size=None, learning_rate=1e-3)
    where = type(where)(where.config.model_copy(update={"seed": seed}), 1, 0, model)
    defense = make("dp_sgd", noise_multiplier=multiplier if added is None else added)
    train(model, images, targets, training, torch.Generator().manual_seed(seed), [ChainedDefense(defense, where)])
    moved = (model[1].weight[0] - model[1].weight[1]).detach().numpy()  # towards class 0, pixel by pixel
    spent = make("dp_sgd", noise_multiplier=multiplier).privacy_spent(where, STEPS, len(images))
    return spent.epsilon, epsilon_lower_bound(moved, included, GUESSES, spent.delta)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("multiplier", [1.0, 4.0])
def test_what_is_proven_never_exceeds_what_is_printed(seed, multiplier):
    printed, proven = audited(seed, multiplier)
    assert proven <= printed
    assert multiplier > 1 or proven > 1  # and the audit is no formality


@pytest.mark.parametrize(("added", "beyond"), [(1e-6, 1), (0.5, 0)])
def test_a_mechanism_that_forgets_its_noise_or_adds_an_eighth_of_it_is_found_out(added, beyond):
    printed, proven = audited(0, 4.0, added)
    assert proven > printed + beyond


def test_guesses_that_are_all_right_prove_what_the_binomial_says():
    """q^r = 5 % at δ = 0: ε = log(q / (1 − q))."""
    included = np.arange(200) >= 100
    q = 0.05 ** (1 / 200)
    assert epsilon_lower_bound(np.arange(200.0), included, 200, 0.0) == pytest.approx(math.log(q / (1 - q)), rel=1e-6)
    assert epsilon_lower_bound(np.arange(200.0), ~included, 200, 0.0) == 0.0
    assert p_value(200, 100, 80, 1.0, 0.0) == pytest.approx(binom.sf(79, 100, 1 / (1 + math.exp(-1))))


def test_delta_makes_a_proof_harder():
    assert p_value(1000, 100, 90, 1.0, 1e-5) > p_value(1000, 100, 90, 1.0, 0.0)
    assert p_value(1000, 100, 90, 1.0, 1.0) == 1.0
