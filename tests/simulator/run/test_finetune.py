"""Fine-tuning end to end: pretraining, a client that fine-tunes, both attacks, and the claims made of it."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from attacks import Observation
from attacks.kernel.empirical import affordable_images
from clients.config import ModelConfig
from clients.models import build_model
from simulator.paper.command import load_file, run_experiment
from simulator.run.plan import make_plan
from simulator.scenario.scenario import load_scenario, load_source
from tests.simulator.conftest import ray_stays_up

SMALL = ["model.channels=4", "data.public=100", "data.test=50", "model.pretrain.epochs=1", "training.steps=3"]


@pytest.mark.parametrize("name", ["figure4", "finetune"])
@pytest.mark.parametrize("profile", ["quick", "full"])
def test_plans_of_both_profiles_pass_every_check(name, profile, tmp_path):
    plan = make_plan(load_source(load_file(name, profile, [*SMALL, "partition.images=[2]"])), tmp_path / "out")
    assert all(cell.scenario.model.pretrain.data is None for cell in plan.cells)


def test_the_scenarios_name_what_has_to_be_given():
    scenario = load_scenario("scenarios/finetune.yaml", ["data.root=here", "model.pretrain.data.root=there"])
    assert scenario.model.pretrain.data.root == str(Path("there").resolve())
    assert scenario.training.batch_norm == "eval" and scenario.model.pretrain.batch_norm == "train"
    ready = ["model.pretrain=null", "model.replace_head=true", "model.checkpoint=resnet18.pth"]
    assert load_scenario("scenarios/finetune.yaml", ready).model.pretrain is None
    federated = load_scenario("scenarios/cifar_resnet.yaml", ["data.root=here", "model.checkpoint=there.safetensors"])
    assert federated.training.batch_norm == "train" and federated.model.options["stem"] == "cifar"


@pytest.mark.parametrize("name", ["figure4", "finetune"])
@pytest.mark.parametrize("profile", ["quick", "full"])
def test_the_paper_freezes_batch_norm(name, profile):
    assert load_source(load_file(name, profile, [])).training.batch_norm == "eval"


@pytest.mark.parametrize(("model", "shape", "images"), [("mlp", (1, 8, 8), 200), ("resnet18", (3, 32, 32), 4)])
def test_kernels_of_large_convolutional_networks_are_measured_on_few_images(model, shape, images):
    # the Jacobian of 11.2 million convolutional parameters and ten outputs has 1.1e8 entries for each image
    network = build_model(ModelConfig(name=model, precision="float64"), shape, 10, 0)
    state = network.state_dict()
    assert affordable_images(Observation(network, ((state, state),), shape)) == images


@pytest.mark.slow
def test_both_attacks_on_digits(tmp_path):
    said = [*SMALL, "adversary.attacks.0.iterations=5", "partition.images=[3]", "model.head=[32, 32]"]
    said += [
        f"engine.cpus={os.cpu_count()}",
        "engine.attack_workers=1",
    ]  # a second one imports for longer than it works
    out = tmp_path / "out"
    with ray_stays_up():
        run_experiment("finetune", "quick", said, out, Console(quiet=True), sheet=True)
    data = pd.read_csv(out / "data.csv")
    assert set(data.trained) == {"all layers", "head"} and set(data.attack) == {"ntk", "span"}
    claims = json.loads((out / "claims.json").read_text())
    assert len(claims) == 3 and "100 images of the same data" in claims[0]["measured"]
    assert len(list((out / "run" / "pretrained").glob("*.safetensors"))) == 1  # what clients freeze is nothing to it
    assert (out / "figure.png").stat().st_size > 10_000
