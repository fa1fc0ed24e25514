import gzip

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from torch import nn

from attacks import InputError, Knowledge, Observation
from attacks.membership import MembershipScore, MembershipTest, layer_inputs
from tests.attacks.conftest import client, digit_classes, digits, generator, minibatches, mlp


def trained(model, images, labels, optimizer="sgd", batch=10):
    """An ordinary client: cross-entropy on shuffled minibatches."""
    kind, rate = {"sgd": (torch.optim.SGD, 0.05), "adam": (torch.optim.Adam, 1e-3)}[optimizer]
    order = minibatches(len(images), batch, epochs=5, order=generator())
    return client(model, images, order, labels, optimizer=kind, lr=rate)


def labelled(count):
    return digits(count), digit_classes(count)


def mnist(folder, count, others):
    def read(name, header):
        return np.frombuffer(gzip.open(folder / "mnist" / name).read(), np.uint8, offset=header)

    images = read("train-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)[: count + others] / 255
    images = torch.tensor(images, dtype=torch.float32)
    labels = torch.tensor(read("train-labels-idx1-ubyte.gz", 8)[:count].astype(np.int64))
    mean = images[:count].mean()
    return images[:count] - mean, labels, images[count:] - mean


def test_one_image_in_one_layer_has_the_residual_of_a_sine():
    """N = 1: ρ is 1 − cos² of the angle between [x; 1] and the private [p; 1]."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    private, other = torch.tensor([1.0, 2.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, -1.0, 2.0])
    initial = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    dual = torch.tensor([0.5, -1.0, 2.0])
    final = {"1.weight": dual[:, None] * private, "1.bias": dual}
    test = MembershipTest.of(Observation(model, ((initial, final),), (1, 2, 2)), Knowledge(num_private=1))
    residual = test.residual(torch.stack([private, other]).reshape(2, 1, 2, 2))
    assert residual[0] < 1e-12
    assert residual[1].item() == pytest.approx(1 - 3**2 / (6 * 7), rel=1e-6)  # [p; 1]·[x; 1] = 3, squares 6 and 7


@pytest.mark.parametrize("padding", [1, "same", "valid"])
def test_patches_are_what_a_convolution_multiplies(padding):
    torch.manual_seed(0)
    convolution = nn.Conv2d(2, 3, 3, padding=padding, dilation=1)
    images = torch.randn(4, 2, 6, 6)
    points = layer_inputs(nn.Sequential(convolution), nn.Sequential(convolution).state_dict(), images, ["0"])["0"]
    filters = torch.cat([convolution.weight.flatten(1), convolution.bias[:, None]], 1)
    assert torch.allclose((points @ filters.T).transpose(1, 2), convolution(images).flatten(2), atol=1e-5)


def test_scores_are_those_of_scikit_learn():
    draws = generator()
    members = torch.randint(0, 40, (50,), generator=draws).double()  # ties among them
    outsiders = torch.randint(20, 60, (2000,), generator=draws).double()
    truth, scores = np.r_[np.ones(50), np.zeros(2000)], -torch.cat([members, outsiders]).numpy()
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    found = MembershipScore.of(members, outsiders)
    assert found.auc == pytest.approx(roc_auc_score(truth, scores))
    assert found.true_positives.rate == pytest.approx(true[false <= 1e-3].max())


def test_members_of_an_sgd_client_stand_orders_of_magnitude_apart():
    images, labels = labelled(12)
    test = MembershipTest.of(trained(mlp(256), images, labels), Knowledge())
    members, outsiders = test.residual(images), test.residual(digits(400, start=100))
    assert test.num_private == 12 and not test.warnings
    assert members.max() < 1e-4 * outsiders.min()


def test_images_beyond_the_rank_of_the_pixels_are_told_by_the_second_layer():
    images, labels = labelled(80)  # of 64 pixels
    test = MembershipTest.of(trained(mlp(1024), images, labels, batch=16), Knowledge(num_private=80))
    assert list(test.rounds[0].rows) == ["3"]
    score = MembershipScore.of(test.residual(images), test.residual(digits(1000, start=100)))
    assert score.auc > 0.999 and score.true_positives.rate > 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "count", "width"), [("sgd", 200, 2048), ("adam", 50, 1024)])
def test_mnist_members_against_a_thousand_outsiders(shared_data, optimizer, count, width):
    images, labels, outsiders = mnist(shared_data, count, 1000)
    observation = trained(mlp(width, inputs=784), images, labels, optimizer)
    test = MembershipTest.of(observation, Knowledge(num_private=count), torch.cat([images, outsiders]))
    score = MembershipScore.of(test.residual(images), test.residual(outsiders))
    assert score.auc >= 0.999


def test_convolutional_networks_are_tested_behind_their_convolutions():
    torch.manual_seed(0)
    front = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    model = nn.Sequential(*front, nn.Linear(144, 200), nn.ReLU(), nn.Linear(200, 120), nn.ReLU(), nn.Linear(120, 10))
    images, labels = labelled(10)
    observation = trained(model, images, labels)
    with pytest.raises(InputError, match="num_private"):
        MembershipTest.of(observation, Knowledge())
    test = MembershipTest.of(observation, Knowledge(num_private=10))
    score = MembershipScore.of(test.residual(images), test.residual(digits(1000, start=100)))
    assert list(test.rounds[0].rows) == ["4", "6"] and score.auc > 0.999


def test_late_convolutions_tell_by_their_patches_whatever_comes_first_in_a_state():
    torch.manual_seed(0)
    front = [nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 128, 3, 2, 1), nn.ReLU()]
    model = nn.Sequential(*front, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)).eval()
    images, labels = labelled(6)
    observation = trained(model, images, labels, batch=6)
    counted = sorted(observation.initial, key=lambda name: "num_batches" not in name)  # as safetensors may have it
    pairs = tuple(tuple({name: state[name] for name in counted} for state in pair) for pair in observation.pairs)
    test = MembershipTest.of(Observation(model, pairs, observation.input_shape), Knowledge(num_private=6))
    assert list(test.rounds[0].rows) == ["3", "7"]  # 4 patches of each image in 128 rows, not 16 in 16
    score = MembershipScore.of(test.residual(images), test.residual(digits(500, start=100)))
    assert score.auc > 0.99


@pytest.mark.parametrize(("optimizer", "rate", "least"), [(torch.optim.SGD, 0.05, 0.99), (torch.optim.Adam, 1e-3, 0.9)])
def test_features_behind_batch_norm_are_those_of_the_client_s_batches(optimizer, rate, least):
    """The statistics sent, 0 and 1 of a network that nobody trained, would make other features of every image."""
    torch.manual_seed(0)
    front = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    front += [nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*front, nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10)).train()
    images, labels = labelled(16)
    batches = minibatches(16, 8, 1, generator())
    observation = client(model, images, batches, labels, optimizer=optimizer, lr=rate)
    test = MembershipTest.of(observation, Knowledge(num_private=16))
    score = MembershipScore.of(test.residual(images), test.residual(digits(500, start=100)))
    assert score.auc > least


def test_several_rounds_are_so_many_tests_more():
    images, labels = labelled(30)
    model = mlp(64)  # too narrow for one round alone
    first = trained(model, images, labels, "adam")
    second = trained(model, images, labels, "adam")
    both = Observation(model, (*first.pairs, *second.pairs), first.input_shape)
    told = Knowledge(num_private=30)
    outsiders = digits(1000, start=100)
    one, two = (
        MembershipScore.of(test.residual(images), test.residual(outsiders)).auc
        for test in (MembershipTest.of(first, told), MembershipTest.of(both, told))
    )
    assert len(MembershipTest.of(both, told).rounds) == 2
    assert two > one


def test_what_cannot_be_tested_says_why():
    images, labels = labelled(60)
    narrow = trained(mlp(24), images, labels)
    with pytest.raises(InputError, match="no layer of model 'Sequential' has a row space that 60 images leave room in"):
        MembershipTest.of(narrow, Knowledge(num_private=60))
    with pytest.raises(InputError, match="expected"):
        MembershipTest.of(trained(mlp(64), *labelled(5)), Knowledge()).residual(torch.zeros(2, 1, 7, 8))


def test_a_first_layer_that_did_not_move_does_not_tell_the_number():
    images, labels = labelled(5)
    observation = trained(mlp(64), images, labels)
    initial, final = observation.pairs[0]
    final = {name: initial[name] if name.startswith("1.") else value for name, value in final.items()}
    still = Observation(observation.model, ((initial, final),), (1, 8, 8))
    with pytest.raises(InputError, match=r"needs num_private.*shows no image"):
        MembershipTest.of(still, Knowledge())
    assert MembershipTest.of(still, Knowledge(num_private=2)).num_private == 2
