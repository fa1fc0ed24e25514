"""The command line as a user meets it: exit codes, one-line errors, nothing half-written."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


def test_the_installed_command_prints_one_line_and_exits_with_2(tmp_path):
    command = [Path(sys.executable).parent / "fedspill", "check", tmp_path / "none.yaml"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and result.stdout == ""
    missing = tmp_path / "none.yaml"
    assert result.stderr == f"fedspill: scenario '{missing}' does not exist: give the path of a YAML file\n"


PRESSED = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Press(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal, wherever tests run
sys.argv[:2], module = ["fedspill"], sys.argv[1]
sys.meta_path.insert(0, Press())
from fedspill import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "simulator.cli.runs", "torch", "numpy._core.multiarray"])
def test_ctrl_c_while_a_command_imports(tmp_path, module):
    """Some imports take an interruption for an error of their own."""
    (tmp_path / "s.yaml").write_text("name: s\n")
    command = [sys.executable, "-c", PRESSED, module, "check", tmp_path / "s.yaml"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (130, "")


@pytest.mark.parametrize(
    "words", [("report", "x" * 300), ("check", "x" * 300), ("init", "x" * 300), ("check", "s.yaml", "--json")]
)
def test_a_path_that_no_disk_takes_is_bad_input(tmp_path, words):
    (tmp_path / "s.yaml").write_text(f"name: s\ndata: {{name: mnist, root: {'x' * 300}}}\n")
    command = [Path(sys.executable).parent / "fedspill", *words]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 2 and "unexpected" not in result.stdout + result.stderr, result.stderr
    assert len(result.stderr.splitlines()) == 1


BAD = {
    "unknown key": ("name: s\nmodell: {}\n", "did you mean 'model'?"),
    "missing data folder": ("name: s\ndata: {name: mnist, root: /nowhere}\n", "data.root"),
    "no data folder": ("name: s\ndata: {name: mnist}\n", "data.root"),
    "unknown data set": ("name: s\ndata: {name: mnst}\n", "did you mean 'mnist'?"),
    "more images than there are": ("name: s\npartition: {images: 9000}\n", "partition.images"),
    "labels that do not fit": ("name: s\nmodel: {outputs: 5}\n", "model.outputs is 5"),
    "one output for ten classes": ("name: s\nmodel: {outputs: 1}\n", "model.outputs is 1"),
    "model without parameters": ("name: s\nmodel: {name: 'NETS:empty'}\n", "no parameters"),
    "factory that raises": ("name: s\nmodel: {name: 'NETS:broken'}\n", "no such net"),
    "factory that misuses torch": ("name: s\nmodel: {name: 'NETS:misused'}\n", "nets.py"),
    "model that names its outputs": ("name: s\nmodel: {name: 'NETS:Pair'}\n", "returns a dict without `logits`"),
    "checkpoint that is a folder": ("name: s\nmodel: {checkpoint: /}\n", "no safetensors file"),
    "network that hides the number of images": (
        "name: s\nmodel: {name: 'NETS:conv'}\n",
        ": grant it under adversary.knowledge",
    ),
    "mean of too many channels": ("name: s\nadversary: {knowledge: {pixel_mean: [1, 2, 3]}}\n", "1 channels"),
    "no image at all": ("name: s\nadversary: {knowledge: {num_private: 0}}\n", "num_private is 0"),
    "own strategy": ("name: s\nfederation: {strategy: 'mine:Avg'}\n", "put fedspill.Record around your own"),
    "strategy of trees": ("name: s\nfederation: {strategy: FedXgbBagging}\n", "unknown federation.strategy"),
    "an option under another name": (
        "name: s\nfederation: {strategy: {name: FedAvgM, options: {momentum: 0.9}}}\n",
        ", server_momentum)",
    ),
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
    "mod of no package": (
        "name: s\ndefenses: ['a.b:c']\n",
        "line 2: defenses.0 is 'a.b:c': defense 'a.b:c': No module named 'a'; run",
    ),
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


def test_check_estimates_attacks_that_need_knowledge(fedspill, scenario):
    attacks = "attacks: [gradient_matching, kkt, mean_image, random_public, best_public]"
    told = "knowledge: [learning_rate, steps, batch_size, public_images]"
    text = "name: s\nmodel: {width: 16}\nadversary: {%s, %s}\n"
    result = fedspill("check", scenario(text % (attacks, told)))
    assert result.returncode == 0 and "gradient_matching, kkt, mean_image" in result.stdout
    assert "or more" not in result.stdout  # those without iterations were run once
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
    assert result.stdout.rstrip().endswith("if none stops early")


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


def test_an_error_that_nobody_foresaw_is_one_line_and_its_stack_a_file(fedspill, scenario, monkeypatch):
    names = {}  # of no file, so that it is nobody's code but fedspill's
    exec('def broken(*args):\n    raise ZeroDivisionError("division\\nby [/zero]")', names)
    monkeypatch.setattr("simulator.cli.runs.load_scenario", names["broken"])
    monkeypatch.delenv("FEDSPILL_STACK", raising=False)
    result = fedspill("run", scenario("name: s\n"))
    (line,) = result.stderr.splitlines()
    said, _, file = line.rpartition(" ")
    assert result.returncode == 1
    assert said == (
        "fedspill: unexpected ZeroDivisionError: division by [/zero]; this is a fault of fedspill; the stack is in"
    )
    assert "in broken" in Path(file).read_text(encoding="utf-8")
    Path(file).unlink()
    monkeypatch.setenv("FEDSPILL_STACK", "1")
    with pytest.raises(ZeroDivisionError):
        fedspill("run", scenario("name: s\n"))


@pytest.mark.parametrize("code", ["import sys\nsys.exit(0)\n", "import sys\ndef make():\n    sys.exit(0)\n"])
def test_a_model_that_exits_does_not_pass_for_success(fedspill, scenario, tmp_path, code):
    (tmp_path / "leaving.py").write_text(code)
    result = fedspill("check", scenario(f"name: s\nmodel: {{name: '{tmp_path / 'leaving.py'}:make'}}\n"))
    assert result.returncode == 2 and "SystemExit: 0" in result.stderr, result.stderr


def test_what_a_file_calls_its_arrays_moves_no_terminal(fedspill, scenario, tmp_path):
    np.savez(tmp_path / "own.npz", **{"\x1b]0;owned\x07\x1b[2Jx": np.zeros(3)})
    result = fedspill("check", scenario(f"name: s\ndata: {{name: npz, root: '{tmp_path / 'own.npz'}'}}\n"))
    assert result.returncode == 2 and "own.npz' has no x_train, y_train (it has x)" in result.stderr
    assert "\x1b" not in result.stderr and "\x07" not in result.stderr
