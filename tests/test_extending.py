"""The examples of docs/howto/extending.md, executed as they stand there."""

import os
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import fedspill
from attacks import ATTACKS, InputError, Knowledge, Observation, Pool, Reconstruction, get_attack, torch_generator
from attacks.interface.normalization import Normalization
from clients.chain import build_defense
from clients.config import DataConfig, ModelConfig
from clients.data import SOURCES, Source, load_dataset
from clients.defenses import DEFENSES
from clients.models import build_model
from clients.models.factory import MODELS
from docs.reference.tables import reference
from simulator.evaluation.evaluator import MEASURES, evaluate
from simulator.evaluation.truth import Truth
from simulator.results.schema import LEAKAGE, benchmark
from simulator.run.strategies import defended_strategy
from simulator.scenario.benchmark import load_benchmark
from simulator.scenario.scenario import load_scenario

PROJECT = Path(__file__).resolve().parents[1]
PAGE = PROJECT / "docs" / "howto" / "extending.md"
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
    example("simulator/evaluation/evaluator.py")
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


PLUGINS = tomllib.loads(re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])["project"]["entry-points"]


@pytest.fixture
def package(tmp_path, monkeypatch, example):
    """The examples as a package called `mine`, installed in a folder of its own; forgotten after the test."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()  # a mine.py of another test, further down the path, would win
    for path, text in FILES.items():
        (tmp_path / "mine" / Path(path).name).write_text(text)
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    lines = [f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in own.items()) for group, own in PLUGINS.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # another test's FILE.py may be called so
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]


def test_an_installed_package_offers_its_parts_by_name(package, tmp_path):
    registries = {"attacks": ATTACKS, "defenses": DEFENSES, "data": SOURCES, "models": MODELS}
    for group, own in PLUGINS.items():
        registry = registries[group.removeprefix("fedspill.")]
        assert not set(own) & set(registry) and set(own) == set(registry.offered())  # named, and not imported yet
    assert not any(name.startswith("mine.") for name in sys.modules)
    assert get_attack("first_layer_rows", smallest_bias=1e-6).smallest_bias == 1e-6
    file = tmp_path / "s.yaml"
    file.write_text(
        "name: s\ndata: {name: stripes}\ndefenses: [sign_update]\nmodel: {name: tiny_cnn, channels: 2}\n"
        "adversary: {attacks: [first_layer_rows]}\n"
    )
    scenario = load_scenario(file)
    assert type(scenario.adversary.attacks[0].make()).__module__ == "mine.first_layer_rows"
    assert type(build_defense(scenario.defenses[0])).__module__ == "mine.sign_update"
    assert load_dataset(scenario.data).class_names == ("horizontal", "vertical")
    assert build_model(scenario.model, (1, 8, 8), 2, seed=0)[0].out_channels == 2
    with pytest.raises(InputError, match="has no option 'smallest_bais'; did you mean 'smallest_bias'"):
        get_attack("first_layer_rows", smallest_bais=1)
    with pytest.raises(InputError, match="unknown attack 'first_layer_row'; did you mean 'first_layer_rows'"):
        get_attack("first_layer_row")


def test_a_scenario_names_parts_by_their_import_path(package, tmp_path):
    text = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (tmp_path / "nets.py").write_text("from torch import nn\nmake_net = lambda: nn.Flatten()\n")
    file = tmp_path / "s.yaml"
    file.write_text(f"name: s\n{text}".replace("nets.py", str(tmp_path / "nets.py")))
    scenario = load_scenario(file)
    (attack,) = scenario.adversary.attacks
    assert attack.label == "first_layer_rows" and attack.make().smallest_bias == 1e-6
    assert build_defense(scenario.defenses[0]).name == "sign_update"
    assert load_dataset(scenario.data).class_names == ("horizontal", "vertical")
    assert get_attack(f"{package / 'mine' / 'first_layer_rows.py'}:FirstLayerRows").name == "first_layer_rows"


def test_a_defense_of_ones_own_stands_in_a_benchmark_beside_ours(package, tmp_path):
    text = re.findall(r"```yaml\n(.*?)```", (PAGE.parent / "defense.md").read_text(), re.DOTALL)[0]
    (package / "mine.py").write_text(FILES["clients/defenses/sign_update.py"])
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace("scenarios/", f"{PROJECT}/scenarios/").replace("mine.py", f"{package}/mine.py"))
    cells = load_benchmark(file, None).cells()
    assert {cell.scenario.defense for cell in cells} == {"none", "power_sgd", "mine"} and len(cells) == 15


def test_an_attack_that_python_names_needs_no_permission(package, monkeypatch):
    monkeypatch.setenv("FEDSPILL_ALLOW_CODE", "")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    moved = {name: value + torch.rand(value.shape) for name, value in state.items()}
    observation = Observation(model, ((state, moved),), (1, 8, 8))
    path = "mine.first_layer_rows:FirstLayerRows"
    with pytest.raises(InputError, match="is code that would run on this machine"):
        get_attack(path)
    assert len(fedspill.attack(path, observation, Knowledge(num_private=2, pixel_mean=(0.0,))).images) == 2


@pytest.mark.slow
@pytest.mark.parametrize("command", re.findall(r"^    (FEDSPILL_ALLOW_CODE.*\\\n.*)$", PAGE.read_text(), re.MULTILINE))
def test_the_common_tests_run_over_parts_of_others(package, command):
    command = command.replace("python", sys.executable).replace("CLONE", str(PROJECT)) + " -vv"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    result = subprocess.run(command, shell=True, cwd=package, env=environment, capture_output=True, text=True)
    assert result.returncode == 0 and "[mine." in result.stdout, result.stdout[-2000:]


def test_what_a_path_leads_to_has_to_be_such_a_part(package):
    for path, says in (
        ("mine.stripes:load", r"is function, no attack: see docs/howto/extending\.md"),
        ("mine.stripes:laod", "has no function 'laod'; did you mean 'load'"),
        ("mine.nothing:Attack", "run from the folder it is in"),
        ("/nowhere/mine.py:Attack", "does not exist"),
    ):
        with pytest.raises(InputError, match=says):
            get_attack(path)
    (package / "mine" / "broken.py").write_text("x = 1 / 0\n")
    with pytest.raises(InputError, match=r"(?s)cannot be imported:.*broken\.py.*ZeroDivisionError"):
        get_attack("mine.broken:Attack")


def test_the_examples_are_short():
    lines = {path: len([line for line in text.splitlines() if line.strip()]) for path, text in FILES.items()}
    assert max(lines.values()) < 30
