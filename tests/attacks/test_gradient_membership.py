import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import InputError, Knowledge, Observation
from attacks import gradient_membership as module
from attacks.gradient_membership import gradient_scores, tell_members
from attacks.membership import MembershipScore, MembershipTest
from tests.attacks.conftest import client, digit_classes, digits, generator, minibatches, mlp
from tests.attacks.user_networks import Quickstart, mobile

MEMBERS, OUTSIDERS = 400, 600


def federation(optimizer=torch.optim.Adam, lr=1e-3, epochs=1):
    """A client of 400 digits, and images that are none of its: (observation, all images, their classes)."""
    torch.manual_seed(0)
    images, labels = digits(MEMBERS + OUTSIDERS), digit_classes(MEMBERS + OUTSIDERS)
    order = minibatches(MEMBERS, 32, epochs=epochs, order=generator())
    return client(mlp(64), images[:MEMBERS], order, labels[:MEMBERS], optimizer=optimizer, lr=lr), images, labels


def auc(scores):
    members, outsiders = scores[:MEMBERS], scores[MEMBERS:]
    return float((members[:, None] > outsiders).double().mean())


def cosines(observation, images, labels):
    """Of each image's gradient with the update: what is published as the signal."""
    update = -torch.cat([value.flatten() for value in observation.delta().values()])
    found = []
    for image, label in zip(images, labels, strict=True):
        parameters = {name: observation.initial[name].clone().requires_grad_() for name in observation.trainable}
        outputs = torch.func.functional_call(observation.model, parameters, (image[None],))
        gradients = torch.autograd.grad(F.cross_entropy(outputs, label[None]), list(parameters.values()))
        found.append(F.cosine_similarity(torch.cat([part.flatten() for part in gradients]), update.float(), dim=0))
    return torch.stack(found).detach()


@pytest.mark.parametrize(("optimizer", "lr"), [(torch.optim.Adam, 1e-3), (torch.optim.SGD, 0.05)])
def test_members_of_a_client_of_hundreds_stand_out_where_row_spaces_have_no_room(optimizer, lr):
    observation, images, labels = federation(optimizer, lr)
    with pytest.raises(InputError, match="nothing tells private images from others"):
        MembershipTest.of(observation, Knowledge(num_private=MEMBERS), images)
    told = tell_members(observation, Knowledge(num_private=MEMBERS), images, labels)
    found = MembershipScore.of(told.residual[:MEMBERS], told.residual[MEMBERS:])
    assert told.num_private is None and found.auc_interval[0] > 0.53
    if optimizer is torch.optim.SGD:
        assert found.auc > auc(cosines(observation, images, labels)) + 0.02


@pytest.mark.parametrize("copies", [1, 2])
def test_a_candidate_that_no_other_stands_beside_is_refused(copies):
    one = digits(1), digit_classes(1)
    with pytest.raises(InputError, match="give several candidates, or images that are no members"):
        gradient_scores(client(mlp(64), one[0], 1), *(part.repeat_interleave(copies, 0) for part in one))


def test_images_that_are_all_no_members_look_alike():
    observation, images, labels = federation()
    scores = gradient_scores(observation, images[MEMBERS:], labels[MEMBERS:])
    found = MembershipScore.of(-scores[:300], -scores[300:])
    assert found.auc_interval[0] < 0.5 < found.auc_interval[1]


def test_a_score_is_that_of_the_covariance_without_the_image():
    """Against Σ made and inverted in NumPy for each image, from the nine others and the mean of all ten."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False)).double()
    images, labels = torch.randn(10, 1, 2, 2).double(), torch.arange(10) % 3
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    final = {name: value + torch.randn_like(value) for name, value in initial.items()}
    observation = Observation(model, ((initial, final),), (1, 2, 2))
    errors = torch.softmax(model(images), 1) - F.one_hot(labels, 3)
    gradients = (errors[:, :, None] * images.flatten(1)[:, None]).flatten(1).detach().numpy()
    gradients = gradients - gradients.mean(0)
    update = (initial["1.weight"] - final["1.weight"]).flatten().numpy()
    ridge = module.RIDGE * np.square(gradients).sum() / 10 / 10
    wanted = []
    for i, own in enumerate(gradients):
        others = np.delete(gradients, i, 0)
        inverse = np.linalg.inv(others.T @ others / 10 + ridge * np.eye(12))
        wanted.append(own @ inverse @ update / np.sqrt(own @ inverse @ own))
    found = gradient_scores(observation, images, labels).numpy()
    np.testing.assert_allclose(found, wanted / np.std(wanted, ddof=1), atol=1e-4)


def test_rounds_add_up():
    observation, images, labels = federation()
    torch.manual_seed(2)
    order = minibatches(MEMBERS, 32, epochs=1, order=generator(5))
    again = client(observation.model, images[:MEMBERS], order, labels[:MEMBERS], optimizer=torch.optim.Adam, lr=1e-3)
    both = Observation(observation.model, (observation.pairs[0], again.pairs[0]), observation.input_shape)
    one, other = (gradient_scores(each, images, labels) for each in (observation, again))
    torch.testing.assert_close(gradient_scores(both, images, labels), (one + other) / 2)
    assert auc((one + other) / 2) > max(auc(one), auc(other))


@pytest.mark.parametrize(("network", "shape"), [(Quickstart, (3, 32, 32)), (mobile, (1, 8, 8))])
def test_networks_of_any_kind_are_asked_also_by_a_part_of_their_parameters(network, shape, monkeypatch):
    torch.manual_seed(0)
    model = network()
    images, labels = torch.randn(12, *shape), torch.arange(12) % 10
    observation = client(model, images[:6], 1, labels[:6])
    whole = gradient_scores(observation, images, labels)
    monkeypatch.setattr(module, "MOST_NUMBERS", 12 * 500)
    part = gradient_scores(observation, images, labels)
    assert whole.isfinite().all() and part.isfinite().all() and not torch.equal(whole, part)


def test_requests_that_cannot_be_answered_say_what_to_give(monkeypatch):
    observation, images, labels = federation()
    with pytest.raises(InputError, match=r"nothing tells private images from others; with the class of every image"):
        tell_members(observation, Knowledge(num_private=MEMBERS), images)
    with pytest.raises(InputError, match="labels are 0 to 10, the network's classes 0 to 9"):
        gradient_scores(observation, images[:11], torch.arange(11))
    still = Observation(observation.model, ((observation.initial, observation.initial),), observation.input_shape)
    with pytest.raises(InputError, match="zero"):
        tell_members(still, Knowledge(num_private=MEMBERS), images, labels)
    monkeypatch.setattr(module, "MOST_IMAGES", 10)
    with pytest.raises(InputError, match="11 images at a time, where 10 can be told apart"):
        gradient_scores(observation, images[:11], labels[:11])


def test_a_small_client_is_asked_by_row_spaces_as_before():
    images, labels = digits(50), digit_classes(50)
    observation = client(mlp(128), images[:8], 3, labels[:8])
    told = tell_members(observation, Knowledge(), images, labels)
    test = MembershipTest.of(observation, Knowledge(), images)
    assert told.num_private == test.num_private == 8 and torch.equal(told.residual, test.residual(images))
