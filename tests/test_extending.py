"""The examples of docs/extending.md, executed as they stand there."""

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from attacks import ATTACKS, InputError, Knowledge, Observation, Pool, Reconstruction, get_attack, torch_generator
from attacks.interface.normalization import Normalization
from clients.config import DataConfig, ModelConfig
from clients.data import SOURCES, Source, load_dataset
from clients.defenses import DEFENSES
from clients.models import build_model
from clients.models.factory import MODELS
from simulator.evaluation.evaluator import evaluate
from simulator.evaluation.measures import MEASURES
from simulator.evaluation.truth import Truth
from simulator.results.reference import reference
from simulator.results.schema import LEAKAGE, benchmark
from simulator.run.strategies import defended_strategy
from simulator.scenario.scenario import load_scenario

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"
FILES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL))
KEY = {"round": 1, "client": 0, "threat_model": "server", "attack": "a", "defense": "none", "seed": 0}


@pytest.fixture
def example(monkeypatch):
    """Execute the example that belongs into a file; what it registers is forgotten after the test."""
    registries = (ATTACKS, DEFENSES, MODELS, SOURCES, MEASURES, LEAKAGE.columns)
    before = [dict(registry) for registry in registries]

    def execute(path):
        module = types.ModuleType(path.replace("/", "_").removesuffix(".py"))
        monkeypatch.setitem(sys.modules, module.__name__, module)  # where dataclasses and pydantic look names up
        exec(compile(FILES[path], path, "exec"), vars(module))
        return module

    yield execute
    for registry, kept in zip(registries, before, strict=True):
        registry.clear()
        registry.update(kept)


def test_the_page_has_one_example_of_each():
    folders = [str(Path(path).parent) for path in FILES]
    assert folders == [
        "attacks", "clients/defenses", "clients/defenses", "clients/data/sources", "clients/models",
        "simulator/evaluation", "simulator/results",
    ]  # fmt: skip


def test_the_attack_recovers_the_image_of_a_client_that_has_one(example):
    example("attacks/first_layer_rows.py")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    image = torch.rand(1, 1, 8, 8)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    nn.functional.cross_entropy(model(image), torch.tensor([3])).backward()
    final = {name: initial[name] - 0.1 * value.grad for name, value in model.named_parameters()}
    observation = Observation(model, ((initial, final),), (1, 8, 8))
    found = get_attack("first_layer_rows").run(observation, Knowledge(pixel_mean=(0.0,)), torch_generator(0, "test"))
    assert found.num_inferred == 1 and len(found.images) == 1
    assert torch.allclose(found.images, image, atol=1e-3)
    with pytest.raises(InputError, match=r"smallest_bias is -1\.0"):
        get_attack("first_layer_rows", smallest_bias=-1.0)


def test_the_defense_of_the_client_sends_signs(example):
    defense = example("clients/defenses/sign_update.py").SignUpdate()
    sent, said = defense.protect_update({"a": torch.tensor([1.0, -3.0]), "b": torch.tensor([0.5, -0.5])}, None)
    assert said == {"scale": 1.25}
    assert sent["a"].tolist() == [1.25, -1.25] and sent["b"].tolist() == [1.25, -1.25]
    assert DEFENSES["sign_update"].name == "sign_update"


def test_the_defense_with_a_server_half_wraps_the_strategy(example, tmp_path):
    example("clients/defenses/adaptive_clipping.py")
    file = tmp_path / "s.yaml"
    file.write_text("name: s\ndefenses: [{name: adaptive_clipping, first_norm: 0.5}]\n")
    strategy = defended_strategy(load_scenario(file))
    assert type(strategy).__name__ == "DifferentialPrivacyServerSideAdaptiveClipping"
    assert strategy.clipping_norm == 0.5 and type(strategy.strategy).__name__ == "FedAvg"
    file.write_text("name: s\ndefenses: [secure_aggregation, adaptive_clipping]\n")
    with pytest.raises(InputError, match="nothing to clip per client"):
        load_scenario(file)


def test_the_data_set_is_found_by_its_name(example):
    SOURCES["stripes"] = Source(example("clients/data/sources/stripes.py").load, reads_root=False)
    dataset = load_dataset(DataConfig(name="stripes"))
    images = dataset.train.images(torch.arange(4).numpy())
    assert images.shape == (4, 1, 8, 8) and dataset.class_names == ("horizontal", "vertical")
    rows_differ = (images.diff(dim=2).abs().amax((1, 2, 3)) > 0.1).long()
    assert rows_differ.tolist() == [1 - label for label in dataset.train.labels[:4]]


def test_the_network_is_built_and_refuses_options_of_others(example):
    MODELS["tiny_cnn"] = example("clients/models/tiny_cnn.py").TinyCNNOptions
    config = ModelConfig.model_validate({"name": "tiny_cnn", "channels": 4})
    assert build_model(config, (1, 8, 8), 10, seed=0)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    with pytest.raises(InputError, match="width"):
        build_model(ModelConfig.model_validate({"name": "tiny_cnn", "width": 4}), (1, 8, 8), 10, seed=0)


def test_the_metric_reaches_the_tables(example):
    example("simulator/evaluation/measures.py")
    column = example("simulator/results/schema.py").COLUMN
    LEAKAGE.columns[column.name] = column
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 2))
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    final = {name: value + 0.01 for name, value in initial.items()}
    observation = Observation(model, ((initial, final),), (1, 6, 6), round=1, client=0)
    private, public = torch.rand(3, 1, 6, 6), torch.rand(20, 1, 6, 6)
    found = Reconstruction(private[:2] * 0.5, residual=torch.zeros(2), pixel_mean=(0.0,))
    truth = Truth(private, Pool(public, private), Normalization((0.0,)), seed=0)
    columns = evaluate(truth, observation, Knowledge(), found, KEY)[0]
    assert columns["l2_nearest"] == pytest.approx(torch.cdist(private.flatten(1), found.images.flatten(1)).min().item())
    LEAKAGE.check(columns)
    assert "`l2_nearest`" in reference() and "l2_nearest" in benchmark().columns
