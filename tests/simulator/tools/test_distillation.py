"""`fedspill distill` as a user meets it, on the digits that come with scikit-learn."""

import json
import sys

import numpy as np
import pytest

from simulator.cli.main import main


@pytest.fixture
def fedspill(monkeypatch, capsys):
    def call(*args):
        monkeypatch.setattr(sys, "argv", ["fedspill", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, capsys.readouterr()

    return call


QUICK = ("--train", 40, "--size", 6, "--set", "model.width=64", "--set", "data.test=200", "--iterations", 60)


@pytest.mark.parametrize(("method", "outputs"), [("kip", 1), ("rkip", 10), ("rkip_finite", 10)])
def test_what_it_writes(fedspill, tmp_path, method, outputs):
    task = () if outputs > 1 else ("--set", "data.task=odd_even", "--kernel", "authors")
    shape = "ntk" if method == "kip" else "standard"
    code, said = fedspill("distill", "--method", method, *QUICK, *task, "--out", tmp_path)
    assert code == 0 and "all images" in said.out
    facts = json.loads((tmp_path / "distill.json").read_text())
    for key in ("accuracy", "accuracy_full", "accuracy_random"):
        assert set(facts[key]) == {"infinite_width", "standard", "linearized"}
        # 200 test images: every accuracy is a multiple of 1/200
        assert all(0 <= value <= 1 and round(200 * value, 6) % 1 == 0 for value in facts[key].values())
        assert facts["standard_training"][key]["mse"] < 1e-3
    assert facts["accuracy_full"]["standard"] > (0.7 if outputs == 1 else 0.5)
    assert facts["settings"]["kernel"] == {
        "depth": 2, "width": None, "bias": method != "kip", "weight_std": 1.0, "parameterization": shape
    }  # fmt: skip
    assert facts["settings"]["iterations"] == 60 and facts["size"] == 6 and facts["train"] == 40
    with np.load(tmp_path / "distilled.npz") as arrays:
        assert arrays["images"].shape == (6, 1, 8, 8) and arrays["targets"].shape == (6, outputs)
        assert arrays["pixel_mean"].shape == (1,)
    assert (tmp_path / "distilled.png").stat().st_size > 1000


BAD = {
    "unknown method": (("--method", "rkp"), "did you mean 'rkip'?"),
    "more than the data": (("--method", "kip", "--size", 41), "--size is 41, it has to lie between 1 and --train, 40"),
    "none": (("--method", "kip", "--size", 0), "--size is 0"),
    "no images": (("--method", "kip", "--train", 0), "partition.images is 0"),
    "too many images": (("--method", "kip", "--train", 90_000), "lower partition.images"),
    "unknown kernel": (("--method", "kip", "--kernel", "author"), "did you mean 'authors'?"),
    "no iterations": (("--method", "kip", "--iterations", 0), "iterations is 0"),
    "another section": (("--method", "kip", "--set", "training.epochs=3"), "data.KEY and model.KEY only"),
    "unknown key": (("--method", "kip", "--set", "data.nam=mnist"), "did you mean 'name'?"),
    "another network": (("--method", "kip", "--set", "model.name=lenet5"), "kernel of ReLU MLPs"),
    "missing data": (("--method", "kip", "--set", "data.name=mnist"), "data.root"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(fedspill, tmp_path, name):
    arguments, says = BAD[name]
    code, said = fedspill("distill", *QUICK, *arguments, "--out", tmp_path / "out")
    assert code == 2 and says in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
