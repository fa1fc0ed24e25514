"""What the evaluator writes of a finished attack, on models that it cannot take apart."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from attacks import Knowledge, Observation, Pool, Reconstruction
from attacks.interface.pictures import Normalization
from simulator.evaluation.evaluator import evaluate
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
