"""What the evaluator writes of a finished attack, on models that it cannot take apart."""

import time
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from attacks import InputError, Knowledge, Observation, Pool, Reconstruction
from attacks.interface.normalization import Normalization
from clients.config import DataConfig
from clients.data import load_dataset
from simulator.audit import TIMEOUT
from simulator.audit.plan import FEWEST, default_attacks
from simulator.evaluation.attack_run import AttackRun
from simulator.evaluation.evaluator import evaluate, measure_alone, told_classes
from simulator.evaluation.truth import Truth
from simulator.scenario.scenario import Scenario

KEY = {"threat_model": "server", "attack": "span"}


class Leaving(nn.Module):
    """Takes its values out of torch on its way, which nothing that differentiates can follow."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 2, 3)

    def forward(self, images):
        hidden = self.layer(images)
        return (hidden if hidden.numpy().max() < 1e6 else hidden / 2).flatten(1)


def test_a_model_that_cannot_be_taken_apart_keeps_its_scores_and_says_what_is_missing():
    torch.manual_seed(0)
    model = Leaving()
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    final = {name: value + 0.1 for name, value in initial.items()}
    observation = Observation(model, ((initial, final),), (1, 6, 6), round=1, client=0)
    private, public = torch.rand(3, 1, 6, 6), torch.rand(20, 1, 6, 6)
    truth = Truth(private, Pool(public, private), Normalization((0.0,)), seed=0)
    found = Reconstruction(images=private.clone(), residual=torch.zeros(3), pixel_mean=(0.0,))
    columns, notes, samples, _ = evaluate(truth, observation, Knowledge(), found, KEY)
    assert columns["leakage"] == pytest.approx(1.0) and columns["recovered"] == len(samples) == 3
    assert not {"kernel_distance", "verdict"} & set(columns)
    assert [note.partition(":")[0] for note in notes if "RuntimeError" in note] == ["kernel distance"]
    assert "linearity: model 'Leaving' computes outside of torch, as NumPy does" in "; ".join(notes)


def test_a_scenario_tells_the_classes_of_private_and_public_images_in_their_order():
    """Of the 8x8 digits, which the labels of scikit-learn's own table must bear out."""
    truth = Truth.of(Scenario(name="s"), [1], [0, 1])
    digits = load_digits()
    label_of = dict(zip(map(bytes, digits.images.astype("uint8")), digits.target, strict=True))
    for images, labels in (
        (truth.private, truth.labels),
        (truth.pool.public, truth.pool.public_labels),
        (truth.pool.private, truth.pool.private_labels),
    ):
        pixels = (images[:, 0] * 16).round().byte().numpy()
        assert labels.tolist() == [label_of[bytes(image)] for image in pixels]
    assert len(truth.pool.private) == 2 * len(truth.private)


CLASSES = torch.tensor([0] * 8 + [1] * 6 + [2] * 2)
SETTINGS = Knowledge(num_private=16, learning_rate=0.1, steps=1)


def sent_classes(optimizer=torch.optim.SGD, untaught=True):
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 4)), torch.rand(16, 1, 6, 6)
    if not untaught:
        model[3].bias.data += torch.tensor([4.0, 0.0, 0.0, 0.0])
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    steps = optimizer(model.parameters(), lr=0.1)
    nn.functional.cross_entropy(model(images), CLASSES).backward()
    steps.step()
    return Observation(model, ((initial, dict(model.state_dict())),), (1, 6, 6), round=1, client=0), images


def test_classes_are_counted_for_who_knows_the_training_and_scored_beside_equal_counts():
    observation, images = sent_classes()
    public = torch.rand(20, 1, 6, 6)
    truth = Truth(images, Pool(public, images), Normalization((0.0,)), seed=0, labels=CLASSES)
    found = Reconstruction(images=images[:0], residual=torch.zeros(0), pixel_mean=(0.0,))
    columns = evaluate(truth, observation, SETTINGS, found, KEY).columns
    assert columns["class_counts"] == '{"0": 8, "1": 6, "2": 2, "3": 0}'
    # equal counts have 4 images of class 3, and 2 too many of class 2, that belong elsewhere: 6 of 16
    assert columns["class_error"] == 0 and columns["floor_class_error"] == pytest.approx(6 / 16)
    assert not {"class_counts", "class_error"} & set(evaluate(truth, observation, Knowledge(), found, KEY)[0])


@pytest.mark.parametrize(
    ("case", "reason"),
    [({"optimizer": torch.optim.Adam}, "not what SGD"), ({"untaught": False}, "public images have to be granted")],
)
def test_classes_are_not_counted_where_the_estimate_is_not_to_be_trusted(case, reason):
    with pytest.raises(InputError, match=reason):
        told_classes(sent_classes(**case)[0], SETTINGS)


def spent(work):
    """(what the work returns, the processor seconds that it took)."""
    begun = time.process_time()
    return work(), time.process_time() - begun


def clients_of(count, shared_data):
    """(observation, knowledge, truth) of the first of three clients of so many images, after an epoch. Each is the mean
    of two of CIFAR-10, of which there are fewer."""
    train = load_dataset(DataConfig(name="cifar10", root=str(shared_data))).train
    first, second = np.random.default_rng(0).integers(len(train.labels), size=(2, 3 * count))
    images = (train.images(first) + train.images(second)) / 2
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    states, optimizer = [], torch.optim.SGD(net.parameters(), lr=0.05)
    states.append({name: value.clone() for name, value in net.state_dict().items()})
    for batch in torch.arange(count).split(50):
        optimizer.zero_grad()
        labels = torch.from_numpy(train.labels[first[batch]])
        nn.functional.cross_entropy(net((images[batch] - 0.5) / 0.25), labels).backward()
        optimizer.step()
    states.append(net.state_dict())
    grey = {"pixel_mean": (0.5,) * 3, "pixel_std": (0.25,) * 3}
    truth = Truth(images[:count], Pool(images[count:], images), Normalization(*grey.values()), 0, diagnosed=False)
    knowledge = Knowledge(num_private=count, pixel_range=(0.0, 1.0), **grey)
    return Observation(net, (tuple(states),), (3, 32, 32)), knowledge, truth


@pytest.mark.slow
def test_what_scores_cost_beside_the_attacks_of_an_audit(shared_data):
    """Of processor time, in one process. Of 1,000 images `ntk` makes the fewest iterations that it is ever given."""
    attacking = scoring = 0.0
    for count in (1000, 10_000):
        observation, knowledge, truth = clients_of(count, shared_data)
        span, ntk = default_attacks(observation.model, observation.input_shape, count)
        for config in (span, ntk)[: 2 if count == 1000 else 1]:  # of 10,000 its time is over before it has a result
            found, seconds = spent(partial(AttackRun(config).run, observation, knowledge))
            attacking += seconds
            scoring += spent(partial(evaluate, truth, observation, knowledge, found, KEY))[1]
        if count == 1000:
            assert ntk.options["iterations"] == FEWEST and len(found.images) == 2000
            assert scoring < 0.2 * attacking
            attacking, scoring = 10 * attacking, 0.0  # at least, of ten times as many candidates
    scoring += spent(partial(measure_alone, truth, observation, knowledge))[1]
    assert scoring < 0.1 * min(attacking, TIMEOUT)
