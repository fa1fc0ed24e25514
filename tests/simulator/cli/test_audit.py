"""`fedspill audit`, and the commands about one pair of normalized inputs: what they print, write and exit with."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits

from tests.simulator.audit.recorded import digits, network, record

SCALE = ["--shape", "1,8,8", "--mean", "0.3", "--std", "0.4"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = record(tmp_path_factory.mktemp("cli") / "rec")
    np.savez(folder / "own.npz", images=digits(0)[0].numpy())
    everyone = load_digits().images[:, None].astype(np.float32) / 16
    np.savez(folder / "public.npz", images=everyone[500:700])
    np.savez(folder / "candidates.npz", images=np.concatenate([everyone[100:110], everyone[800:840]]))
    return folder


@pytest.fixture
def pair(recorded):
    """Options of the first client's update."""
    files = recorded / "checkpoints"
    update = ["--initial", files / "global_0000.safetensors", "--final", files / "client_00_round_0001.safetensors"]
    return ["--model", f"{recorded}/net.py:net", *SCALE, *update]


def test_an_audit_ends_in_a_verdict_a_page_and_an_exit_code(fedspill, recorded, tmp_path):
    arguments = [
        recorded,
        "--model",
        f"{recorded}/net.py:net",
        *SCALE,
        "--attack",
        "span",
        "--workers",
        1,
        "--client",
        0,
    ]
    result = fedspill("audit", *arguments, "--truth", recorded / "own.npz", "--out", tmp_path / "known", "--json")
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert said["verdict"]["level"] == "exposed" and "10 of its 10" in said["verdict"]["headline"]
    assert pd.read_csv(tmp_path / "known" / "leakage.csv").recovered_fraction.tolist() == [1.0]
    assert (tmp_path / "known" / "report.html").exists()
    files = ["--candidates", recorded / "candidates.npz", "--public", recorded / "public.npz"]
    result = fedspill("audit", *arguments, *files, "--out", tmp_path / "blind")
    assert result.returncode == 0 and "10 found" in result.stdout, result.stderr
    assert "10 of 50 candidates took part, at 1 false alarm in" in " ".join(result.stdout.split())
    assert "AUC:" not in result.stdout and "leakage:" not in result.stdout  # no column, so no word on it
    assert (tmp_path / "blind" / "figures" / "reconstructions_server_span.png").exists()
    limit = ["--truth", recorded / "own.npz", "--out", tmp_path / "known", "--fail-above", "leakage=0.2"]
    result = fedspill("audit", *arguments, *limit)
    assert result.returncode == 4 and "holds this audit already, finished" in result.stdout


def test_an_audit_of_what_is_none_is_refused_in_one_line(fedspill, recorded, tmp_path):
    for given, says in (
        ([tmp_path, "--model", f"{recorded}/net.py:net", *SCALE], "is no recording"),
        ([recorded, "--model", f"{recorded}/net.py:nothing", *SCALE], "has no function 'nothing'"),
        ([recorded, "--model", f"{recorded}/net.py:net", *SCALE, "--truth", recorded / "net.py"], "give an npz file"),
        ([recorded, "--model", "mpl", *SCALE], "unknown model 'mpl'; did you mean 'mlp'?"),
        ([recorded, "--model", f"{recorded}/net.py:net", "--shape", "8,8"], "channels,height,width"),
        ([recorded, "--model", f"{recorded}/net.py:net", "--shape", "1,8,8", "--mean", "0.3;0.4"], "--mean '0.3;0.4'"),
        ([recorded, "--model", f"{recorded}/net.py:net", *SCALE, "--attack", "spam"], "did you mean 'span'?"),
    ):
        result = fedspill("audit", *given, "--out", tmp_path / "out")
        assert result.returncode == 2 and says in result.stderr, result.stderr
        assert len(result.stderr.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


def test_what_is_no_run_is_said_with_what_to_do(fedspill, recorded, tmp_path):
    assert "does not exist: name the folder that a run" in fedspill("report", tmp_path / "nosuch").stderr
    assert "no audit.yaml; name the folder that a run" in fedspill("report", tmp_path).stderr
    assert "is a recording, no run directory: `fedspill audit` attacks it" in fedspill("report", recorded).stderr
    beside = recorded.with_name("rec-audit")
    beside.mkdir()
    (beside / "audit.yaml").write_text("")
    assert fedspill("report", recorded).stderr.endswith(f"its audit is {str(beside)!r}\n")


def test_an_attack_on_a_pair_is_an_audit_of_it(fedspill, recorded, pair, tmp_path):
    out = tmp_path / "out"
    result = fedspill("attack", *pair, "--attack", "span", "--truth", recorded / "own.npz", "--public",
                      recorded / "public.npz", "--out", out)  # fmt: skip
    assert result.returncode == 0 and "EXPOSED" in result.stdout, result.stderr
    row = pd.read_csv(out / "leakage.csv").iloc[0]
    assert row.recovered_fraction == 1 and row.membership_auc == 1 and row.floor_leakage < 0.5
    found = np.load(out / "reconstructions.npz")["images"]
    assert found.shape == (10, 1, 8, 8) and found.min() >= 0 and found.max() <= 1  # pixels
    assert (out / "report.html").exists() and (out / "figures" / "reconstructions_server_span.png").exists()


@pytest.mark.parametrize("believed", ["6", "10"])
def test_a_belief_does_not_size_the_truth(fedspill, recorded, pair, tmp_path, believed):
    """Reviewers' case: told 6, all of 12 read "6 of its 6"."""
    options = ["--know", f"num_private={believed}", "--truth", recorded / "own.npz", "--out", tmp_path / "out"]
    result = fedspill("attack", *pair, "--attack", "span", *options)
    row = pd.read_csv(tmp_path / "out" / "leakage.csv").iloc[0]
    assert row.num_private == 10 and row.recovered_fraction == row.recovered / 10, result.stderr


def test_images_of_which_nobody_took_part_are_candidates_which_is_said_first(fedspill, recorded, pair, tmp_path):
    options = ["--truth", recorded / "public.npz", "--out", tmp_path / "out"]
    result = fedspill("attack", *pair, "--attack", "span", *options)
    said = " ".join(result.stdout.split())
    assert "EXPOSED: The images of --truth are candidates, and no attack is scored on them." in said, result.stderr
    assert "200 different ones are given, whose is not known, and this row has 10" in said
    assert np.isnan(pd.read_csv(tmp_path / "out" / "leakage.csv").recovered[0])


def test_two_networks_that_have_nothing_to_do_with_each_other_end_well(fedspill, recorded, tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        state = network().state_dict()
        generator = torch.Generator().manual_seed(seed)
        made = {key: torch.randn(value.shape, generator=generator) / 10 for key, value in state.items()}
        save_file(made, tmp_path / f"{name}.safetensors")
    result = fedspill("attack", "--model", f"{recorded}/net.py:net", *SCALE, "--initial", tmp_path / "a.safetensors",
                      "--final", tmp_path / "b.safetensors", "--attack", "span", "--out", tmp_path / "out")  # fmt: skip
    assert result.returncode == 0 and "0 images" in result.stdout, result.stderr
    assert (tmp_path / "out" / "report.html").exists()


def test_membership_is_said_with_a_threshold_and_counts(fedspill, recorded, pair, tmp_path):
    files = ["--candidates", recorded / "candidates.npz", "--public", recorded / "public.npz"]
    result = fedspill("member", *pair, *files, "--out", tmp_path / "out")
    said = " ".join(result.stdout.split())
    assert result.returncode == 0 and "10 of 50 candidates are told to be members" in said, result.stderr
    assert "false-positive rate of at most 1 %" in said and "another scale" not in said
    plain = [part for part in pair if part not in ("--mean", "0.3", "--std", "0.4")]
    result = fedspill("member", *plain, *files, "--out", tmp_path / "plain")
    assert "black is -0.75 in the update and 0 in the images" in " ".join(result.stdout.split())


def test_a_diagnosis_names_the_attack_to_try(fedspill, recorded, pair, tmp_path):
    result = fedspill("diagnose", *pair, "--images", recorded / "public.npz", "--out", tmp_path / "out")
    assert result.returncode == 0 and "Try `span` first." in result.stdout, result.stderr
    said = " ".join(result.stdout.split())
    assert "so 10 images span it" in said and "None of the 200 images is among those that the update was" in said
    assert "As an attacker can measure it, without the private images: 32 images" in said and "version" not in said
    result = fedspill("diagnose", *pair, "--images", recorded / "candidates.npz", "--out", tmp_path / "out", "--json")
    assert json.loads((tmp_path / "out" / "diagnose.json").read_text())["own_images"] == 10
    assert json.loads(result.stdout)["said"][0].startswith("10 of the 50 images are among those")
    result = fedspill("diagnose", *pair, "--images", recorded / "own.npz", "--out", tmp_path / "out")
    assert "All 10 images are among those" in result.stdout
