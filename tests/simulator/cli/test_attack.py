"""`fedspill attack` on two checkpoints and on runs: what it takes, refuses and writes."""

import html
import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from attacks import Knowledge
from simulator.audit.plan import looks_swapped
from simulator.results.keys import ObservationKey, RecordedObservation
from simulator.results.storage import CellStore
from simulator.run.plan import make_plan
from simulator.run.run_folder import claimed
from simulator.scenario.scenario import load_scenario


def test_attack_on_two_checkpoints(fedspill, pair, tmp_path):
    options = ["--attack", "ntk", "--option", "iterations=50", "--know", "pixel_mean=0.5", "--out", tmp_path / "out"]
    result = fedspill("attack", *pair, *options)
    assert result.returncode == 0, result.stderr
    arrays = np.load(tmp_path / "out" / "reconstructions.npz")
    assert arrays["images"].shape == (6, 1, 8, 8) and arrays["residual"].shape == (6,)
    assert (np.diff(arrays["residual"]) >= 0).all()  # best first
    assert arrays["images"].min() < -0.05  # the model's own input space, not [0, 1]
    facts = json.loads((tmp_path / "out" / "facts.json").read_text())
    assert {"attack", "num_inferred", "knowledge", "seconds", "warnings"} <= set(facts)
    assert facts["num_inferred"] == 3 and facts["knowledge"] == {"pixel_mean": [0.5]}
    assert pd.read_csv(tmp_path / "out" / "leakage.csv").num_inferred_guessed.tolist() == [0]


def test_the_number_of_images_after_local_adam_is_called_a_guess(fedspill, pair, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    net.load_state_dict(load_file(tmp_path / "a.safetensors"))
    loss = nn.functional.cross_entropy(net(torch.rand(6, 1, 8, 8)), torch.arange(6))
    optimizer = torch.optim.Adam(net.parameters())
    loss.backward()
    optimizer.step()
    save_file(net.state_dict(), tmp_path / "b.safetensors")
    result = fedspill("attack", *pair, "--attack", "span", "--out", tmp_path / "out")
    assert ", 18 inferred (a guess)" in result.stdout, result.stdout + result.stderr
    assert pd.read_csv(tmp_path / "out" / "leakage.csv").num_inferred_guessed.tolist() == [1]


def test_checkpoints_of_any_kind_are_attacked_alike(fedspill, pair, tmp_path):
    """As a training script of PyTorch and as Flower's lists of arrays have them."""
    sent, returned = (load_file(tmp_path / f"{name}.safetensors") for name in "ab")
    torch.save({"epoch": 1, "model_state_dict": {f"module.{k}": v for k, v in sent.items()}}, tmp_path / "a.pt")
    np.savez(tmp_path / "b.npz", *(returned[name].numpy() for name in ("1.weight", "1.bias", "3.weight", "3.bias")))
    found = []
    for initial, final in (("a.safetensors", "b.safetensors"), ("a.pt", "b.npz")):
        given = [*pair, "--initial", tmp_path / initial, "--final", tmp_path / final]
        options = ["--attack", "ntk", "--option", "iterations=5", "--out", tmp_path / f"of_{final}"]
        result = fedspill("attack", *given, *options)
        assert result.returncode == 0, result.stderr
        found.append(np.load(tmp_path / f"of_{final}" / "reconstructions.npz")["images"])
    assert np.array_equal(*found)


MINE = """from dataclasses import dataclass
from typing import ClassVar
from attacks.base import Attack
@dataclass(frozen=True)
class Mine(Attack):
    name: ClassVar[str] = "my_own"
    def reconstruct(self, observation, knowledge, generator, progress):
        return bais
"""


def test_an_exception_of_the_user_s_network_is_no_fault_of_fedspill(fedspill, pair, tmp_path):
    trouble = """
from torch import nn
class Own(nn.Sequential):
    def forward(self, images):
        if images.requires_grad:
            raise ValueError("no gradients, please")
        return super().forward(images)
def own():
    import nets
    return Own(*nets.make())
"""
    (tmp_path / "own.py").write_text(trouble)
    given = (*pair, "--model", f"{tmp_path / 'own.py'}:own")
    known = ("--know", "learning_rate=0.1", "--know", "steps=1")
    result = fedspill("attack", *given, *known, "--attack", "gradient_matching", "--out", tmp_path)
    assert result.returncode == 1 and "fault of fedspill" not in result.stderr
    place = f"in or below {tmp_path / 'own.py'}:6, which is no code of fedspill's;"
    assert f"ValueError: no gradients, please, {place}" in result.stderr


def test_an_exception_of_the_user_s_attack_names_its_line(fedspill, pair, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    result = fedspill("attack", *pair, "--attack", f"{tmp_path / 'mine.py'}:Mine", "--out", tmp_path / "out")
    assert result.returncode == 1 and "fault of fedspill" not in result.stderr
    place = f"in or below {tmp_path / 'mine.py'}:8, which is no code of fedspill's;"
    assert f"NameError: name 'bais' is not defined, {place}" in result.stderr


def test_an_attack_that_breaks_has_a_row_and_another_may_take_its_place(fedspill, pair, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    options = [*pair, "--out", tmp_path / "out"]
    assert fedspill("attack", *options, "--attack", f"{tmp_path / 'mine.py'}:Mine").returncode == 1
    row = pd.read_csv(tmp_path / "out" / "leakage.csv").iloc[0]
    assert row.status == "failed" and f"NameError: name 'bais' is not defined, in or below {tmp_path}" in row.detail
    assert row.detail in html.unescape((tmp_path / "out" / "report.html").read_text())
    result = fedspill("attack", *options, "--attack", "mean_image")
    assert result.returncode == 0, result.stderr
    assert list(pd.read_csv(tmp_path / "out" / "leakage.csv").status) == ["ok"]


def test_an_attack_ends_at_its_time_limit(fedspill, pair, tmp_path):
    long = ["--attack", "ntk", "--option", "iterations=10000000", "--option", "patience=0", "--timeout", "1"]
    result = fedspill("attack", *pair, *long, "--out", tmp_path / "out")
    assert result.returncode == 1 and "no result within --timeout = 1 processor seconds" in result.stderr
    assert list(pd.read_csv(tmp_path / "out" / "leakage.csv").status) == ["timeout"]


def test_tables_and_pictures_call_the_user_s_attack_by_its_name(fedspill, pair, tmp_path):
    grey = "return Reconstruction(torch.zeros(1, 1, 8, 8), torch.ones(1))"
    returned = f"import torch; from attacks import Reconstruction; {grey}"
    (tmp_path / "mine.py").write_text(MINE.replace("return bais", returned))
    result = fedspill("attack", *pair, "--attack", f"{tmp_path / 'mine.py'}:Mine", "--out", tmp_path / "out")
    assert result.returncode == 0 and "could not be drawn" not in result.stderr, result.stderr
    assert "my_own" in (tmp_path / "out" / "leakage.csv").read_text()
    assert "mine.py:Mine" not in (tmp_path / "out" / "leakage.csv").read_text()
    again = ("attack", "--run", tmp_path / "out", "--client", "0", "--attack", f"{tmp_path / 'mine.py'}:Mine")
    result = fedspill(*again, "--out", tmp_path / "again")
    assert result.returncode == 0 and "my_own" in (tmp_path / "again" / "leakage.csv").read_text(), result.stderr


def test_what_is_assumed_is_said_on_the_screen_and_a_number_that_is_missing_is_null(fedspill, pair, tmp_path):
    result = fedspill("attack", *pair, "--attack", "mean_image", "--out", tmp_path / "out")
    assumed = "pixel_mean is unknown and no pixel tells it: the attack assumed 0.5"
    assert result.returncode == 0 and f"warning: {assumed}" in " ".join(result.stdout.split()), result.stderr
    assert np.load(tmp_path / "out" / "reconstructions.npz")["held"].shape == (0, 1, 8, 8)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    facts = json.loads((tmp_path / "out" / "facts.json").read_text(), parse_constant=refuse)
    assert facts["relative_residual"] is None  # the mean image explains no update


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"--attack": "nkt"}, "did you mean 'ntk'?"),
        ({"--know": "labls=1"}, "did you mean 'labels'?"),
        ({"--shape": "8,8"}, "channels,height,width"),
        ({"--shape": "8,8,1"}, "is height,width,channels: write channels,height,width, --shape 1,8,8"),
        ({"--initial": "AFTER", "--final": "BEFORE"}, "looks less trained than --initial"),
        ({"--initial": "nowhere.safetensors"}, "does not exist"),
        ({"--model": "NETS:three"}, "'3.weight' of the checkpoint sent has shape (10, 32), the model wants (3, 32)"),
        ({"--model": "NETS:three", "--initial": "THREE"}, "'3.weight' of the checkpoint returned has shape"),
        ({"--model": "NETS:number"}, "outputs of shape (): a row of class scores is needed: of one number an image"),
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
        ({"--attack": None}, "which attack? Give --attack "),
        ({"--attack": None, "--out": None}, "which attack? Give --attack "),
        ({"--attack": "span", "--attack ": "ntk"}, "--attack span and ntk: one attack at a time; `fedspill audit`"),
        ({"--out": None}, "where to? Give --out DIR"),
        ({"--shape": "1,5,5"}, "cannot take images of shape (1, 5, 5)"),
        ({"--final": "."}, "'.' is no safetensors file"),
        ({"--final": "DIVERGED"}, "'1.weight' of the checkpoint returned holds NaN or Inf"),
    ],
)
def test_bad_attack_arguments(fedspill, pair, tmp_path, change, says):
    state = load_file(tmp_path / "b.safetensors")
    save_file({**state, "3.weight": torch.zeros(3, 32), "3.bias": torch.zeros(3)}, tmp_path / "three.safetensors")
    state["1.weight"][0, 0] = torch.nan
    save_file(state, tmp_path / "diverged.safetensors")
    places = {"NETS": tmp_path / "nets.py", "DIVERGED": tmp_path / "diverged.safetensors"}
    places |= {"BEFORE": tmp_path / "a.safetensors", "AFTER": tmp_path / "b.safetensors"}
    places |= {"THREE": tmp_path / "three.safetensors"}
    arguments = dict(zip(pair[::2], pair[1::2], strict=True)) | {"--attack": "ntk", "--out": tmp_path / "out"} | change
    flat = [str(part) for flag, value in arguments.items() if value is not None for part in (flag.strip(), value)]
    for name, place in places.items():
        flat = [part.replace(name, str(place)) for part in flat]
    result = fedspill("attack", *flat)
    assert result.returncode == 2 and says in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["attack", "member", "diagnose", "run"])
def test_where_the_result_cannot_be_written_nothing_is_computed(
    fedspill, scenario, pair, tmp_path, monkeypatch, command
):
    def compute(*args, **options):
        raise AssertionError("computed")

    for work in ("evaluation.attack_run.AttackRun.run", "tools.diagnosis.measure_regime", "run.engine.start_ray"):
        monkeypatch.setattr(f"simulator.{work}", compute)
    monkeypatch.setattr("attacks.membership.MembershipTest.of", compute)
    np.savez(tmp_path / "some.npz", images=np.zeros((2, 1, 8, 8), np.float32))
    arguments = {
        "attack": [*pair, "--attack", "ntk"],
        "member": [*pair, "--candidates", tmp_path / "some.npz"],
        "diagnose": [*pair, "--images", tmp_path / "some.npz"],
        "run": [scenario("name: s\n")],
    }
    result = fedspill(command, *arguments[command], "--out", tmp_path / "nets.py" / "out")
    assert result.returncode == 2 and "nets.py' is a file: choose another --out" in result.stderr, result.stderr


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
        recorded = RecordedObservation.of(ObservationKey(1, 0, "server"), (names,), (0,), (0,))
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


def test_batches_that_were_counted_tell_which_checkpoint_comes_first():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(torch.rand(5, 4))
    assert looks_swapped(model, model.state_dict(), before) and not looks_swapped(model, before, model.state_dict())
