"""What scoring costs, and that its short cuts give the numbers of the formulas that they stand for."""

import time

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity

from attacks import Knowledge, Observation
from attacks.gradient_matching.attack import GradientMatchingAttack
from attacks.scoring import images, recognition
from attacks.scoring.images import Distinct, Pool, distances, score_images, ssim
from attacks.scoring.leakage import score
from tests.attacks.conftest import generator
from tests.attacks.user_networks import Quickstart


def pictures(count, seed=0, size=8):
    return torch.rand((count, 1, size, size), generator=generator(seed))


def compared(private, guesses, l2, pool):
    """The definition: every image of the pool, pixel by pixel, but for copies of the image and of its guess."""
    everyone = torch.cat([pool.public, pool.private])
    found = []
    for image, guess, own in zip(private, guesses, l2, strict=True):
        others = [one for one in everyone if not (torch.equal(one, image) or torch.equal(one, guess))]
        found.append(all(float((one - guess).double().norm()) > own for one in others))
    return np.array(found)


@pytest.mark.parametrize("few", [images.FEW, 0], ids=["one by one", "by products"])
def test_an_image_is_identified_as_a_comparison_with_all_of_the_pool_has_it(monkeypatch, few):
    monkeypatch.setattr(images, "FEW", few)
    private, public = pictures(12), torch.cat([pictures(20, 1), pictures(12)[:2]])  # copies of the first two
    pool = Pool(public, torch.cat([private, pictures(9, 2), public[5:6]]))
    noise = torch.linspace(0, 1.2, 12)[:, None, None, None] * torch.randn(private.shape, generator=generator(3))
    candidates = torch.cat([(private + noise).clamp(0, 1)[:9], public[5:7], private[:1]])
    scores = score_images(private, candidates, pool)
    matched = scores.match >= 0
    guesses = candidates[scores.match]
    assert np.array_equal(scores.identified, matched & compared(private, guesses, scores.l2, pool))
    assert 0 < scores.identified.sum() < 12  # both kinds are there


def test_distances_by_products_are_those_one_by_one_and_tie_where_images_are_equal(monkeypatch):
    a, b = pictures(30), torch.cat([pictures(40, 1), pictures(30)[:3], pictures(40, 1)[:7]])
    plain = (a[:, None] - b[None]).flatten(2).double().norm(dim=2)
    monkeypatch.setattr(images, "FEW", 0)
    found = distances(a, b)
    assert torch.allclose(found, plain, atol=1e-6)
    assert torch.equal(found[:, :7], found[:, 43:])


def test_the_similarity_of_many_images_is_that_of_scikit_image():
    for size, window in ((8, 3), (20, 7)):
        a, b = (torch.rand((5, 3, size, size + 1), generator=generator(seed)) for seed in (0, 1))
        plain = [
            structural_similarity(x.numpy(), y.numpy(), win_size=window, data_range=1.0, channel_axis=0)
            for x, y in zip(a, b, strict=True)
        ]
        assert ssim(a, b) == pytest.approx(np.array(plain), abs=1e-6)


def test_equal_images_are_found_whatever_the_sign_of_their_zeros():
    one = torch.zeros(1, 1, 2, 2)
    found = Distinct.among(torch.cat([one, one + 1, -one, one + 1, one]))
    assert (found.first.tolist(), found.copies.tolist()) == ([0, 1], [3, 2])
    assert found.of.tolist() == [0, 1, 0, 1, 0]


def test_the_scores_of_many_images_are_those_of_few(monkeypatch):
    """Changed in contrast, noisy, somebody else's, held back, twice in the private set, and public."""
    private, public = pictures(20, size=16), torch.cat([pictures(200, 1, 16), pictures(20, size=16)[:1]])
    private = torch.cat([private, private[:3]])
    noise = 0.02 * torch.randn((8, 1, 16, 16), generator=generator(3))
    returned = torch.cat([0.5 * private[:6] + 0.2, private[6:14] + noise, public[:4], pictures(8, 5, 16)])

    def columns():
        pool = Pool(public, torch.cat([private, pictures(9, 2, 16)]))
        flips = [lambda images: images.flip(3)]
        return score(
            private, returned, pool, np.random.default_rng(0), held=private[14:16], transformations=flips
        ).columns()

    few = columns()
    for module in (images, recognition):
        monkeypatch.setattr(module, "FEW", 0)
    assert columns() == pytest.approx(few, abs=1e-6, nan_ok=True)
    assert few["recovered"] == 8 and few["recovered_affine"] > 12 and few["held"] == 10
    assert few["recognized"] >= 8


def seconds(work):
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.slow
def test_scoring_a_thousand_images_costs_at_most_a_tenth_of_their_attack():
    # against a pool of 3,400, whether all come back or none; two steps of 4,800 are timed, of a tenth of the images
    of_three = torch.rand((3000, 3, 32, 32), generator=generator())
    private, pool = of_three[:1000], Pool(torch.rand((400, 3, 32, 32), generator=generator(1)), of_three)
    net = Quickstart()
    state = net.state_dict()
    final = {name: value + 1e-3 * torch.randn(value.shape, generator=generator(2)) for name, value in state.items()}
    labels = tuple(range(10)) * 10
    known = Knowledge(num_private=100, labels=labels, learning_rate=0.01, steps=1, pixel_range=(0.0, 1.0))
    seen = Observation(net, ((state, final),), (3, 32, 32))
    attack = GradientMatchingAttack(iterations=2)
    attacking = seconds(lambda: attack.run(seen, known, generator())) / 2 * GradientMatchingAttack().iterations
    rng = np.random.default_rng
    nothing = seconds(lambda: score(private, private[:0], pool, rng(0)))
    everything = seconds(lambda: score(private, (private + 0.01).clamp(0, 1), pool, rng(0)))
    assert everything < 0.1 * attacking
    assert nothing < 0.2 * everything  # whoever returns nothing is compared with nobody
