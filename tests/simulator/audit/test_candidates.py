"""Membership in an audit: candidates told from images that are no members, with no word of the truth."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from attacks import InputError, Knowledge, Observation
from simulator.audit.run_audit import audit
from simulator.evaluation.candidate_images import AuditCandidates, tell_candidates
from simulator.reports.gate import judge, parse_limits
from simulator.reports.tables import exposure_grid, leakage_grid
from simulator.reports.verdict import verdict
from simulator.results.schema import LEAKAGE
from tests.simulator.audit.recorded import SHAPE, network, record

NOT_TRIED = "Membership: not tried: give --candidates and --public."


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two clients: 0 has the digits 100 to 109, 1 has 110 to 119. Ten candidates of each, and ten strangers."""
    folder = record(tmp_path_factory.mktemp("candidates") / "rec", clients=(0, 1))
    images = load_digits().images[:, None].astype(np.float32) / 16
    np.savez(folder / "candidates.npz", images=np.concatenate([images[100:120], images[800:810]]))
    np.savez(folder / "public.npz", images=images[500:700])
    np.savez(folder / "copies.npz", images=images[[500] * 99])
    np.savez(folder / "both.npz", images=np.concatenate([images[500:700], images[500:520], images[100:110]]))
    np.savez(folder / "twice.npz", images=np.concatenate([images[100:120], images[800:810]] * 2))
    np.savez(folder / "few.npz", images=images[500:505])
    np.savez(folder / "pool.npz", images=images[100:120])
    return folder


@pytest.fixture
def audited(recorded):
    def run(name, **files):
        images = {option: recorded / f"{file}.npz" for option, file in files.items()}
        return audit(recorded, f"{recorded}/net.py:net", SHAPE, mean=0.3, std=0.4, attacks=["span"], workers=1,
                     page=False, out=recorded / name, **images)  # fmt: skip

    return run


def test_every_update_says_which_candidates_it_was_trained_on(audited):
    run = audited("told", candidates="candidates", public="public")
    rows = run.leakage.set_index("client")
    assert rows.membership_candidates.tolist() == [30, 30, 30]
    assert (rows.membership_fpr == 0.01).all() and (rows.membership_p < 1e-6).all()
    assert rows.recovered.isna().all()  # there is no truth in it
    members = {}
    for client, name in ((0, "00_server"), (1, "01_server"), (-1, "all_observer")):
        frame = pd.read_csv(run.path / "membership" / f"round_0001_client_{name}.csv")
        members[client] = set(frame.index[frame.member == 1])
        assert (frame.member == (frame.score > rows.membership_threshold[client])).all()
        assert len(members[client]) == rows.membership_told[client]
    assert members[0] >= set(range(10)) and len(members[0] - set(range(10))) <= 2
    assert members[1] >= set(range(10, 20)) and len(members[1] - set(range(10, 20))) <= 2
    assert members[-1] >= set(range(20))


def test_it_is_in_the_verdict_the_table_the_page_and_the_json(audited):
    table = audited("told", candidates="candidates", public="public").leakage
    (line,) = (line for line in verdict(table).of("shown", "tried") if line.startswith("Membership"))
    assert "of 30 candidates took part, at 1 false alarm in 100" in line
    assert "3 of 3 updates tell members from others" in line
    assert json.loads(json.dumps(verdict(table).as_json()))["shown"]
    told = [f"{row.membership_told} of 30" for row in table.itertuples()]
    members = LEAKAGE.columns["membership_told"]
    assert [members.cell(row) for _, row in table.iterrows()] == told
    page = leakage_grid(table)
    column = [heading.name for heading in page.columns].index("stand out")
    assert sorted(row[column] for row in page.rows) == sorted(told)
    assert "stand out" in [heading.name for heading in exposure_grid(table).columns]


def test_what_was_not_tried_is_said_and_how_it_is(audited):
    table = audited("blind").leakage
    assert NOT_TRIED in verdict(table).of("caveats") and "embership" not in str(verdict(table).of("shown", "tried"))
    assert "stand out" not in leakage_grid(table).cells()


def test_of_one_pool_for_all_clients_it_is_told_which_images_took_part(audited):
    """Whose they are nobody said: those of a client are candidates, those of both clients together are all."""
    alone = audited("pool", truth="pool").leakage
    assert alone.set_index("client").recovered.notna().tolist() == [False, False, True]
    rows = alone[alone.client >= 0]
    (line,) = (line for line in verdict(rows).of("caveats") if line.startswith("Membership"))
    assert "give --public" in line and "told which candidates took part" in line
    both = audited("pool-public", truth="pool", public="public").leakage.set_index("client")
    assert both.membership_told[0] >= 10 and both.membership_told[-1] == 20
    assert both.membership_auc[[0, 1]].isna().all()


def test_what_is_given_as_candidates_is_said_first_and_no_limit_passes_on_it(audited):
    rows = audited("pool", truth="pool").leakage
    assert verdict(rows[rows.client >= 0]).headline.startswith("The images of --truth are candidates, and no attack")
    assert "in 2 of 3 rows. " in verdict(rows).headline
    error, _ = judge(rows, parse_limits(["recovered=20", "leakage=1"], []))
    exceeded = str(error).split("\n  ")[1:]
    assert [line.partition(":")[0] for line in exceeded] == ["recovered=20", "leakage=1"]
    assert "2 of 3 rows have no such score" in exceeded[0] and error is not None and error.exit_code == 4


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"candidates": "candidates"}, "without --public: give images of the kind that are known to be no members"),
        ({"candidates": "candidates", "public": "few"}, "has 5 images, too few to calibrate"),
        (
            {"candidates": "candidates", "public": "copies"},
            "has 1 images (98 of 99 public images are left out: 98 copies)",
        ),
        ({"candidates": "nowhere", "public": "public"}, "does not exist"),
    ],
)
def test_what_cannot_calibrate_is_refused_in_one_line(audited, recorded, files, said):
    with pytest.raises(InputError) as caught:
        audited("bad", **files)
    assert said in str(caught.value) and "\n" not in str(caught.value) and not (recorded / "bad").exists()


def test_copies_calibrate_nothing_and_a_candidate_is_no_image_of_no_member(audited):
    """230 public images, 200 of them different and no candidates; 60 candidates, 30 of them different: the thresholds,
    counts and probabilities are those of the 200 and the 30."""
    table = audited("told", candidates="candidates", public="public").leakage
    run = audited("copies", candidates="twice", public="both")
    columns = [name for name in table.columns if name.startswith("membership_")]
    pd.testing.assert_frame_equal(run.leakage[columns], table[columns], rtol=1e-6)
    left = "30 of 230 public images are left out: 10 among the candidates and 20 copies"
    assert run.leakage.detail.str.contains(left).all()
    frame = pd.read_csv(run.path / "membership" / "round_0001_client_00_server.csv")
    assert frame.member[:30].tolist() == frame.member[30:].tolist() and len(frame) == 60


def test_of_an_update_of_zero_membership_says_that_it_is_zero(recorded):
    model = network()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    source = AuditCandidates(recorded / "candidates.npz", recorded / "public.npz", SHAPE)
    told = tell_candidates(source, Observation(model, ((start, start),), SHAPE), Knowledge(pixel_mean=(0.3,)))
    assert told.columns == {} and told.notes == [
        "membership of the candidates: the update is zero: the client returned the checkpoint it was sent"
    ]


def test_an_update_that_tells_nobody_is_said_to_tell_nobody(audited):
    """The strangers are drawn as the candidates are: as many are told as false alarms are due."""
    table = audited("told", candidates="candidates", public="public").leakage
    none = table.assign(membership_told=1, membership_p=0.3, recovered=np.nan)
    (line,) = (line for line in verdict(none).of("shown", "tried") if line.startswith("Membership"))
    assert line.startswith("Membership: 1 of 30 candidates stands out, at 1 false alarm in 100 (")
    assert "nor that any did not" in line and "took part," not in line


def test_many_updates_need_more_than_one_that_seems_to_tell(audited):
    """A probability of 0.02 is no news among three updates: 3 · 0.02 is above 0.05."""
    table = audited("told", candidates="candidates", public="public").leakage
    few = table.assign(membership_told=[2, 0, 0], membership_p=[0.02, 1.0, 1.0])
    assert any("candidates stand out, at" in line for line in verdict(few).of("shown", "tried"))
    alone = few.head(1)
    assert any("1 of 1 updates tell" in line for line in verdict(alone).of("shown", "tried"))
