import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

from attacks import Knowledge, Observation
from attacks.span.thresholds import FEATURE, MAP_INVERSION, Descent
from tests.attacks.span.conftest import run


def pooled_client(count, epochs=5, make=torch.optim.SGD, rate=0.01):
    """Max pooling, then 48 features of 576 pixels; batches of 2, or the whole of one."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    body = (nn.Conv2d(1, 12, 5), nn.ReLU(), nn.MaxPool2d(10))
    model = nn.Sequential(
        *body, nn.Flatten(), nn.Linear(48, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 10)
    )
    images = interpolate(torch.randn(count, 1, 4, 4, generator=generator), (24, 24), mode="bilinear") / 2
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    features = model[:4](images).detach()
    optimizer = make(model.parameters(), rate)
    for _ in range(epochs):
        for batch in torch.randperm(count, generator=generator).split(2):
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), batch % 10).backward()
            optimizer.step()
    return Observation(model, pairs=((sent, model.state_dict()),), input_shape=(1, 24, 24)), features


def test_features_are_found_and_no_image_is_returned(monkeypatch):
    monkeypatch.setattr(MAP_INVERSION, "pilot", Descent(20, 0.05))  # decoys do not come back
    for count in (1, 2):
        observation, features = pooled_client(count)
        found = run(observation, Knowledge(num_private=count), starts=100)
        assert len(found.images) == 0 and any("features were found" in said for said in found.warnings)
        distance = torch.cdist(found.features, features).min(1)
        assert len(found.features) >= (count + 1) // 2 and len(set(distance.indices.tolist())) == len(found.features)
        assert (distance.values < 0.1 * features.norm(dim=1)[distance.indices]).all()


@pytest.mark.parametrize("make", [torch.optim.RMSprop, torch.optim.Adam])
def test_the_signs_of_features_that_adaptive_steps_leave_are_not_returned_as_features(make):
    """One image, one step: features of 0 and 1 had been returned as the client's."""
    found = run(pooled_client(1, 1, make, 1e-3)[0], Knowledge(num_private=1), starts=100)
    assert len(found.features if found.features is not None else ()) == 0
    assert "the signs of features, which is what local Adam or RMSprop looks like" in found.warnings[-1]


def test_the_likeliest_images_of_several_are_held_however_well_decoys_come_back(monkeypatch):
    """Flower's quickstart CNN, untrained, 8 images in batches of 4: decoys had vouched for one 14.5 dB off its own."""
    monkeypatch.setattr(FEATURE, "pilot_error", float("inf"))
    monkeypatch.setattr(FEATURE, "few_descent", Descent(20, 0.05))
    observation, _ = pooled_client(2)
    found = run(observation, Knowledge(num_private=2), starts=100)
    assert len(found.images) == 0 and len(found.held) == len(found.features) > 0


def test_features_are_not_vouched_for_where_other_minima_are_as_low():
    """Of four images ten small steps hold every feature vector to half of what decoys leave, as other minima do."""
    observation, _ = pooled_client(4)
    found = run(observation, Knowledge(num_private=4), starts=100)
    assert len(found.features if found.features is not None else ()) == 0
    assert any("the lowest ρ of features" in said for said in found.warnings)


def test_a_refusal_says_what_the_best_features_leave_where_no_signal_certifies_any():
    """A frozen body after several steps: the cone of signals is exact and certifies nothing, and had no ρ to tell."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 12, 5), nn.ReLU(), nn.MaxPool2d(10), nn.Flatten()).requires_grad_(False)
    model = nn.Sequential(*body, nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 10))
    images = interpolate(torch.randn(8, 1, 4, 4), (24, 24), mode="bilinear") / 2
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model[4:].parameters(), lr=0.01)
    for batch in torch.arange(8).split(4) * 3:
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), batch).backward()
        optimizer.step()
    observation = Observation(model, pairs=((sent, model.state_dict()),), input_shape=(1, 24, 24))
    (said,) = [said for said in run(observation, Knowledge(num_private=8), starts=50).warnings if "lowest" in said]
    assert "nan" not in said


def test_more_images_than_the_second_layer_can_test_are_refused_in_words():
    """Its 41 inputs leave no room for directions that tell 20 images from mixtures; the first layer shows them all."""
    observation, _ = pooled_client(20)
    found = run(observation, Knowledge(num_private=20), starts=10)
    assert len(found.images) == 0 and any("to test the features of 20 images" in said for said in found.warnings)
