"""Updates that look like those of images that nobody has: `span` returned these, and holds them now."""

import math

import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge, Observation, get_attack, torch_generator
from attacks.span.feature_space.inversion import PixelTest
from attacks.span.feature_space.network import FeatureNetwork
from tests.attacks.conftest import client as client_of_labels
from tests.attacks.conftest import digits, in_bfloat16, minibatches
from tests.attacks.conftest import mlp as plain_mlp
from tests.attacks.span.conftest import SHAPE, Convolutional, client, run


def mlp(activation, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Flatten(), nn.Linear(64, 256), activation(), nn.Linear(256, 64), activation(), nn.Linear(64, 10)]
    return nn.Sequential(*layers)


def noisy(observation, share, seed=0):
    """The observation with Gaussian noise, relative to each tensor's update."""
    draws, (sent, returned) = torch.Generator().manual_seed(seed), observation.pairs[0]
    moved = {name: returned[name] - sent[name] for name in sent}
    noise = {
        name: share * value.norm() / math.sqrt(value.numel()) * torch.randn(value.shape, generator=draws)
        for name, value in moved.items()
    }
    return Observation(observation.model, ((sent, {name: returned[name] + noise[name] for name in sent}),), SHAPE)


@pytest.mark.parametrize(
    ("model", "bias"),
    [(plain_mlp(256), "1.bias"), (plain_mlp(256, depth=1), "1.bias"), (Convolutional(), "first.bias")],
)
def test_biases_that_are_returned_as_they_were_sent_are_asked_for(model, bias):
    """What was divided by their change was infinite: returned as images behind one hidden layer, else an error."""
    seen = client(model, digits(4), epochs=1)
    sent, returned = seen.pairs[0]
    kept = {name: sent[name] if name.endswith("bias") else value for name, value in returned.items()}
    with pytest.raises(InputError, match=f"needs what '{bias}' changed by, and unlike '.*' it was returned as it was"):
        run(Observation(model, ((sent, kept),), SHAPE), Knowledge(num_private=4))


@pytest.mark.parametrize(("start", "count", "bits"), [(100, 4, 7), (200, 5, 6), (200, 6, 7), (0, 4, 6), (200, 4, 5)])
@pytest.mark.parametrize("pairs", [True, False])
def test_in_noise_outputs_vouch_for_no_images_of_one_class(start, count, bits, pairs):
    """Quantized, a network of one hidden layer tells images of a class by what they have in common: means of two came
    back, 1.2 from either. Those of classes of their own come back."""
    images = digits(count, start=start)
    seen = client_of_labels(plain_mlp(256, depth=1), images, 1, torch.arange(count) // (1 + pairs), lr=0.01)
    sent, returned = seen.initial, {}
    for name, value in seen.delta().items():
        step = value.abs().max() / (2 ** (bits - 1) - 1)
        returned[name] = (sent[name] + (value / step).round() * step).float()
    found = run(Observation(seen.model, ((sent, returned),), SHAPE), Knowledge(num_private=count))
    if len(found.images) or not pairs:
        assert torch.cdist(found.images.flatten(1), images.flatten(1)).min(1).values.max() < 0.2


@pytest.mark.parametrize("told", [None, 8])
@pytest.mark.parametrize("share", [0.0, 0.01])
def test_the_mean_of_several_images_is_held(told, share):
    """Signals of a class through a nearly linear network are alike: all but their sum is lost in noise, or in float32's
    rounding, and the mean image explains the second layer's update."""
    images, model = digits(8), mlp(nn.Sigmoid)
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    nn.functional.cross_entropy(model(images), torch.zeros(8, dtype=torch.long)).backward()
    returned = {name: value - 1e-4 * value.grad for name, value in model.named_parameters()}
    seen = Observation(model, ((sent, {name: value.detach() for name, value in returned.items()}),), SHAPE)
    found = run(noisy(seen, share), Knowledge(num_private=told))
    mean = torch.cdist(found.held.flatten(1), images.mean(0).flatten()[None]).min()
    assert len(found.images) == 0 and mean < 0.2 and "mean of several images" in " ".join(found.warnings)


@pytest.mark.parametrize(
    ("seed", "count", "width", "epochs", "batch", "start", "mean"),
    [
        (20, 20, 64, 5, 20, 1173, 0.0),
        (84, 20, 96, 1, 20, 1068, 0.3),
        (105, 16, 96, 15, 8, 639, 0.0),
        (370, 2, 96, 30, 2, 582, 0.3),
        (384, 20, 128, 1, 20, 498, 0.0),
    ],
)
def test_mixtures_that_pass_for_duals_in_mixed_precision_are_held(seed, count, width, epochs, batch, start, mean):
    """Where most duals fail, where single ones do, and the corners of what two images span."""
    torch.manual_seed(seed)
    images, labels = digits(count, mean=mean, start=start), torch.randint(0, 10, (count,))
    with in_bfloat16(model := plain_mlp(width, seed=seed)):
        seen = client_of_labels(model, images, minibatches(count, batch, epochs), labels)
    told, draws = Knowledge(pixel_mean=(mean,), pixel_std=(1.0,)), torch_generator(0, "x")
    found = get_attack("span").run(seen, told, draws)
    assert not len(found.images) or (torch.cdist(found.images.flatten(1), images.flatten(1)).amin(1) < 0.8).all()
    assert len(found.images) + len(found.held) >= 0.75 * count  # 0.8: 20 dB


@pytest.mark.parametrize("seed", range(4))
def test_one_image_after_a_noisy_step_of_adam_is_held(seed):
    """Its update is the signs of its pixels: dead units, which noise moves, look like zeros of a dual."""
    images = digits(seed + 1)[seed:]
    observation = client(mlp(nn.ReLU, seed), images, batch=1, epochs=1, lr=1e-3, optimizer=torch.optim.Adam)
    for share in (1e-3, 0.05):
        assert len(run(noisy(observation, share)).images) == 0
    exact = client(mlp(nn.ReLU, seed), images, batch=1, epochs=1, lr=0.05)
    assert torch.allclose(run(exact).images, images, atol=1e-3)  # by SGD it is returned


def test_raw_pixels_at_a_small_rate_bring_nothing_back_that_is_nobodys():
    """Pixels from 0 to 255: the bias moves 255 times less than weights do, and float32 rounds it. Half of the images
    that came back had no private one within 20 dB, the worst was off by nearly 5 times the range of the pixels."""
    returned = 0
    for seed, rate in ((0, 3e-7), (2, 1e-7), (2, 3e-7), (3, 1e-7), (2, 1e-6)):
        torch.manual_seed(seed)
        images = digits(16)[torch.randperm(16)[:8]]
        images = 255 * (images - images.min()) / (images.max() - images.min())
        layers = (nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
        observation = client(nn.Sequential(nn.Flatten(), *layers), images, batch=8, lr=rate)
        found = run(observation, Knowledge(pixel_mean=(0.0,), pixel_std=(1 / 255,))).images
        assert (torch.cdist(found.flatten(1), images.flatten(1)).amin(1) < 0.1 * 8 * 255).all()
        returned += len(found)
    assert returned > 0


def test_the_error_that_is_expected_of_an_image_is_that_of_least_squares():
    """A linear body of singular values 2, 1 and 0 by hand: the last direction is open."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 20, bias=False), nn.Linear(20, 5))
    body = torch.zeros(20, 3)
    body[0, 0], body[1, 1], body[2:, :] = 2.0, 1.0, 0.0
    with torch.no_grad():
        model[1].weight.copy_(body)
    network = FeatureNetwork(model, ("2",), None, False)
    rows = torch.zeros(1, 21)
    rows[0, -1] = 1.0  # the features (2, 1, 0, …) of the image are all that is left
    test = PixelTest(network, model.state_dict(), rows)
    image = torch.tensor([1.0, 1.0, 1.0]).view(1, 1, 3)
    variance = 5.0 / (21 - 1 - 3)
    cap = 30.0**2 / 3
    wanted = math.sqrt(variance / 4 + variance / 1 + cap) / 30.0
    assert abs(test.expected_error(image, 30.0) - wanted) < 1e-6


class Normalizing(nn.Linear):
    """Its weight learns normalized inputs: they came back as images, at 6 to 12 dB."""

    def forward(self, inputs):
        return super().forward(nn.functional.layer_norm(inputs, inputs.shape[1:]))


class Faint(nn.Linear):
    """Its bias learns a tenth as fast: images came back ten times as large."""

    def forward(self, inputs):
        return nn.functional.linear(inputs, self.weight, 0.1 * self.bias)


@pytest.mark.parametrize("kind", [Normalizing, Faint])
def test_layers_that_learn_something_else_than_what_they_are_fed_bring_no_image_back(kind):
    torch.manual_seed(0)
    layers = [nn.Flatten(), kind(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)]
    observation = client(nn.Sequential(*layers), digits(4), epochs=3)
    said = f"`forward` of {kind.__name__} '1' of model 'Sequential' makes it of others"
    try:
        found = run(observation)
    except InputError as error:
        assert said in str(error)
    else:
        assert not len(found.images) and said in " ".join(found.warnings)


class Noisy(nn.Module):
    """Noise on the pixels of every step of training."""

    def forward(self, images):
        return images + 0.5 * torch.randn_like(images) if self.training else images


def deep(*ahead):
    return nn.Sequential(*ahead, nn.Flatten(), *mlp(nn.ReLU)[1:])


def shallow(*ahead):
    return nn.Sequential(*ahead, nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


@pytest.mark.parametrize("network", [deep, shallow])
@pytest.mark.parametrize("disturbing", [nn.Dropout, nn.Dropout2d, Noisy])
def test_images_that_training_disturbed_are_held(network, disturbing):
    """What comes back exactly is what the first layer was fed, of which every pixel is zero or doubled, or noisy."""
    torch.manual_seed(0)
    found = run(client(network(disturbing()), digits(4), batch=4, epochs=1))
    assert len(found.images) == 0 and len(found.held) and "is drawn in training" in " ".join(found.warnings)
    missed = torch.cdist(found.held.flatten(1), digits(4).flatten(1)).amin(1)
    assert (missed > 0.1 * 8).all()  # 20 dB of 64 pixels


def test_the_image_less_its_mean_is_held_where_gradients_were_centralized():
    torch.manual_seed(0)
    seen = client(shallow(), digits(1), epochs=1)
    sent, returned = seen.pairs[0]
    for name, value in returned.items():
        if value.dim() == 2:
            value -= (value - sent[name]).mean(1, keepdim=True)
    found = run(seen)
    assert not len(found.images) and "as where gradients are centralized" in " ".join(found.warnings)
    assert (found.held[0].flatten() - (digits(1) - digits(1).mean()).flatten()).norm() < 0.1 * digits(1).norm()


class InTraining(nn.Module):
    """Does something in training alone, without chance."""

    def __init__(self, made):
        super().__init__()
        self.made = made

    def forward(self, x):
        return self.made(x) if self.training else x


STANDARDIZED = InTraining(lambda x: (x - x.mean()) / x.std())  # by the batch, as a BatchNorm of one's own


@pytest.mark.parametrize("network", [deep, shallow])
@pytest.mark.parametrize("other", [STANDARDIZED, InTraining(lambda x: x.flip(3))])
def test_images_that_training_fed_otherwise_are_held(network, other):
    """What comes back exactly is what the first layer was fed."""
    torch.manual_seed(0)
    found = run(client(network(other), digits(4), batch=4, epochs=1))
    said = "is fed is not the same in training as in evaluation mode"
    assert len(found.images) == 0 and len(found.held) and said in " ".join(found.warnings)
    missed = torch.cdist(found.held.flatten(1), digits(4).flatten(1)).amin(1)
    assert (missed > 0.1 * 8).all()  # 20 dB of 64 pixels


@pytest.mark.parametrize("hidden", [nn.Dropout(0.0), nn.Dropout(0.3)])
def test_dropout_of_hidden_units_and_of_none_disturbs_no_image(hidden):
    torch.manual_seed(0)
    *layers, last = deep()
    found = run(client(nn.Sequential(nn.Dropout(0.0), *layers, hidden, last), digits(4), batch=4, epochs=1))
    assert (torch.cdist(digits(4).flatten(1), found.images.flatten(1)).amin(1) < 1e-2).all()


def test_features_of_which_training_left_some_out_are_not_returned():
    """As where a head begins with dropout behind a frozen body: each is zero or doubled."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 16, 3, 2, padding=1), nn.LeakyReLU(0.3), nn.Flatten()).requires_grad_(False)
    layers = (nn.Linear(256, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    found = run(client(nn.Sequential(body, nn.Dropout(), *layers), digits(4), batch=4, epochs=1))
    assert not len(found.images) and found.features is None and "is drawn in training" in " ".join(found.warnings)


class Magnitudes(nn.Module):
    """Pixels without their signs, and a way around the hidden layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last, self.around = (nn.Linear(*size) for size in SIZES)

    def forward(self, images):
        seen = images.flatten(1).abs()
        return self.last(self.second(self.first(seen).relu()).relu()) + self.around(seen)


SIZES = ((64, 128), (128, 96), (96, 10), (64, 10))


def test_images_are_held_where_others_far_from_them_pass_the_same_tests():
    """Each pixel is told up to its sign, and no image near has the same features: one of nobody had come back."""
    images = digits(3) - 0.3
    found = run(client(Magnitudes(), images, batch=3, epochs=1), Knowledge(num_private=3))
    assert len(found.images) == 0 and len(found.held)
    sizes = torch.cdist(images.abs().flatten(1), found.held.abs().flatten(1)).amin(1)
    assert (sizes < 0.1 * 8).all()  # 20 dB of 64 pixels
