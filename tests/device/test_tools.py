"""Diagnostics, measures of a run, constancy, the theorems and the onion use the card, and find what the CPU finds."""

import math

import pandas as pd
import pytest
import torch
from torch import nn

from attacks import Knowledge, Observation, Pool, Reconstruction
from attacks.interface.normalization import Normalization
from simulator.evaluation.evaluator import evaluate
from simulator.evaluation.truth import Truth
from simulator.paper.constancy import Network, measure, measure_loss, measure_training
from simulator.paper.predicted_points import PredictedSettings, RkipSettings, loss_table, one_point
from simulator.paper.reconstruction.onion import OnionSettings, Peeling, at_infinite_width
from simulator.paper.sphere import SphereSettings, minimize, on_sphere_target
from simulator.tools.diagnosis import measure_regime
from simulator.tools.distillation import Owner
from tests.attacks.conftest import client, digits, mlp
from tests.device.card import card
from tests.simulator.paper.reconstruction.test_onion import run_of
from tests.simulator.paper.test_theory import cell_of


def both(found):
    """What a function finds on the CPU and on the card, which has to have been used."""
    here = found()
    with card() as waits:
        there = found()
    assert any(wait.kind == "upload" for wait in waits.seen)
    return here, there, waits


def assert_alike(here, there):
    """Numbers within a thousandth, everything else equal."""
    assert here.keys() == there.keys()
    for name, value in here.items():
        if isinstance(value, float):
            assert there[name] == pytest.approx(value, rel=1e-3, abs=1e-6, nan_ok=True), name
        else:
            assert there[name] == value, name


def convolutional():
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 3)).eval()


NETWORKS = {"mlp": lambda: mlp(48, outputs=3), "convolutional": convolutional}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_diagnosis(name):
    observation = client(NETWORKS[name](), digits(3), 2)
    here, there, _ = both(lambda: measure_regime(observation, digits(3), complete=True).facts())
    assert_alike(here, there)
    assert not math.isnan(here["hessian_norm"])


@pytest.mark.parametrize("name", NETWORKS)
def test_the_measures_of_a_row(name):
    model, private, public = NETWORKS[name](), digits(3), digits(60, start=100)
    observation = client(model, private, 2)
    observation = Observation(model, observation.pairs, (1, 8, 8), round=1, client=0)
    truth = Truth(private, Pool(public, private), Normalization((0.0,)), seed=0)
    attacked = Reconstruction(images=private.clone(), residual=torch.zeros(3), pixel_mean=(0.0,))
    knowledge, key = Knowledge(num_private=3), {"threat_model": "server", "attack": "span"}
    (here, *_), (there, *_), _ = both(lambda: evaluate(truth, observation, knowledge, attacked, key))
    assert_alike(here, there)
    assert {"kernel_distance", "hessian_norm", "membership_auc", "attacker_verdict"} <= set(here)


@pytest.mark.parametrize("output", ["linear", "relu", "bottleneck"])
def test_constancy(output):
    here, there, waits = both(lambda: measure(Network(24, output, "tanh", 0), 0.3, bound=True))
    assert_alike(here, there)
    # gradient descent ends at a length that is looked at after every step
    assert waits.by_place()["simulator/paper/constancy.py:descend"] == here["steps"]


def test_constancy_under_other_losses():
    assert_alike(*both(lambda: measure_loss(Network(24, "linear", "tanh", 0), "cross_entropy", 0.01))[:2])
    assert_alike(*both(lambda: measure_training(Network(24, "linear", "gelu", 0), "hinge", 0.5))[:2])


def test_theorem_1(tmp_path):
    owner = Owner.of(cell_of("theorem1", tmp_path, "partition.images=4").scenario)
    settings = SphereSettings(iterations=3)

    def found():
        trace = minimize(on_sphere_target(owner), settings, torch.Generator())[0]
        return {f"{name} {i}": float(value) for name, values in trace.items() for i, value in enumerate(values)}

    assert_alike(*both(found)[:2])


def test_theorem_2(tmp_path):
    cell = cell_of("theorem2", tmp_path, "partition.images=4", "model.width=16")
    here, there, _ = both(lambda: loss_table(cell, RkipSettings(distilled=[2])))
    pd.testing.assert_frame_equal(here, there, rtol=1e-6)


def test_predicted_points(tmp_path):
    cell = cell_of("appendix_c", tmp_path, "partition.images=4", "model.width=16")
    assert_alike(*both(lambda: one_point(cell, 1, 0.5, PredictedSettings(iterations=3)))[:2])


def test_the_onion(tmp_path):
    run = run_of(tmp_path, "partition.images=8", "training.steps=5")
    scenario, settings = run.scenario.cells()[0].scenario, OnionSettings(drop=4, until=4, draws=1, iterations=3)
    settings = settings.model_copy(update={"width_per_image": 2.0, "reference_images": 8})
    owner = Owner.of(scenario)
    here, there, _ = both(lambda: Peeling(owner, settings, scenario.training).table())
    pd.testing.assert_frame_equal(here, there, rtol=1e-3)
    here, there, _ = both(lambda: at_infinite_width(scenario, settings))
    pd.testing.assert_frame_equal(here, there, rtol=1e-6)
