"""What the evaluator writes of a finished attack, on models that it cannot take apart."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from attacks import InputError, Knowledge, Observation, Pool, Reconstruction
from attacks.interface.normalization import Normalization
from simulator.evaluation.evaluator import evaluate, told_classes
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
    columns, samples, notes = evaluate(truth, observation, Knowledge(), found, KEY)
    assert columns["leakage"] == pytest.approx(1.0) and columns["recovered"] == len(samples) == 3
    assert not {"kernel_distance", "verdict"} & set(columns)
    assert [note.partition(":")[0] for note in notes if "RuntimeError" in note] == ["kernel distance", "linearity"]


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
    columns, _, _ = evaluate(truth, observation, SETTINGS, found, KEY)
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
