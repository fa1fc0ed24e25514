from functools import partial

import torch

from attacks.span.search.descent import beside, descend_points, distinct
from attacks.span.search.problems import AffineSpan, SpanProblem
from attacks.span.thresholds import Descent
from tests.attacks.span.conftest import first_two


def test_deflation_keeps_the_search_away_from_what_is_found(federated):
    images, observation, _ = federated
    test, duals = first_two(observation)
    span = AffineSpan.of(duals.rows, torch.Generator().manual_seed(0))
    loss = SpanProblem.of(test, span).value_and_gradient
    start = torch.randn(40, 7, generator=torch.Generator().manual_seed(1))
    free = span.images(descend_points(loss, start, Descent(200, 0.05)).double()).float()
    hits = torch.cdist(images.flatten(1), free) < 0.5
    attractor = int(hits.sum(1).argmax())
    found = torch.linalg.qr(test.features(images[attractor].flatten(1)).T)[0].T
    deflated = span.images(descend_points(partial(loss, found=found), start, Descent(200, 0.05)).double()).float()
    again = torch.cdist(images[attractor].flatten(1), deflated) < 0.5
    assert int(hits[attractor].sum()) >= 5 and int(again.sum()) == 0


def test_distinct_keeps_the_best_of_each_cluster():
    points = torch.tensor([[0.0], [10.0], [0.01], [20.0], [10.01]])
    assert distinct(points).tolist() == [0, 1, 3]


def test_distinct_points_that_are_all_one_are_one():
    cluster = torch.ones(5, 4) + 1e-6 * torch.rand(5, 4, generator=torch.Generator().manual_seed(0))
    assert distinct(cluster).tolist() == [0]


def test_beside_leaves_out_what_is_known():
    known, points = torch.tensor([[0.0, 0.0], [4.0, 0.0]]), torch.tensor([[4.0, 0.01], [0.0, 9.0], [0.0, 9.01]])
    assert beside(known, points).tolist() == [1]
