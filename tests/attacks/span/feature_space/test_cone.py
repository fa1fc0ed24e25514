import torch
from torch.nn.functional import cosine_similarity, pad

from attacks.span.feature_space.cone import cone_features, cone_vectors, silent_signals
from attacks.span.feature_space.network import UpdateFactors
from attacks.span.thresholds import CONE

COUNT, SIZE, WIDTH = 4, 40, 60


def factors_of(update, rank):
    left, values, rows = torch.linalg.svd(update, full_matrices=False)
    return UpdateFactors(left[:, :rank], values[:rank], rows[:rank], exact=True)


def drawn(seed, count=COUNT):
    """(a layer, features behind a ReLU, what the layer is fed by each (F, W))."""
    generator = torch.Generator().manual_seed(seed)
    layer = torch.randn(WIDTH, SIZE + 1, generator=generator, dtype=torch.float64)
    features = torch.randn(count, SIZE, generator=generator, dtype=torch.float64).relu()
    return layer, features, pad(features, (0, 1), value=1.0) @ layer.T, generator


def step(seed, count=COUNT):
    """(the layer, the features, the update of one SGD step: δ_i is zero where a unit is shut)."""
    layer, features, fed, generator = drawn(seed, count)
    signals = torch.randn(count, WIDTH, generator=generator, dtype=torch.float64) * (fed > 0)
    return layer, features, signals.T @ pad(features, (0, 1), value=1.0)


def found_in(update, layer, count=COUNT):
    return cone_features(factors_of(update, count), layer, torch.Generator().manual_seed(0))


def test_the_features_of_one_step_are_the_vertices_that_come_back():
    for count in (1, COUNT, 12):
        layer, features, update = step(1, count)
        found, share = found_in(update, layer, count)
        order = torch.cdist(features, found).argmin(1)
        assert sorted(order.tolist()) == list(range(count))
        torch.testing.assert_close(found[order], features, atol=1e-6, rtol=0)
        assert (share < 1e-6).all()


def test_rounding_of_float32_parameters_is_borne():
    layer, features, update = step(2, 8)
    rounded = (layer + 0.01 * update).float().double() - layer.float().double()
    found, _ = found_in(rounded, layer, 8)
    assert len(found) == 8
    assert (torch.cdist(features, found).amin(1) < 1e-2 * features.norm(dim=1)).all()


def test_an_image_that_opens_no_unit_that_another_shuts_is_told_from_their_mixtures():
    """Both signals vanish where the second one's do: the first is found first, and the second in what is left."""
    layer, features, fed, generator = drawn(3)
    signals = torch.randn(COUNT, WIDTH, generator=generator, dtype=torch.float64) * (fed > 0)
    signals[0] *= fed[1] > 0
    found, _ = found_in(signals.T @ pad(features, (0, 1), value=1.0), layer)
    assert len(found) >= COUNT - 1
    assert (cosine_similarity(found[:, None], features, dim=2).amax(1) > 0.998).all()


def test_a_signal_is_told_where_enough_units_are_shut():
    layer, features, update = step(4)
    factors = factors_of(update, COUNT)
    (signal,) = silent_signals(factors, layer, features[0], 0)
    shut = layer[:, :-1] @ features[0] + layer[:, -1] <= 0
    assert float((factors.left @ signal)[shut].norm()) < 1e-9
    assert not len(silent_signals(factors, layer, features[0], WIDTH))
    assert not len(silent_signals(factors, layer, features[:2].mean(0), 0))


def test_nothing_is_found_in_updates_of_random_rows_or_signals(monkeypatch):
    """Signed rows, and positive ones, which have no zeros, with signals that pass no ReLU."""
    monkeypatch.setattr(CONE, "barren", 3)
    generator = torch.Generator().manual_seed(5)
    for draw in range(5):
        layer = drawn(1000 + draw)[0]
        signals = torch.randn(WIDTH, COUNT, generator=generator, dtype=torch.float64)
        rows = torch.randn(COUNT, SIZE, generator=generator, dtype=torch.float64)
        for points in (rows, rows.abs()):
            assert not len(found_in(signals @ pad(points, (0, 1), value=1.0), layer)[0])


def test_zeros_certify_where_signals_pass_no_relu():
    """As where nearly as many images as units move: rows that have zeros enough are found."""
    for draw in range(5):
        layer, features, _, generator = drawn(1000 + draw)
        signals = torch.randn(WIDTH, COUNT, generator=generator, dtype=torch.float64)
        found, share = found_in(signals @ pad(features, (0, 1), value=1.0), layer)
        assert len(found) == COUNT and not share.any()
        assert (torch.cdist(features, found).amin(1) < 1e-5).all()


def test_vectors_that_no_relu_follows_are_told_by_their_zeros_alone(monkeypatch):
    """Up to their sum, where there is no bias. Signed rows have no such vertices, dense ones no zeros to spare."""
    monkeypatch.setattr(CONE, "barren", 5)
    generator = torch.Generator().manual_seed(6)
    private = torch.randn(6, 150, generator=generator, dtype=torch.float64).relu()
    for draw in range(5):
        mixed = torch.randn(6, 6, generator=generator, dtype=torch.float64)
        signed = torch.randn(6, 150, generator=generator, dtype=torch.float64)
        for rows, count in ((private, 6), (signed, 0), (private + 1, 0)):
            basis = torch.linalg.qr((mixed @ rows).T)[0].T
            rows = torch.cat([basis, basis.sum(1, keepdim=True)], 1)
            found, certified = cone_vectors(rows, torch.Generator().manual_seed(draw))
            found = found[:certified]
            assert len(found) == count
        rows = torch.linalg.qr((mixed @ pad(private, (0, 1), value=1.0)).T)[0].T
        found = cone_vectors(rows, generator)[0]
        assert torch.cdist(private, found).amin(1).max() < 1e-3
