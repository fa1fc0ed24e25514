import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge, Observation
from attacks.networks.probing import find_output_layer
from attacks.update.labels import estimate_label_counts, project_to_simplex, round_to_sum


class Odd(nn.Module):
    """A functional network whose layers are registered in the wrong order."""

    def __init__(self, outputs, bias=True):
        super().__init__()
        self.last, self.first = nn.Linear(16, outputs, bias=bias), nn.Linear(9, 16)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.flatten(1))))


def client(labels, outputs, steps=1, lr=0.1, momentum=0.0, loss="cross_entropy", bias=True, seed=0, coding=(-0.1, 0.9)):
    torch.manual_seed(seed)
    model = Odd(outputs, bias)
    images = torch.randn(len(labels), 1, 3, 3) * 0.2
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    for _ in range(steps):
        optimizer.zero_grad()
        predicted = model(images)
        if loss == "cross_entropy":
            value = nn.functional.cross_entropy(predicted, labels)
        elif outputs == 1:
            value = 0.5 * ((predicted[:, 0] - (2.0 * labels - 1)) ** 2).mean()
        else:
            targets = coding[0] + (coding[1] - coding[0]) * nn.functional.one_hot(labels, outputs)
            value = 0.5 * ((predicted - targets) ** 2).sum(1).mean()
        value.backward()
        optimizer.step()
    return Observation(model, ((initial, model.state_dict()),), (1, 3, 3)), images


LABELS = torch.tensor([0, 0, 0, 2, 2, 3, 5])
COUNTS = [3, 0, 2, 1, 0, 1]


def told(**others):
    return Knowledge(**{"num_private": 7, "learning_rate": 0.1, "steps": 1, **others})


@pytest.mark.parametrize(("steps", "momentum"), [(1, 0.0), (10, 0.0), (10, 0.9)])
def test_every_label_is_counted(steps, momentum):
    observation, _ = client(LABELS, 6, steps=steps, momentum=momentum)
    assert estimate_label_counts(observation, told(steps=steps), momentum=momentum).counts.tolist() == COUNTS


def test_one_step_is_exact_where_the_predictions_are_known():
    observation, images = client(LABELS, 6)
    found = estimate_label_counts(observation, told(public_images=images))
    # ȳ = s̄ + Δb / η holds to the rounding of float32 parameters
    assert torch.allclose(found.shares * 7, torch.tensor(COUNTS, dtype=torch.float64), atol=1e-5)
    assert found.confidence > 0.999


def test_without_a_bias_the_weights_tell():
    observation, images = client(LABELS, 6, bias=False)
    assert estimate_label_counts(observation, told(public_images=images)).counts.tolist() == COUNTS


@pytest.mark.parametrize(("outputs", "counts"), [(6, COUNTS), (1, [4, 3])])
def test_mean_squared_error(outputs, counts):
    labels = LABELS if outputs == 6 else torch.tensor([0, 1, 0, 1, 0, 1, 0])
    observation, _ = client(labels, outputs, loss="mse")
    assert estimate_label_counts(observation, told(), "mse").counts.tolist() == counts


def test_the_coding_of_the_targets_is_what_an_attacker_has_to_know():
    observation, _ = client(LABELS, 6, loss="mse", coding=(-1.0, 3.0))
    assert estimate_label_counts(observation, told(), "mse", coding=(-1.0, 3.0)).counts.tolist() == COUNTS
    assert estimate_label_counts(observation, told(), "mse").counts.tolist() != COUNTS


def test_the_number_of_images_is_inferred_where_it_is_not_told():
    observation, _ = client(torch.tensor([1, 4]), 6)
    knowledge = Knowledge(learning_rate=0.1, steps=1)
    assert estimate_label_counts(observation, knowledge).counts.tolist() == [0, 1, 0, 0, 1, 0]


def test_what_is_missing_is_refused_by_name():
    observation, _ = client(LABELS, 6)
    with pytest.raises(InputError, match="learning_rate, steps"):
        estimate_label_counts(observation, Knowledge())
    softmax = nn.Sequential(nn.Flatten(), nn.Linear(9, 6), nn.Softmax(1))
    state = {name: value + 1 for name, value in softmax.state_dict().items()}
    with pytest.raises(InputError, match="linear last layer"):
        estimate_label_counts(Observation(softmax, ((softmax.state_dict(), state),), (1, 3, 3)), told())


def test_the_output_layer_is_found_by_watching():
    assert find_output_layer(Odd(4), (1, 3, 3)) == "last"


def test_projection_and_rounding_by_hand():
    # the nearest point of the simplex to (0.9, 0.5, −0.2): 0.2 off the two that stay positive
    projected = project_to_simplex(torch.tensor([0.9, 0.5, -0.2], dtype=torch.float64))
    assert torch.allclose(projected, torch.tensor([0.7, 0.3, 0.0], dtype=torch.float64))
    assert round_to_sum(torch.tensor([1.5, 0.4, 2.1]), 4).tolist() == [2, 0, 2]
