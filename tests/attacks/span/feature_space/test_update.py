import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge, get_attack
from attacks.span.feature_space.update import resolved_rank
from attacks.update.spectrum import Spectrum
from tests.attacks.conftest import client, digits, generator


def test_rank_is_that_of_the_summands_or_ends_at_the_noise():
    generator = torch.Generator().manual_seed(0)
    left, right, noise = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((60, 12), (12, 200), (60, 200))
    )
    assert resolved_rank(Spectrum.of(left @ right + 1e-8 * noise)) == (12, True)
    low = torch.linalg.qr(left)[0] * torch.logspace(0, -7.2, 12, dtype=torch.float64) @ torch.linalg.qr(right.T)[0].T
    edge = 1e-9 * (60**0.5 + 200**0.5)  # the largest singular value of the noise (Marchenko and Pastur 1967)
    assert 2 * edge < 10**-7.2 < 10 * edge
    assert resolved_rank(Spectrum.of(low + 1e-9 * noise)) == (12, True)  # though the gap behind is not the widest
    decaying = torch.linalg.qr(left)[0] * 0.5 ** torch.arange(12) @ right
    rank, exact = resolved_rank(Spectrum.of(decaying + 1e-3 * noise))
    assert not exact and 6 <= rank <= 12


def test_a_layer_that_clients_froze_and_the_model_trains_is_named():
    """It was said that the client returned the checkpoint it was sent, while its last layer had moved."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 10))
    model[:4].requires_grad_(False)
    observation = client(model, digits(4), batches=[[0, 1, 2, 3]] * 2)
    assert observation.unmoved == ()
    told = replace(observation, model=copy.deepcopy(model).requires_grad_(True))
    assert told.unmoved == ("0.weight", "0.bias", "3.weight", "3.bias")
    with pytest.raises(InputError, match="layer '3' did not move, and the model says that it was trained"):
        get_attack("span").run(told, Knowledge(num_private=4), generator())


@pytest.mark.parametrize("features", [40, 100])
def test_features_that_do_not_determine_an_image_vouch_for_none(features):
    """40 for 64 pixels, or 100 of which ReLU leaves about half: images with the same features are up to 2.3 away."""
    torch.manual_seed(0)
    body = [nn.Conv2d(1, features, 8), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*body, nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 10))
    observation = client(model, digits(8), batches=[[0, 1, 2, 3], [4, 5, 6, 7]] * 3)
    found = get_attack("span").run(observation, Knowledge(num_private=8), generator())
    assert len(found.images) == 0 and len(found.held) > 0
    assert any("their features leave other images open" in warning for warning in found.warnings)
