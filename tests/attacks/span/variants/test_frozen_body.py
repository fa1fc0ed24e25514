from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge
from attacks.span.feature_space.network import find_feature_network
from attacks.span.feature_space.search import FeatureSearch
from attacks.span.feature_space.update import FeatureUpdate
from attacks.span.search.candidates import SearchOptions
from attacks.span.variants.frozen_body import head_of
from tests.attacks.conftest import digits, nearest
from tests.attacks.span.conftest import SHAPE, client, history, run, with_frozen_body

COUNT = 5


def trained(model, epochs=10):
    return client(model, digits(COUNT), batch=COUNT, epochs=epochs)


def head(observation):
    return head_of(observation, find_feature_network(observation.model, SHAPE))


def test_features_of_a_frozen_body_are_exact_and_so_are_images_with_fewer_pixels():
    observation, images = trained(with_frozen_body()), digits(COUNT)
    found = run(observation, Knowledge(pixel_mean=(0.3,)))
    assert found.num_inferred == COUNT and found.facts["certified"] == COUNT
    initial, network = observation.initial, find_feature_network(observation.model, SHAPE)
    features, own = (network.features(initial, x) for x in (found.images, images))
    missed = torch.cdist(own, features).min(1).values / own.norm(dim=1)
    assert float(missed.max()) < 0.02
    assert (nearest(images, found) < 0.5).all()


def test_rounds_with_private_sets_of_their_own_are_attacked_alone():
    model = with_frozen_body()
    found = run(history(model, digits(2 * COUNT).split(COUNT), batch=COUNT, epochs=5), Knowledge(pixel_mean=(0.3,)))
    assert found.num_inferred == len(found.images) == 2 * COUNT
    for number, warning in enumerate(found.warnings[1:], 1):
        assert warning.startswith(f"round {number}: the body is frozen: 5 feature vectors of 256 numbers were found, 5")


def test_a_head_computes_what_the_network_does():
    observation = trained(with_frozen_body(), epochs=1)
    alone = head(observation)
    features = find_feature_network(observation.model, SHAPE).features(observation.final, digits(COUNT))
    outputs = torch.func.functional_call(alone.model, alone.final, (features,))
    expected = torch.func.functional_call(observation.model, observation.final, (digits(COUNT),))
    assert torch.allclose(outputs, expected, atol=1e-6) and alone.input_shape == (256, 1, 1)
    assert len(alone.trainable) == 6


def test_only_a_head_of_linear_layers_and_relu_behind_a_frozen_body_counts():
    assert head(trained(with_frozen_body(nn.Tanh), epochs=1)) is None
    moving = with_frozen_body()
    moving[0].requires_grad_(True)
    assert head(trained(moving, epochs=1)) is None


def test_a_body_that_nobody_marked_as_frozen_is_frozen_where_it_did_not_move():
    observation = trained(with_frozen_body(), epochs=1)
    marked = head(observation)
    observation.model.requires_grad_()
    unmarked = head(replace(observation))
    assert unmarked.trainable == marked.trainable and unmarked.input_shape == marked.input_shape
    untouched = replace(observation, pairs=((observation.initial, observation.initial),))
    assert head(untouched) is None  # before anything is returned, as when a price is asked


def test_images_are_held_where_the_client_has_a_body_of_its_own():
    """Drawn anew and never sent, as with personal layers: the features are exact, and of another body than ours."""
    observation, images = trained(with_frozen_body()), digits(COUNT)
    model = with_frozen_body()
    torch.nn.init.normal_(model[0][0].weight, std=float(model[0][0].weight.std()))
    own, body = trained(model).final, observation.initial
    sent_back = own | {name: value for name, value in body.items() if name.startswith("0.")}
    found = run(replace(observation, pairs=((body, sent_back),)), Knowledge(pixel_mean=(0.3,)))
    assert len(found.images) == 0 and len(found.features) == COUNT
    assert (torch.cdist(images.flatten(1), found.held.flatten(1)).min(1).values > 2).all()


def test_images_are_held_where_the_client_has_a_body_near_the_known_one():
    """As where personal layers start from known ones: 0.3 deviations off, five had come back beyond 20 dB."""
    observation, images = trained(with_frozen_body()), digits(COUNT)
    model = with_frozen_body()
    with torch.no_grad():
        for own in model[0].parameters():
            own += 0.3 * own.std() * torch.randn(own.shape)
    body = observation.initial
    sent_back = trained(model).final | {name: value for name, value in body.items() if name.startswith("0.")}
    found = run(replace(observation, pairs=((body, sent_back),)), Knowledge(pixel_mean=(0.3,)))
    assert len(found.features) == COUNT
    assert (torch.cdist(found.images.flatten(1), images.flatten(1)) < 0.1 * 8).any(1).all()
    known = run(observation, Knowledge(pixel_mean=(0.3,)))
    assert len(known.images) == COUNT and known.residual.max() < 1e-3


def test_a_linear_head_is_refused_with_what_it_lacks():
    with pytest.raises(InputError, match="neither"):
        run(trained(with_frozen_body(head=()), epochs=1), Knowledge(num_private=COUNT))


def test_an_image_that_its_features_leave_open_is_held_and_its_features_are_returned():
    torch.manual_seed(0)  # 48 features of 64 pixels
    body = nn.Sequential(nn.Conv2d(1, 3, 3, 2, padding=1), nn.LeakyReLU(0.3), nn.Flatten()).requires_grad_(False)
    head_ = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    images = digits(COUNT)
    found = run(trained(nn.Sequential(body, head_)), Knowledge(pixel_mean=(0.3,)))
    assert len(found.images) == 0 and len(found.held) >= COUNT
    assert "5 images are not returned: their features leave other images open" in found.warnings[-1]
    missed = torch.cdist(body(images), found.features).min(1).values / body(images).norm(dim=1)
    assert float(missed.max()) < 1e-3


class OfLengthOne(nn.Module):
    def forward(self, images):
        return 10 * nn.functional.normalize(images.flatten(1))


class WithoutBrightness(nn.Module):
    def forward(self, images):
        return images.flatten(1) - images.mean((1, 2, 3))[:, None]


@pytest.mark.parametrize("body", [OfLengthOne, WithoutBrightness, lambda: nn.LayerNorm(SHAPE)])
def test_images_of_other_brightness_or_contrast_are_held_where_a_network_does_not_see_these(body):
    """As many features as pixels, and of every image a line or a plane of others has the same."""
    torch.manual_seed(0)
    layers = (nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    found = run(trained(nn.Sequential(body().requires_grad_(False), nn.Flatten(), *layers)), Knowledge())
    assert len(found.images) == 0 and len(found.held) >= COUNT and len(found.features) == COUNT
    assert (torch.cdist(digits(COUNT).flatten(1), found.held.flatten(1)).min(1).values > 0.1).all()


def test_images_are_held_where_a_body_does_not_see_their_signs():
    """Each pixel's square tells it up to its sign: of 64 signs half came out wrong, and no image near has the same."""

    class Squared(nn.Module):
        def forward(self, images):
            return 4 * images.flatten(1).square()

    torch.manual_seed(0)
    layers = (nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    observation = client(nn.Sequential(Squared(), *layers), digits(COUNT) - 0.3, batch=COUNT, epochs=10)
    found = run(observation, Knowledge(pixel_mean=(0.3,)))
    assert len(found.images) == 0 and len(found.held) >= COUNT and len(found.features) == COUNT


def test_a_body_that_flattens_by_view_is_run_on_no_batch_without_images():
    """As many networks do; torch refuses view(0, -1). All of the client's features are told here, so
    that none is held to be inverted."""

    class Viewed(nn.Module):
        def forward(self, maps):
            return maps.view(maps.size(0), -1)

    model = with_frozen_body()
    model[0][2] = Viewed()
    found = run(trained(model), Knowledge(pixel_mean=(0.3,)))
    assert len(found.features) == COUNT and (nearest(digits(COUNT), found) < 0.5).all()


def test_linear_layers_beside_each_other_are_no_head():
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.upper, self.lower, self.out = nn.Linear(32, 48), nn.Linear(32, 48), nn.Linear(96, 10)

        def forward(self, images):
            upper, lower = images.flatten(1).split(32, 1)
            return self.out(torch.cat([self.upper(upper).relu(), self.lower(lower).relu()], 1))

    assert head(trained(Halves(), epochs=1)) is None  # it had raised torch's error on shapes


def test_no_momentum_is_sought_where_every_step_sees_the_same_features():
    """Behind a frozen body no length of the first step moves a feature: there is nothing to derive by it."""
    observation = trained(with_frozen_body(nn.Tanh), epochs=1)
    network = find_feature_network(observation.model, SHAPE)
    search = FeatureSearch.of(FeatureUpdate.of(network, observation, Knowledge(num_private=COUNT)), SearchOptions())
    search.found = search._judged(digits(COUNT)[:1])
    assert search.update.factors.exact and not search._find_momentum(torch.Generator().manual_seed(0))
