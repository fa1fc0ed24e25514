"""An audit of a recording made by hand: what it finds, what it scores against, and how it ends."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import ray
import torch

from attacks import InputError
from attacks.interface.plugins import VARIABLE
from simulator.audit.run_audit import audit
from simulator.reports.page.pictures import facts_of
from simulator.results.keys import ALL
from simulator.run.cluster import stop_ray
from simulator.rundir.run import Run
from tests.simulator.audit.recorded import SHAPE, digits, network, record

SPAN = {"mean": 0.3, "std": 0.4, "attacks": ["span"], "workers": 1}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Three clients; the first recorded one has the digits of client 2, and so on: node ids are random."""
    return record(tmp_path_factory.mktemp("federation") / "rec", clients=(2, 0, 1))


@pytest.fixture(scope="module")
def pooled(recorded):
    path = recorded / "all.npz"
    np.savez(path, images=torch.cat([digits(client)[0] for client in range(3)]).numpy())
    return path


@pytest.fixture(scope="module")
def blind(recorded):
    return audited(recorded, "blind")


def audited(recorded, name, **options):
    model = options.pop("model", f"{recorded}/net.py:net")
    return audit(recorded, model, SHAPE, out=recorded / name, page=False, **{**SPAN, **options})


def write_truth(folder, clients=(0, 1, 2)):
    folder.mkdir(parents=True)
    for client in clients:
        np.savez(folder / f"client_{client:02d}.npz", images=digits(client)[0].numpy())
    return folder


def test_without_truth_there_is_what_the_attacker_knows_and_no_score(blind):
    rows = blind.leakage
    assert (rows.status == "ok").all() and rows.num_private.tolist()[:3] == [10, 10, 10]
    assert rows.num_reconstructed.tolist() == rows.num_inferred.tolist() == [10, 10, 10, 30]
    assert rows.num_vouched.tolist() == [10, 10, 10, 30]
    assert rows.client.tolist() == [0, 1, 2, ALL] and (rows.relative_residual < 0.1).all()
    scores = ["recovered", "recovered_fraction", "leakage", "psnr_mean", "membership_auc", "floor_leakage"]
    assert rows[scores].isna().all(axis=None) and blind.samples.empty
    assert rows.detail.str.contains("no scores").all()


def test_what_is_granted_is_what_the_server_sees_and_the_normalization(blind, recorded):
    told = json.loads(blind.leakage.knowledge[0])
    assert told == {"num_private": 10, "pixel_mean": [0.3], "pixel_std": [0.4], "pixel_range": [0.0, 1.0]}
    assert json.loads(blind.leakage.knowledge[3])["num_private"] == 30  # what the three report, added up
    less = audited(recorded, "less", know={"num_private": False, "steps": 8}, clients=[0])
    assert json.loads(less.leakage.knowledge[0]).keys() == {"steps", "pixel_mean", "pixel_std", "pixel_range"}


def test_the_images_on_disk_are_pixels_whatever_the_normalization(blind):
    with np.load(blind.path / "reconstructions" / "round_0001_client_00_server_span.npz") as arrays:
        found = torch.from_numpy(arrays["images"])
    private = digits(2)[0]
    assert torch.cdist(private.flatten(1), found.flatten(1)).min(1).values.max() < 0.05


def test_pooled_images_are_the_private_set_of_all_clients_together_and_of_no_single_one(recorded, pooled):
    rows = audited(recorded, "pooled", truth=pooled).leakage.set_index("client")
    assert rows.recovered_fraction[ALL] == 1 and rows.num_private[ALL] == 30
    asked = facts_of(Run(recorded / "pooled").description)["What was done"]["clients and their truth"]
    assert asked.startswith("all clients: truth from all.npz (30 images); 3 clients are compared with one truth")
    single = rows.loc[[0, 1, 2]]
    assert single[["recovered", "leakage", "recognized", "membership_auc"]].isna().all(axis=None)
    assert single.detail.str.startswith(
        "the images of --truth are candidates, and no attack is scored on them: 30 different ones are given, whose is "
        "not known, and this row has 10"
    ).all()


def test_outsiders_are_not_recovered_however_alike_they_are(recorded):
    """Reviewers' case: more images than the client has, none of which took part."""
    np.savez(recorded / "strangers.npz", images=digits(0, count=100)[0].numpy()[50:])
    row = audited(recorded, "strangers", truth=recorded / "strangers.npz", clients=[0]).leakage.iloc[0]
    assert pd.isna(row.recovered) and "50 different ones are given" in row.detail
    assert row.num_reconstructed == 10  # what the attack has is there all the same


def test_copies_do_not_make_a_private_set_larger_than_the_client_says(recorded):
    images = digits(2)[0].numpy()
    np.savez(recorded / "copies.npz", images=np.concatenate([images, images[:5]]))
    row = audited(recorded, "copies", truth=recorded / "copies.npz", clients=[0]).leakage.iloc[0]
    assert (row.num_private, row.recovered, row.recovered_fraction) == (15, 15, 1.0)


def test_classes_are_read_from_the_files_and_reach_the_scores_alone(recorded):
    folder = recorded / "labelled"
    folder.mkdir()
    for client in range(3):
        images, labels = digits(client)
        np.savez(folder / f"client_{client:02d}.npz", images=images.numpy(), labels=labels.numpy())
    rows = audited(recorded, "labels", truth=folder, clients=[0, 1, 2]).leakage
    assert (
        rows.class_floor_leakage.between(0, 0.9).all() and not rows.detail.str.contains("classes are not known").any()
    )
    assert "labels" not in json.loads(rows.knowledge[0])
    np.savez(folder / "client_00.npz", images=digits(0)[0].numpy(), labels=np.zeros(3))
    with pytest.raises(InputError, match="give an integer for each of 10 images"):
        audited(recorded, "labels-bad", truth=folder)


def test_without_mean_and_deviation_brightness_and_contrast_are_wrong_and_detail_says_so(recorded):
    np.savez(recorded / "own.npz", images=digits(2)[0].numpy())
    row = audited(recorded, "unsaid", truth=recorded / "own.npz", mean=(), std=(), clients=[0]).leakage.iloc[0]
    assert row.recovered < row.recovered_affine == 10 and "give --mean and --std" in row.detail


def test_files_of_clients_are_told_by_the_updates(recorded):
    run = audited(recorded, "files", truth=write_truth(recorded / "truth"))
    single = run.leakage[run.leakage.client != ALL]
    assert (single.recovered_fraction == 1).all() and (single.membership_auc == 1).all()
    assert (single.floor_leakage < 0.5).all() and (single.null_recovered_fraction == 0).all()
    first = run.samples[run.samples.client == 0].image.tolist()
    assert first == list(range(20, 30))  # client 0 of the recording has the digits of client_02.npz
    assert run.private_images(run.store().observation_keys()[0]).shape == (30, 1, 8, 8)
    with pytest.raises(InputError, match="shows the images of 'client_02'; leave --owner out"):
        audited(recorded, "mistaken", truth=recorded / "truth", owners={"100": "client_00"})
    assert not (recorded / "mistaken").exists()


def test_a_client_that_said_it_had_no_images_costs_nobody_else_a_score(recorded, tmp_path):
    """It sends back what it was sent, and no file of the truth is its own."""
    rec = shutil.copytree(recorded, tmp_path / "rec", ignore=shutil.ignore_patterns("[!crg]*"))
    shutil.copy(
        rec / "checkpoints" / "global_0000.safetensors", rec / "checkpoints" / "client_02_round_0001.safetensors"
    )
    contents = json.loads((rec / "recording.json").read_text())
    contents["rounds"][0]["images"]["2"] = 0
    (rec / "recording.json").write_text(json.dumps(contents))
    run = audited(rec, "none", model=f"{recorded}/net.py:net", truth=write_truth(tmp_path / "truth", clients=(0, 2)))
    rows = run.leakage.set_index("client")
    assert rows.recovered_fraction[[0, 1]].tolist() == [1, 1] and rows.num_private[ALL] == 20
    assert rows.status[2] == "failed" and "is zero" in rows.detail[2]
    assert "client 2: it said that it had no images" in str(facts_of(run.description))
    both = audited(rec, "both", model=f"{recorded}/net.py:net", attacks=["mean_image"], truth=tmp_path / "truth")
    assert "the client said that it had no images: no scores" in both.leakage.detail[2]


def test_a_finished_audit_is_read_and_an_interrupted_one_goes_on(recorded, blind, monkeypatch):
    journal = (blind.path / "ledger.jsonl").read_text().splitlines()
    (blind.path / "ledger.jsonl").write_text("\n".join(journal[:4]) + "\n")  # two rows, and that they are done
    done = []
    monkeypatch.setattr("simulator.audit.run_audit.run_job", lambda job: done.append(job.name) or run_of(job))
    from simulator.evaluation.job import run_job as run_of

    again = audited(recorded, "blind")
    assert done == ["run_round_0001_client_02_server_span", "run_round_0001_client_all_observer_span"]
    pd.testing.assert_frame_equal(again.leakage.drop(columns="seconds"), blind.leakage.drop(columns="seconds"))
    audited(recorded, "blind")
    assert len(done) == 2


def test_a_finished_audit_answers_from_its_tables_without_its_network(recorded, monkeypatch):
    first = audited(recorded, "twice", clients=[0])
    monkeypatch.setattr("simulator.audit.plan.construct", lambda *given, **options: pytest.fail("it made the network"))
    again = audited(recorded, "twice", clients=[0])
    pd.testing.assert_frame_equal(again.leakage, first.leakage)


def test_what_is_wrong_with_the_options_comes_before_a_folder_that_is_taken(recorded):
    audited(recorded, "taken", clients=[0])
    for others, says in (
        ({"clients": [1]}, "already holds another audit"),
        ({"shape": (1, 8, 9)}, "cannot take images of shape"),
        (
            {"model": "torch.nn:Identity"},
            r"row of class scores.*for rows of a table begin `forward` with x.flatten\(1\)",
        ),
    ):
        given = {"model": f"{recorded}/net.py:net", "shape": SHAPE, "clients": [0], **SPAN, **others}
        with pytest.raises(InputError, match=says):
            audit(recorded, out=recorded / "taken", page=False, **given)


def test_from_python_there_is_a_page_too(recorded):
    run = audit(recorded, f"{recorded}/net.py:net", SHAPE, out=recorded / "page", clients=[0], **SPAN)
    assert run.page == recorded / "page" / "report.html" and "<html" in run.page.read_text()
    assert "returned" in run.show().title
    made = run.page.stat().st_mtime_ns
    again = audit(recorded, f"{recorded}/net.py:net", SHAPE, out=recorded / "page", clients=[0], **SPAN)
    assert again.page.stat().st_mtime_ns == made  # of the same tables
    with pytest.raises(InputError, match=r"has no report.html: `fedspill report"):
        _ = audited(recorded, "twice", clients=[0]).page


def test_an_attack_that_cannot_work_here_is_a_row_that_says_why(recorded):
    rows = audited(recorded, "refused", attacks=["gradient_matching"], clients=[0]).leakage
    assert rows.status.tolist() == ["skipped"]
    assert rows.detail[0].endswith("(it simulates local training): say --know learning_rate=VALUE --know steps=VALUE")


def test_a_check_that_raises_is_a_row_and_the_other_attacks_go_on(recorded):
    (recorded / "broken.py").write_text(BROKEN)
    rows = audited(recorded, "broken", attacks=[f"{recorded}/broken.py:Broken", "span"], clients=[0]).leakage
    assert dict(zip(rows.attack, rows.status, strict=True)) == {"broken": "failed", "span": "ok"}
    assert rows.detail[rows.attack == "broken"].str.contains("NameError.*undefined").all()


BROKEN = """
from dataclasses import dataclass
from attacks import Attack
@dataclass(frozen=True)
class Broken(Attack):
    name = "broken"
    def check_requirements(self, observation, knowledge):
        undefined
    def reconstruct(self, observation, knowledge, generator, progress):
        pass
"""


def test_a_row_that_ran_out_of_time_names_the_audit_s_own_option(recorded):
    slow = {"name": "ntk", "iterations": 10_000_000, "patience": 0}
    row = audited(recorded, "slow", attacks=[slow], clients=[0], timeout=1.0).leakage.iloc[0]
    assert row.status == "timeout" and "no result within --timeout = 1 processor seconds" in row.detail


def test_attacks_that_ran_out_of_time_are_tried_again_and_the_others_are_kept(recorded):
    search = {"name": "ntk", "iterations": 1000, "patience": 0}
    options = {"attacks": ["mean_image", search], "clients": [0], "know": {"num_private": 10}}
    first = audited(recorded, "late", timeout=1.0, **options).leakage.set_index("attack")
    assert first.status.to_dict() == {"mean_image": "ok", "ntk": "timeout"}
    second = audited(recorded, "late", timeout=600.0, **options).leakage.set_index("attack")
    assert second.status.to_dict() == {"mean_image": "ok", "ntk": "ok"}
    pd.testing.assert_series_equal(second.loc["mean_image"], first.loc["mean_image"])  # its seconds, too


def test_an_audit_is_opened_as_a_run_is(blind):
    run = Run(blind.path)
    observation, knowledge = run.observation(1, 0)
    assert run.is_audit and run.name == "rec" and knowledge.num_private == 10
    assert torch.equal(observation.initial["1.weight"], network().state_dict()["1.weight"])
    assert len(run.attack(1, 0, "span").images) == 10


BAD = {
    "no recording": ({"recording": "nowhere"}, "is no recording"),
    "another network": ({"model": "torch.nn:Identity"}, "row of class scores"),
    "a mean for three channels": ({"mean": (0.1, 0.2, 0.3)}, "0.1,0.2,0.3: give one value, or one for each channel"),
    "a deviation of zero": ({"std": 0}, "std 0: divide by numbers above 0"),
    "no such round": ({"rounds": [7]}, "has no round 7"),
    "no such threat model": ({"threat_models": ["client"]}, "has no threat_model 'client'"),
    "no such field": ({"know": {"lr": 0.1}}, "--know lr: no such field"),
    "a field that nobody knows": ({"know": {"steps": True}}, "an audit knows no true value"),
    "no truth there": ({"truth": "nowhere.npz"}, "does not exist: give an npz file"),
    "truth of another size": ({"truth": "big.npz"}, "takes (1, 8, 8): give them as training resizes or converts them"),
    "truth in colour": ({"truth": "colour.npz"}, "takes (1, 8, 8): save them in grey, as training converts them"),
    "truth with channels last": ({"truth": "last.npz"}, "takes (1, 8, 8): give images.transpose(0, 3, 1, 2)"),
    "truth on another scale": ({"truth": "normalized.npz"}, "before --mean and --std"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_nothing_is_written(recorded, case, monkeypatch):
    monkeypatch.chdir(recorded)
    np.savez("big.npz", images=np.zeros((2, 1, 9, 9), np.float32))
    np.savez("colour.npz", images=np.eye(3, dtype=np.float32)[:, :, None, None].repeat(8, 2).repeat(8, 3))
    np.savez("last.npz", images=np.zeros((2, 8, 8, 1), np.float32))
    np.savez("normalized.npz", images=np.full((2, 1, 8, 8), -0.75, np.float32))
    given, said = BAD[case]
    options = {"recording": recorded, "model": f"{recorded}/net.py:net", **SPAN, **given}
    with pytest.raises(InputError) as caught:
        audit(shape=SHAPE, out=recorded / "bad", **options)
    assert said in str(caught.value) and "\n" not in str(caught.value) and not (recorded / "bad").exists()


def test_images_or_a_recording_that_are_others_make_another_audit(tmp_path):
    """One table would answer for both."""
    recorded = record(tmp_path / "rec", clients=(2, 0, 1))
    truth = write_truth(tmp_path / "truth")
    options = {"truth": truth, "attacks": ["mean_image"], "clients": (0,), "threat_models": ("server",)}
    first = audited(recorded, "mine", **options).leakage.psnr_mean.tolist()
    assert audited(recorded, "mine", **options).leakage.psnr_mean.tolist() == first
    for client in range(3):
        np.savez(truth / f"client_{client:02d}.npz", images=1 - digits(client)[0].numpy())
    with pytest.raises(InputError, match="already holds another audit"):
        audited(recorded, "mine", **options)
    fresh = audited(recorded, "fresh", **options).leakage.psnr_mean.tolist()  # this process has read the first ones
    assert fresh != first
    path = min((recorded / "checkpoints").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(InputError, match="already holds another audit"):
        audited(recorded, "fresh", **options)


@pytest.mark.slow
def test_a_ray_of_a_notebook_is_used_and_left(recorded, monkeypatch):
    """Its workers were started before anybody allowed the network's file."""
    stop_ray()
    monkeypatch.delenv(VARIABLE, raising=False)
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        rows = audited(recorded, "beside", attacks=["mean_image"], threat_models=("server",), workers=2).leakage
        assert (rows.status == "ok").all() and len(rows) == 3, rows.detail.tolist()
        assert ray.is_initialized()
    finally:
        stop_ray()


def test_a_private_image_among_the_public_ones_is_no_guess_at_it(recorded, tmp_path):
    """Every private image of the recorded client 1 is public, too: left out, they change neither floor nor AUC."""
    truth, outsiders = write_truth(tmp_path / "truth"), digits(40, count=5)[0].numpy()
    np.savez(tmp_path / "apart.npz", images=outsiders)
    np.savez(tmp_path / "both.npz", images=np.concatenate([outsiders, digits(0)[0].numpy()]))
    options = {"truth": truth, "clients": [1], "threat_models": ["server"]}
    apart, both = (
        audited(recorded, f"public_{name}", public=tmp_path / f"{name}.npz", **options).leakage.iloc[0]
        for name in ("apart", "both")
    )
    columns = ["recovered", "leakage", "floor_leakage", "membership_auc"]
    assert both[columns].tolist() == pytest.approx(apart[columns].tolist())
    assert "10 of 15 public images are left out: 10 among the private ones" in both.detail


def test_a_regression_head_of_no_row_is_refused_with_the_remedy(recorded):
    (recorded / "reg.py").write_text(REGRESSION)
    with pytest.raises(InputError, match=r"has outputs of shape \(\): a row .* return \(N, 1\)"):
        audit(recorded, f"{recorded}/reg.py:net", SHAPE, out=recorded / "reg", **SPAN)


REGRESSION = """
from torch import nn
class Squeezed(nn.Linear):
    def forward(self, images):
        return super().forward(images.flatten(1)).squeeze(1)
def net():
    return Squeezed(64, 1)
"""
