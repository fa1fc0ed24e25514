"""Remarks of the appendices: the attack without smoothing, labels by hand, claims on a hand-made table."""

import pandas as pd
import pytest
import torch

from attacks.networks.front_layers import find_dense_network
from attacks.ntk.objective import make_objective
from clients.config import ModelConfig
from clients.models import build_model
from simulator.paper.reconstruction.ablations import WithReLU, ablation_statistics, label_scores


class FourImages:
    """As much of an owner as labels need: images on a line at 0, 1, 3 and 7."""

    images = torch.tensor([0.0, 1.0, 3.0, 7.0]).view(4, 1, 1, 1)
    targets = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])


def test_labels_are_those_of_images_nearer_than_half_the_way_to_another():
    """Half the ways are 0.5, 0.5, 1 and 2: the second one is not found. The third label has the wrong sign."""
    l2, implied = torch.tensor([0.1, 0.6, 0.9, 1.9]), torch.tensor([[0.9], [1.0], [-0.2], [-1.3]])
    scores = label_scores(FourImages, l2, implied)
    assert scores["found"] == 3 and scores["right"] == pytest.approx(2 / 3)
    assert scores["label_error"] == pytest.approx((0.1 + 1.2 + 0.3) / 3)


def test_without_smoothing_the_inverse_temperature_does_not_count():
    model = build_model(ModelConfig.model_validate({"width": 8}), (1, 4, 4), 1, 0)
    assert find_dense_network(model, (1, 4, 4)) is not None
    state = {name: value.detach() for name, value in model.named_parameters()}
    objective = make_objective(model, (1, 4, 4), state, [state])
    plain = WithReLU(objective)
    images, duals = torch.randn((3, 1, 4, 4), generator=torch.Generator().manual_seed(0)), torch.ones(1, 3, 1)
    assert plain.loss(images, duals, 10.0) == objective.loss(images, duals, None) != objective.loss(images, duals, 10.0)
    assert plain.delta is objective.delta


def test_claims_on_a_hand_made_table(holds):
    rows = [("recipe", 1e-3, 2.0), ("relu", 1e-3, 3.0), ("float64", 1e-3, 1.9), ("rate", 3e-3, 2.2)]
    table = pd.DataFrame(rows, columns=["variant", "rate", "l2"])
    labels = {"variant": ["fitted", "stopped"], "rate": 1e-3, "l2": 1.0, "found": 9, "right": 1.0}
    table = pd.concat([table, pd.DataFrame(labels | {"label_error": [0.1, 0.8]})]).assign(floor_l2=7.0, seed=0)
    assert holds("appendix_h", ablation_statistics(table)) == [True] * 5
    worse = table.assign(l2=[2.0, 1.0, 2.1, 2.5, 1.0, 1.0], right=0.5, label_error=0.1)
    assert holds("appendix_h", ablation_statistics(worse)) == [False] * 5
