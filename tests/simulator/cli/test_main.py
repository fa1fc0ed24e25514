"""The command line as a user meets it: exit codes, one-line errors, nothing half-written."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from attacks import Knowledge
from simulator.errors import DiskError
from simulator.results.keys import ObservationKey, RecordedObservation
from simulator.results.ledger import Ledger
from simulator.results.storage import CellStore
from simulator.run.folder import claimed
from simulator.run.plan import make_plan
from simulator.scenario.scenario import load_scenario

FACTORY = """
import torch
import torch.nn as nn
def make(outputs=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, outputs))
def empty():
    return nn.Flatten()
def broken():
    raise KeyError("no such net")
def misused():
    return nn.Linear("a", 10)
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = make()
    def forward(self, x):
        return self.net(x), x
def conv():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))
def three():
    return make(3)
class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
    def forward(self, x):
        return x.flatten(1) * self.scale
def bare():
    return Bare()
"""


def test_the_installed_command_prints_one_line_and_exits_with_2(tmp_path):
    command = [Path(sys.executable).parent / "fedspill", "check", tmp_path / "none.yaml"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr == f"fedspill: scenario '{tmp_path / 'none.yaml'}' does not exist\n"


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "nets.py").write_text(FACTORY)

    def write(text, name="s.yaml"):
        path = tmp_path / name
        path.write_text(text.replace("NETS", str(tmp_path / "nets.py")))
        return path

    return write


BAD = {
    "unknown key": ("name: s\nmodell: {}\n", "did you mean 'model'?"),
    "wrong type": ("name: s\nseed: [1, 2]\n", "input should be a valid integer"),
    "out of range": ("name: s\nfederation: {fraction: 2}\n", "less than or equal to 1"),
    "missing data folder": ("name: s\ndata: {name: mnist, root: /nowhere}\n", "data.root"),
    "no data folder": ("name: s\ndata: {name: mnist}\n", "data.root"),
    "unknown data set": ("name: s\ndata: {name: mnst}\n", "did you mean 'mnist'?"),
    "more images than there are": ("name: s\npartition: {images: 9000}\n", "partition.images"),
    "labels that do not fit": ("name: s\nmodel: {outputs: 5}\n", "model.outputs is 5"),
    "one output for ten classes": ("name: s\nmodel: {outputs: 1}\n", "model.outputs is 1"),
    "unknown model": ("name: s\nmodel: {name: lenet}\n", "did you mean 'lenet5'?"),
    "model without parameters": ("name: s\nmodel: {name: 'NETS:empty'}\n", "no parameters"),
    "factory that raises": ("name: s\nmodel: {name: 'NETS:broken'}\n", "no such net"),
    "factory that misuses torch": ("name: s\nmodel: {name: 'NETS:misused'}\n", "nets.py"),
    "model that returns a tuple": ("name: s\nmodel: {name: 'NETS:Pair'}\n", "returns tuple"),
    "checkpoint that is a folder": ("name: s\nmodel: {checkpoint: /}\n", "no safetensors file"),
    "network that hides the number of images": ("name: s\nmodel: {name: 'NETS:conv'}\n", "needs num_private"),
    "mean of too many channels": ("name: s\nadversary: {knowledge: {pixel_mean: [1, 2, 3]}}\n", "1 channels"),
    "no image at all": ("name: s\nadversary: {knowledge: {num_private: 0}}\n", "num_private is 0"),
    "strategy of trees": ("name: s\nfederation: {strategy: FedXgbBagging}\n", "unknown federation.strategy"),
    "factory with other outputs": ("name: s\nmodel: {name: 'NETS:three'}\n", "the labels need (10,)"),
    "missing checkpoint": ("name: s\nmodel: {checkpoint: /nowhere.safetensors}\n", "does not exist"),
    "unknown strategy": ("name: s\nfederation: {strategy: FedAvgg}\n", "did you mean 'FedAvg'?"),
    "strategy with a bad option": ("name: s\nfederation: {strategy: {name: FedAvg, options: {x: 1}}}\n", "'x'"),
    "a round that never comes": ("name: s\nadversary: {when: [5]}\n", "names round 5"),
    "knowledge of the wrong kind": ("name: s\nadversary: {knowledge: {public_images: 3}}\n", "public_images"),
    "knowledge of a defense that is not there": ("name: s\nadversary: {knowledge: [noise_std]}\n", "noise_std is true"),
    "strategy inside a strategy": (
        "name: s\nfederation: {strategy: {name: DifferentialPrivacyServerSideFixedClipping, options: {strategy: 5}}}\n",
        "its option strategy is 5",
    ),
    "mean that is no number": (
        "name: s\ndata: {mean: [.nan]}\n",
        "data.mean.0 is nan: input should be a finite number",
    ),
    "round before the first": ("name: s\nadversary: {when: [0]}\n", "adversary.when.0 is 0: input should be greater"),
    "key that stands twice": ("name: s\nseed: 1\nseed: 2\n", "line 3: key 'seed' stands in line 2 already"),
    "section that stands twice": (
        "name: s\ntraining: {epochs: 1}\nmodel: {width: 8}\ntraining: {batch_size: 2}\n",
        "line 4: key 'training' stands in line 2 already",
    ),
    "key that stands twice in a line": ("name: s\nmodel: {width: 8, width: 9}\n", "'width' stands in line 2 already"),
    "attack without options": (
        "name: s\nadversary: {attacks: [{name: ntk, options: null}]}\n",
        "line 2: adversary.attacks.0.options is None: input should be an object",
    ),
    "defense without options": (
        "name: s\ndefenses: [{name: noise, options: null}]\n",
        "line 2: defenses.0.options is None: input should be an object",
    ),
    "nodes that are not there": (
        "name: s\nfederation: {clients: 3, strategy: {name: FedAvg, options: {min_available_nodes: 10}}}\n",
        "min_available_nodes is 10, it has to be 0 to federation.clients = 3",
    ),
    "training nodes that are not there": (
        "name: s\nfederation: {strategy: {name: FedMedian, options: {min_train_nodes: 4}}}\n",
        "min_train_nodes is 4",
    ),
    "mean of too many channels for span": (
        "name: s\nadversary: {attacks: [span], knowledge: {pixel_mean: [0.1, 0.2]}}\n",
        "pixel_mean has 2 values, the images have 1 channels",
    ),
    "mean of too many channels for the mean image": (
        "name: s\nadversary: {attacks: [mean_image], knowledge: {pixel_mean: [0.1, 0.2]}}\n",
        "pixel_mean has 2 values, the images have 1 channels",
    ),
    "label of no class": (
        "name: s\nadversary: {knowledge: {labels: [1, 2, 99]}}\n",
        "labels go up to 99, the network tells 10 classes apart",
    ),
    "share above one": ("name: s\nadversary: {knowledge: {kept_fraction: 5.0}}\n", "kept_fraction is 5.0, it has"),
    "bits of no computer": (
        "name: s\nadversary: {knowledge: {quantization_bits: 100000}}\n",
        "quantization_bits is 100000, it has to be at most 32",
    ),
    "mod of no package": ("name: s\ndefenses: ['a.b:c']\n", "defense 'a.b:c' cannot be loaded: No module named 'a'"),
    "mod that is none": ("name: s\ndefenses: ['math:pi']\n", "defense 'math:pi' is a float, no Flower mod"),
    "infinite learning rate": ("name: s\ntraining: {learning_rate: .inf}\n", "input should be a finite number"),
    "infinite option": (
        "name: s\nadversary: {attacks: [{name: ntk, learning_rate: .inf}]}\n",
        "adversary.attacks.0.learning_rate is inf: input should be a finite number",
    ),
    "belief that is no number": (
        "name: s\nadversary: {knowledge: {learning_rate: .nan}}\n",
        "line 2: adversary.knowledge.learning_rate is nan: input should be a finite number",
    ),
    "infinite option of a factory": ("name: s\nmodel: {options: {x: [-.inf]}}\n", "model.options.x.0 is -inf: input"),
    "time limit beyond any timer": ("name: s\nadversary: {timeout: 1.0e+30}\n", "less than or equal to 31536000"),
    "device of no name": ("name: s\nadversary: {attacks: [{name: ntk, device: 'cuda:x'}]}\n", "choose auto, cpu"),
    "set": ("name: s\npartition: {images: !!set {a}}\n", "plain YAML values only"),
    "date": ("name: s\nseed: 2024-01-01\n", "seed is '2024-01-01'"),
    "empty file": ("", "the file is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_message_and_exit_code_2(fedspill, scenario, tmp_path, name):
    text, says = BAD[name]
    result = fedspill("run", scenario(text), "--out", tmp_path / "out")
    message = result.stderr.strip()
    assert result.returncode == 2, message
    assert says in message and "simulator/" not in message
    assert len((result.stdout.strip() + message).splitlines()) <= 5
    assert not (tmp_path / "out").exists()


def test_missing_scenario(fedspill, tmp_path):
    result = fedspill("check", tmp_path / "none.yaml")
    assert result.returncode == 2 and "does not exist" in result.stderr


def test_check_estimates_attacks_that_need_knowledge(fedspill, scenario):
    attacks = "attacks: [gradient_matching, kkt, mean_image, random_public, best_public]"
    told = "knowledge: [learning_rate, steps, batch_size, public_images]"
    text = "name: s\nmodel: {width: 16}\nadversary: {%s, %s}\n"
    result = fedspill("check", scenario(text % (attacks, told)))
    assert result.returncode == 0 and "gradient_matching, kkt, mean_image" in result.stdout
    assert "at most" in result.stdout and "not counting" not in result.stdout  # those without iterations were run once
    result = fedspill("check", scenario(text % (attacks, "knowledge: [num_private]")))
    assert result.returncode == 2 and "needs learning_rate" in result.stderr


def test_a_mod_in_the_working_folder_is_found(fedspill, scenario, tmp_path, monkeypatch):
    (tmp_path / "own_mods.py").write_text("def quiet(message, context, reply):\n    return reply(message, context)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part not in ("", str(tmp_path))])
    result = fedspill("check", scenario("name: s\nmodel: {width: 8}\ndefenses: ['own_mods:quiet']\n"))
    assert result.returncode == 0, result.stderr


def test_check_says_what_would_run(fedspill, scenario):
    attacks = "threat_models: [server, observer], attacks: [{name: ntk, iterations: 30}]"
    result = fedspill("check", scenario(f"name: s\nmodel: {{width: 16}}\nadversary: {{{attacks}}}\n"))
    assert result.returncode == 0, result.stderr
    assert "2 rounds, 3 clients with 8 images each, FedAvg" in result.stdout
    assert (
        "8 (ntk; server, observer; told pixel_mean, pixel_range)" in " ".join(result.stdout.split())
        and "cost:" in result.stdout
    )
    assert result.stdout.rstrip().endswith("at most")


def test_folders_that_hold_something_else_are_left_alone(fedspill, scenario, tmp_path):
    path = scenario("name: s\n")
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.txt").write_text("two years of work")
    result = fedspill("run", path, "--out", taken)
    assert result.returncode == 2 and "no fedspill run" in result.stderr
    result = fedspill("run", path, "--out", taken / "thesis.txt")
    assert result.returncode == 2 and "is a file" in result.stderr
    (taken / "scenario.yaml").write_text("digest: another\n")
    result = fedspill("run", path, "--out", taken)
    assert result.returncode == 2 and "another scenario" in result.stderr
    assert sorted(p.name for p in taken.iterdir()) == ["scenario.yaml", "thesis.txt"]


def test_list_names_what_a_scenario_can_name(fedspill):
    listing = fedspill("list").stdout
    for name in ("ntk", "digits", "tiny_imagenet", "lenet5", "FedAvg", "FedAdam"):
        assert name in listing


@pytest.fixture
def pair(tmp_path):
    """Two checkpoints of a client with three images, made by plain PyTorch."""
    (tmp_path / "nets.py").write_text(FACTORY)
    scope = {}
    exec(FACTORY, scope)
    torch.manual_seed(0)
    model, images = scope["make"](), torch.rand(3, 1, 8, 8) - 0.5
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), torch.tensor([1, 2, 3])).backward()
        optimizer.step()
    save_file(model.state_dict(), tmp_path / "b.safetensors")
    return ["--initial", tmp_path / "a.safetensors", "--final", tmp_path / "b.safetensors", "--shape", "1,8,8"]


def test_attack_on_two_checkpoints(fedspill, pair, tmp_path):
    model = f"{tmp_path / 'nets.py'}:make"
    options = ["--attack", "ntk", "--option", "iterations=50", "--know", "pixel_mean=0.5", "--out", tmp_path / "out"]
    result = fedspill("attack", "--model", model, *pair, *options)
    assert result.returncode == 0, result.stderr
    arrays = np.load(tmp_path / "out" / "reconstructions.npz")
    assert arrays["images"].shape == (6, 1, 8, 8) and arrays["residual"].shape == (6,)
    assert (np.diff(arrays["residual"]) >= 0).all()  # best first
    assert arrays["images"].min() < -0.05  # the model's own input space, not [0, 1]
    facts = json.loads((tmp_path / "out" / "facts.json").read_text())
    assert {"attack", "num_inferred", "knowledge", "seconds", "warnings"} <= set(facts)
    assert facts["num_inferred"] == 3 and facts["knowledge"] == {"pixel_mean": [0.5]}


def test_checkpoints_of_any_kind_are_attacked_alike(fedspill, pair, tmp_path):
    """As a training script of PyTorch and as Flower's lists of arrays have them."""
    sent, returned = (load_file(tmp_path / f"{name}.safetensors") for name in "ab")
    torch.save({"epoch": 1, "model_state_dict": {f"module.{k}": v for k, v in sent.items()}}, tmp_path / "a.pt")
    np.savez(tmp_path / "b.npz", *(returned[name].numpy() for name in ("1.weight", "1.bias", "3.weight", "3.bias")))
    found = []
    for initial, final in (("a.safetensors", "b.safetensors"), ("a.pt", "b.npz")):
        given = ["--initial", tmp_path / initial, "--final", tmp_path / final, "--shape", "1,8,8"]
        options = ["--attack", "ntk", "--option", "iterations=5", "--out", tmp_path / f"of_{final}"]
        result = fedspill("attack", "--model", f"{tmp_path / 'nets.py'}:make", *given, *options)
        assert result.returncode == 0, result.stderr
        found.append(np.load(tmp_path / f"of_{final}" / "reconstructions.npz")["images"])
    assert np.array_equal(*found)


def test_a_mean_that_is_assumed_is_said_on_the_screen(fedspill, pair, tmp_path):
    options = ["--attack", "mean_image", "--out", tmp_path / "out"]
    result = fedspill("attack", "--model", f"{tmp_path / 'nets.py'}:make", *pair, *options)
    assumed = "pixel_mean is unknown and no pixel tells it: 0.5 was assumed"
    assert result.returncode == 0 and f"warning: {assumed}" in " ".join(result.stdout.split())
    assert np.load(tmp_path / "out" / "reconstructions.npz")["held"].shape == (0, 1, 8, 8)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"--attack": "nkt"}, "did you mean 'ntk'?"),
        ({"--know": "labls=1"}, "did you mean 'labels'?"),
        ({"--shape": "8,8"}, "channels,height,width"),
        ({"--initial": "nowhere.safetensors"}, "does not exist"),
        ({"--model": "NETS:three"}, "has shape"),
        ({"--model": "NETS:nothing"}, "has no function 'nothing'"),
        ({"--model": None}, "Give --run RUN, or --model"),
        ({"--run": "somewhere"}, "leave out --model, --initial, --final, --shape"),
        ({"--option": "iterations=many"}, "'iterations' is 'many'"),
        ({"--option": "iterations=2024-01-01"}, "'iterations' is '2024-01-01'"),
        ({"--option": "device=cuda:99"}, "device is 'cuda:99', this machine has"),
        ({"--know": "steps=2024-01-01"}, "steps is '2024-01-01'"),
        ({"--know": "steps=!!set {a}"}, "plain YAML values only"),
        ({"--know": "labels=[]"}, "knowledge labels is ()"),
        ({"--know": "learning_rate=.nan"}, "knowledge learning_rate is nan"),
        ({"--shape": "1,5,5"}, "cannot take images of shape (1, 5, 5)"),
        ({"--final": "."}, "'.' is no safetensors file"),
    ],
)
def test_bad_attack_arguments(fedspill, pair, tmp_path, change, says):
    arguments = {"--model": "NETS:make", "--attack": "ntk", "--out": str(tmp_path / "out")}
    arguments |= dict(zip(pair[::2], map(str, pair[1::2]), strict=True)) | change
    flat = [part for flag, value in arguments.items() if value is not None for part in (flag, value)]
    result = fedspill("attack", *(part.replace("NETS", str(tmp_path / "nets.py")) for part in flat))
    assert result.returncode == 2 and says in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["attack", "member", "diagnose", "run"])
def test_where_the_result_cannot_be_written_nothing_is_computed(
    fedspill, scenario, pair, tmp_path, monkeypatch, command
):
    def compute(*args, **options):
        raise AssertionError("computed")

    for work in ("adversary.attack_run.AttackRun.run", "tools.diagnosis.measure_regime", "run.engine.start_ray"):
        monkeypatch.setattr(f"simulator.{work}", compute)
    monkeypatch.setattr("attacks.membership.MembershipTest.of", compute)
    np.savez(tmp_path / "some.npz", images=np.zeros((2, 1, 8, 8), np.float32))
    update = ["--model", f"{tmp_path / 'nets.py'}:make", *pair]
    arguments = {
        "attack": [*update, "--attack", "ntk"],
        "member": [*update, "--candidates", tmp_path / "some.npz"],
        "diagnose": [*update, "--images", tmp_path / "some.npz"],
        "run": [scenario("name: s\n")],
    }
    result = fedspill(command, *arguments[command], "--out", tmp_path / "nets.py" / "out")
    assert result.returncode == 2 and "nets.py' is a file: choose another --out" in result.stderr, result.stderr


def test_a_checkpoint_that_diverged_is_refused(fedspill, pair, tmp_path):
    state = load_file(tmp_path / "b.safetensors")
    state["1.weight"][0, 0] = torch.nan
    save_file(state, tmp_path / "b.safetensors")
    result = fedspill("attack", "--model", f"{tmp_path / 'nets.py'}:make", *pair, "--attack", "ntk", "--out", tmp_path)
    assert result.returncode == 2 and "'1.weight' holds NaN or Inf" in result.stderr


def test_facts_are_json_where_a_number_is_missing(fedspill, pair, tmp_path):
    out = tmp_path / "out"
    model = f"{tmp_path / 'nets.py'}:make"
    result = fedspill("attack", "--model", model, *pair, "--attack", "mean_image", "--out", out)
    assert result.returncode == 0, result.stderr

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    facts = json.loads((out / "facts.json").read_text(), parse_constant=refuse)
    assert facts["relative_residual"] is None  # the mean image explains no update


@pytest.fixture
def recorded(pair, scenario, tmp_path):
    """A run directory with one observation, of client 0 in round 1."""
    path = scenario(f"name: s\nmodel: {{name: '{tmp_path / 'nets.py'}:make'}}\ndata: {{public: 30, test: 30}}\n")
    plan = make_plan(load_scenario(path), tmp_path / "run")
    store = CellStore(plan.run_dir)
    with claimed(plan):
        store.create(plan.scenario.model, (1, 8, 8), 10, 0)
        states = [load_file(tmp_path / f"{name}.safetensors") for name in "ab"]
        names = store.save_global(0, states[0]), store.save_client(1, 0, states[1])
        recorded = RecordedObservation(ObservationKey(1, 0, "server"), (names,), (0,), (0,))
        store.save_observation(recorded, Knowledge(num_private=3))
    return store


@pytest.mark.parametrize(
    ("broken", "attack", "says"),
    [
        ("", "nope", "unknown attack 'nope'"),
        ("scenario.yaml", "mean_image", "scenario.yaml' cannot be read"),
        ("checkpoints/architecture.json", "mean_image", "architecture.json' cannot be read"),
        ("checkpoints/round_0001_client_00_server.json", "mean_image", "server.json' cannot be read"),
    ],
)
def test_a_damaged_run_directory_is_said_to_be(fedspill, recorded, tmp_path, broken, attack, says):
    arguments = ["--run", recorded.root, "--client", 0, "--out", tmp_path / "out"]
    assert fedspill("attack", *arguments, "--attack", "mean_image").returncode == 0
    if broken:
        path = recorded.root / broken
        path.write_text("{" + path.read_text() + "[")
    result = fedspill("attack", *arguments, "--attack", attack)
    assert result.returncode == 2 and says in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_membership_of_two_checkpoints(fedspill, pair, tmp_path):
    torch.manual_seed(0)
    scope = {}
    exec(FACTORY, scope)
    scope["make"]()
    private = torch.rand(3, 1, 8, 8) - 0.5  # what the pair was trained on
    np.savez(tmp_path / "some.npz", images=torch.cat([torch.rand(5, 1, 8, 8) - 0.5, private]).numpy())
    model = f"{tmp_path / 'nets.py'}:make"
    result = fedspill(
        "member", "--model", model, *pair, "--candidates", tmp_path / "some.npz", "--out", tmp_path / "out"
    )
    assert result.returncode == 0, result.stderr
    table = np.genfromtxt(tmp_path / "out" / "membership.csv", delimiter=",", names=True)
    assert table.dtype.names == ("index", "residual", "score") and list(table["index"]) == list(range(8))
    assert table["score"][5:].min() > table["score"][:5].max()


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        (None, "do not exist"),
        ({"pictures": np.zeros((2, 1, 8, 8))}, "no array `images`"),
        ({"images": np.zeros((2, 1, 8, 8), np.uint8)}, "has to be float"),
        ({"images": np.zeros((2, 64))}, "number, channels, height, width"),
        ({"images": np.full((2, 1, 8, 8), np.nan)}, "not finite"),
        ({"images": np.zeros((0, 1, 8, 8))}, "`images` is empty"),
        ({"images": np.zeros((2, 1, 28, 28))}, "expected (number, 1, 8, 8)"),
    ],
)
def test_bad_candidates(fedspill, pair, tmp_path, arrays, says):
    file = tmp_path / "some.npz"
    if arrays is not None:
        np.savez(file, **arrays)
    model = f"{tmp_path / 'nets.py'}:make"
    result = fedspill("member", "--model", model, *pair, "--candidates", file, "--out", tmp_path / "out")
    assert result.returncode == 2 and says in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


def test_diagnosis_of_two_checkpoints(fedspill, pair, tmp_path):
    np.savez(tmp_path / "public.npz", images=np.random.default_rng(0).random((5, 1, 8, 8), np.float32) - 0.5)
    arguments = ["--model", f"{tmp_path / 'nets.py'}:make", *pair, "--out", tmp_path / "out"]
    result = fedspill("diagnose", *arguments, "--images", tmp_path / "public.npz")
    assert result.returncode == 0, result.stderr
    facts = json.loads((tmp_path / "out" / "diagnose.json").read_text())
    assert facts["view"] == "adversary" and facts["images"] == 5 and facts["linear_output"] is True
    assert facts["verdict"].startswith("kernel regime") and facts["verdict"] in result.stdout
    assert facts["unexplained"] is None and 0 < facts["linearization_error"] < 0.3
    assert facts["remainder"] <= facts["bound"] and facts["delta_linf"] < facts["delta_l2"]
    layers = np.genfromtxt(tmp_path / "out" / "layers.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    assert list(layers["name"]) == [1, 3] and layers["rank"][0] == 3 and layers["clear"][0]


def test_a_diagnosis_of_a_model_without_layers_is_refused_in_one_line(fedspill, pair, tmp_path):
    """Its output layer is not to be found: a parameter of its own multiplies the image."""
    np.savez(tmp_path / "public.npz", images=np.zeros((2, 1, 8, 8), np.float32))
    save_file({"scale": torch.ones(64)}, tmp_path / "a.safetensors")
    save_file({"scale": torch.full((64,), 2.0)}, tmp_path / "b.safetensors")
    arguments = ["--model", f"{tmp_path / 'nets.py'}:bare", *pair, "--images", tmp_path / "public.npz"]
    result = fedspill("diagnose", *arguments, "--out", tmp_path / "out")
    assert result.returncode == 2 and "no layer with a weight" in result.stderr, result.stderr


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ([], "--images FILE.npz"),
        (["--evaluator"], "give --run"),
        (["--images", "nowhere.npz"], "images 'nowhere.npz' do not exist"),
    ],
)
def test_a_diagnosis_needs_images(fedspill, pair, tmp_path, extra, says):
    model = f"{tmp_path / 'nets.py'}:make"
    result = fedspill("diagnose", "--model", model, *pair, "--out", tmp_path / "out", *extra)
    assert result.returncode == 2 and says in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


@pytest.fixture
def late(tmp_path):
    """A finished run in which every attack ran out of time."""
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "scenario.yaml").write_text("scenario: {name: late}\n")
    ledger = Ledger(tmp_path / "late")
    key = {"round": 1, "threat_model": "server", "attack": "ntk", "defense": "none", "seed": 0, "target": "private"}
    why = {"status": "timeout", "detail": "no result within adversary.timeout = 1 s", "adaptive": False}
    ledger.add("", leakage=[{**key, **why, "client": client} for client in (0, 1)])
    ledger.write_tables()
    return tmp_path / "late"


def test_a_run_without_any_result_says_so_and_exits_with_3(fedspill, scenario, late, monkeypatch):
    monkeypatch.setattr("simulator.run.folder.needs_run", lambda plan, overwrite: False)
    result = fedspill("run", scenario("name: late\nmodel: {width: 8}\n"), "--out", late)
    assert result.returncode == 3
    assert result.stderr == "fedspill: no attack gave a result (2 timeout): nothing is known of what leaks\n"
    assert result.stdout.splitlines()[1].startswith("NO RESULT: No attack gave a result")
    assert "'ntk' out of time in 2 cases: no result within adversary.timeout = 1 s" in " ".join(result.stdout.split())


def test_a_run_that_a_full_disk_stopped_shows_what_it_found(fedspill, scenario, tmp_path, monkeypatch):
    row = {"round": 1, "threat_model": "server", "attack": "span", "defense": "none", "seed": 0, "target": "private"}
    found = {"status": "ok", "adaptive": False, "leakage": 0.9, "recovered": 9, "num_private": 10, "client": 0}

    def stop(plan, *others):
        ledger = Ledger(tmp_path / "journal")
        ledger.add("", leakage=[{**row, **found}])
        raise DiskError("'x' cannot be written (No space left on device): make room", ledger.tables())

    (tmp_path / "journal").mkdir()
    monkeypatch.setattr("simulator.run.engine.simulate", stop)
    result = fedspill("run", scenario("name: full\nmodel: {width: 8}\n"), "--out", tmp_path / "full")
    assert result.returncode == 1
    assert result.stderr == "fedspill: 'x' cannot be written (No space left on device): make room\n"
    assert "span" in result.stdout and "leakage.csv" not in result.stdout


def test_what_a_file_calls_its_arrays_moves_no_terminal(fedspill, scenario, tmp_path):
    np.savez(tmp_path / "own.npz", **{"\x1b]0;owned\x07\x1b[2Jx": np.zeros(3)})
    result = fedspill("check", scenario(f"name: s\ndata: {{name: npz, root: '{tmp_path / 'own.npz'}'}}\n"))
    assert result.returncode == 2 and "own.npz' has no x_train, y_train (it has x)" in result.stderr
    assert "\x1b" not in result.stderr and "\x07" not in result.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_the_system_says_against_a_file_is_one_line(fedspill, tmp_path, monkeypatch, number):
    def refuse(path, *others, **options):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("pathlib.Path.write_text", refuse)
    result = fedspill("init", tmp_path / "new.yaml")
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"fedspill: '{tmp_path}/new.yaml': {os.strerror(number)}")


def test_a_report_on_a_run_without_any_result_is_written(fedspill, late):
    result = fedspill("report", late)
    assert result.returncode == 0, result.stderr
    page = (late / "report.html").read_text()
    assert "out of time in 2 cases: no result within adversary.timeout = 1 s." in page and "No result" in page
