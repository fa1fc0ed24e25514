"""What the last layer was fed: images of a softmax regression, and features of networks that nothing else suits."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import InputError, Knowledge, Observation, get_attack
from attacks.networks.probing import probe
from tests.attacks.conftest import client, digit_classes, digits
from tests.attacks.user_networks import BatchNormalized, Residual, with_adapters


def run(observation):
    return get_attack("span").run(observation, Knowledge(), torch.Generator().manual_seed(0))


def regression(outputs=10, *ahead, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), *ahead, nn.Linear(64, outputs)).eval()


def of_digits(count, model, steps=1, **training):
    images = digits(count, start=20)
    return images, client(model, images, steps, digit_classes(count, start=20), **training)


def farthest(private, found):
    """The largest distance of a private vector to the nearest one found, to its length."""
    return float((torch.cdist(private, found).min(1).values / private.norm(dim=1)).max())


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_images_of_a_softmax_regression_come_back_with_their_number_and_classes(count):
    images, seen = of_digits(count, regression())
    found = run(seen)
    assert len(found.images) == found.num_inferred == count
    assert farthest(images.flatten(1), found.images.flatten(1)) < 1e-3
    assert sorted(map(int, str(found.facts["classes"]).split())) == sorted(digit_classes(count, start=20).tolist())


def test_images_of_one_class_are_told_apart():
    images = digits(3)
    found = run(client(regression(), images, 1, torch.tensor([7, 7, 7])))
    assert len(found.images) == 3 and farthest(images.flatten(1), found.images.flatten(1)) < 1e-2


@pytest.mark.parametrize("exempt", [False, True], ids=["all", "weights alone"])
def test_weight_decay_is_undone(exempt):
    model, images = regression(), digits(3)
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    decayed = [{"params": [model[1].weight], "weight_decay": 0.01}, {"params": [model[1].bias]}]
    sgd = torch.optim.SGD(decayed if exempt else model.parameters(), 0.05, weight_decay=0.0 if exempt else 0.01)
    F.cross_entropy(model(images), torch.tensor([4, 1, 9])).backward()
    sgd.step()
    found = run(Observation(model, ((sent, model.state_dict()),), (1, 8, 8)))
    assert len(found.images) == 3 and farthest(images.flatten(1), found.images.flatten(1)) < 1e-2


@pytest.mark.parametrize(("make", "name"), [(with_adapters, "head"), (Residual, "fc2"), (BatchNormalized, "fc2")])
def test_features_where_no_other_variant_suits_or_finds_anything(make, name):
    torch.manual_seed(0)
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    seen = client(make().eval(), images, 1)
    seen.model.load_state_dict(seen.initial)
    private = probe(seen.model, images, {name: seen.model.get_submodule(name)})[1][0].given
    found = run(seen)
    assert not len(found.images) and len(found.features) == 3 and farthest(private, found.features) < 1e-2
    assert found.num_inferred == 3 and not found.guessed
    assert (
        f"what {name!r} was fed of 3 images was found, where its update has rank 3, and their classes: 0, 1, 2 ("
        in found.warnings[-1]
    )


def test_adapters_without_a_head_of_few_images_are_refused_by_their_rank():
    torch.manual_seed(0)
    seen = of_digits(5, with_adapters())[1]
    with pytest.raises(InputError, match=r"trains adapters \(LoRA\), and those of rank 4 have 4 rows"):
        run(seen)


@pytest.mark.parametrize("steps", [2, 10])
def test_several_steps_return_no_image_that_is_nobodys(steps):
    images, seen = of_digits(3, regression(), steps)
    found = run(seen)
    assert not len(found.images) or farthest(found.images.flatten(1), images.flatten(1)) < 0.1


def test_more_images_than_classes_tell_apart_are_refused_as_before():
    with pytest.raises(InputError, match="model 'Sequential' has no hidden layer"):
        run(of_digits(5, regression())[1])
    with pytest.raises(InputError, match="model 'Sequential' has no hidden layer"):
        run(of_digits(2, regression(4))[1])


@pytest.mark.parametrize("kind", ["random signals", "other features", "smoothed labels"])
def test_nothing_is_returned_of_updates_that_are_no_softmaxs(kind):
    """Ten updates of rank 3 or 4 of each kind."""
    for seed in range(10):
        generator, model, images = torch.Generator().manual_seed(seed), regression(seed=seed), digits(3, start=seed)
        classes = F.one_hot(digit_classes(3, start=seed), 10)
        sent = {name: value.clone() for name, value in model.state_dict().items()}
        points = F.pad(images.flatten(1), (0, 1), value=1.0).double()
        signals = torch.softmax(model(images), 1).detach().double() - classes
        if kind == "smoothed labels":
            signals = signals + 0.2 * (classes - 0.1)
        elif kind == "other features":
            points[:, :-1] = torch.randn(3, 64, generator=generator)
        else:
            signals = torch.randn(3, 10, generator=generator).double()
        change = (-0.05 / 3 * signals.T @ points).float()
        moved = {"1.weight": sent["1.weight"] + change[:, :-1], "1.bias": sent["1.bias"] + change[:, -1]}
        assert not len(run(Observation(model, ((sent, moved),), (1, 8, 8))).images)


def test_what_dropout_left_of_features_is_not_returned():
    seen = of_digits(3, regression(10, nn.Dropout(0.3)).train())[1]
    assert not len(run(seen).images)


def test_blends_of_mixup_are_not_returned_where_softmax_is_as_good_as_linear():
    """Two images with the labels of both, λ = 0.7: other vectors send the same with a class each, nearly."""
    model, images = regression(), digits(2, start=20)
    model[-1].weight.data *= 1e-3
    labels = 0.7 * torch.eye(10)[[3, 8]] + 0.3 * torch.eye(10)[[8, 3]]
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    F.cross_entropy(model(images), labels).backward()
    torch.optim.SGD(model.parameters(), 0.05).step()
    assert not len(run(Observation(model, ((sent, model.state_dict()),), (1, 8, 8))).images)
