"""`fedspill member` and `fedspill diagnose` on two checkpoints."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.simulator.cli.nets import FACTORY


def test_membership_of_two_checkpoints(fedspill, pair, tmp_path):
    torch.manual_seed(0)
    scope = {}
    exec(FACTORY, scope)
    scope["make"]()
    private = torch.rand(3, 1, 8, 8) - 0.5  # what the pair was trained on
    np.savez(tmp_path / "some.npz", images=torch.cat([torch.rand(5, 1, 8, 8) - 0.5, private]).numpy())
    result = fedspill("member", *pair, "--candidates", tmp_path / "some.npz", "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    table = np.genfromtxt(tmp_path / "out" / "membership.csv", delimiter=",", names=True)
    assert table.dtype.names == ("index", "residual", "score", "member") and list(table["index"]) == list(range(8))
    assert table["score"][5:].min() > table["score"][:5].max()


def test_copies_count_once_and_no_candidate_calibrates(fedspill, pair, tmp_path):
    images = np.random.default_rng(1).random((20, 1, 8, 8)).astype(np.float32) - 0.5
    np.savez(tmp_path / "some.npz", images=images[[0, 1, 1, 2]])
    np.savez(tmp_path / "public.npz", images=images[[2, 3, 3, *range(4, 13)]])
    given = ("--candidates", tmp_path / "some.npz", "--public", tmp_path / "public.npz", "--out", tmp_path / "out")
    result = fedspill("member", *pair, *given)
    assert result.returncode == 0, result.stderr
    assert "2 of 12 public images are left out: 1 among the candidates and 1 copies" in result.stdout + result.stderr
    assert "of 3 candidates are told" in result.stdout and "of 10 images that are no members" in result.stdout
    assert "4 candidates (3 different), " in result.stdout


def test_pictures_and_bytes_are_candidates_as_they_are_in_an_audit(fedspill, pair, tmp_path):
    pixels = (255 * np.random.default_rng(0).random((4, 8, 8))).astype(np.uint8)
    np.savez(tmp_path / "bytes.npz", images=pixels[:, None])
    (tmp_path / "pictures").mkdir()
    for number, one in enumerate(pixels):
        Image.fromarray(one).save(tmp_path / "pictures" / f"{number}.png")
    tables = []
    for given in ("bytes.npz", "pictures"):
        arguments = ["--model", f"{tmp_path / 'nets.py'}:make", *pair, "--mean", "0.5", "--out", tmp_path / "out"]
        result = fedspill("member", *arguments, "--candidates", tmp_path / given)
        assert result.returncode == 0, result.stderr
        tables.append((tmp_path / "out" / "membership.csv").read_text())
    assert tables[0] == tables[1] and len(tables[0].splitlines()) == 5


def test_grey_pictures_saved_in_colour_are_grey_candidates(fedspill, pair, tmp_path):
    """A grey JPEG decodes to the same pixels from one channel and from three."""
    pixels = (255 * np.random.default_rng(0).random((4, 8, 8))).astype(np.uint8)
    tables = []
    for mode in ("L", "RGB"):
        (tmp_path / mode).mkdir()
        for number, one in enumerate(pixels):
            Image.fromarray(one).convert(mode).save(tmp_path / mode / f"{number}.jpg")
        given = ("--mean", "0.5", "--candidates", tmp_path / mode, "--out", tmp_path / "out")
        result = fedspill("member", *pair, *given)
        assert result.returncode == 0, result.stderr
        tables.append((tmp_path / "out" / "membership.csv").read_text())
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        (None, "does not exist"),
        ({"pictures": np.zeros((2, 1, 8, 8))}, "no array `images`"),
        ({"images": np.zeros((2, 1, 8, 8), np.int16)}, "has to be uint8, or floats"),
        ({"images": np.zeros((2, 64))}, "number, channels, height, width"),
        ({"images": np.full((2, 1, 8, 8), np.nan)}, "not finite"),
        ({"images": np.zeros((0, 1, 8, 8))}, "`images` is float64 (0, 1, 8, 8)"),
        (
            {"images": np.zeros((2, 1, 28, 28))},
            "(1, 28, 28), the network takes (1, 8, 8): give",
        ),
    ],
)
def test_bad_candidates(fedspill, pair, tmp_path, arrays, says):
    file = tmp_path / "some.npz"
    if arrays is not None:
        np.savez(file, **arrays)
    result = fedspill("member", *pair, "--candidates", file, "--out", tmp_path / "out")
    assert result.returncode == 2 and says in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


def test_diagnosis_of_two_checkpoints(fedspill, pair, tmp_path):
    np.savez(tmp_path / "public.npz", images=np.random.default_rng(0).random((5, 1, 8, 8), np.float32) - 0.5)
    result = fedspill("diagnose", *pair, "--out", tmp_path / "out", "--images", tmp_path / "public.npz")
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
    arguments = [*pair, "--model", f"{tmp_path / 'nets.py'}:bare", "--images", tmp_path / "public.npz"]
    result = fedspill("diagnose", *arguments, "--out", tmp_path / "out")
    assert result.returncode == 2 and "no layer with a weight" in result.stderr, result.stderr


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ([], "--images PATH"),
        (["--evaluator"], "give --run"),
        (["--images", "nowhere.npz"], "images 'nowhere.npz' does not exist"),
    ],
)
def test_a_diagnosis_needs_images(fedspill, pair, tmp_path, extra, says):
    result = fedspill("diagnose", *pair, "--out", tmp_path / "out", *extra)
    assert result.returncode == 2 and says in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and not (tmp_path / "out").exists()
