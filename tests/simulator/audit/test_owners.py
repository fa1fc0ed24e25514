"""Whose file is whose: by name, by what updates tell, or not at all."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge, Observation, Reconstruction
from simulator.audit.owners import (
    AuditTruth,
    describe_names,
    describe_owners,
    doubt_owners,
    owners_by_name,
    owners_said,
)
from simulator.audit.recording import SeenClient
from simulator.evaluation.image_files import ImageFiles
from simulator.evaluation.truth import Attacked
from simulator.results.keys import ObservationKey, RecordedObservation


def files(*names):
    return ImageFiles(names, (1,) * len(names), torch.zeros(len(names), 1, 2, 2), by_client=True)


def test_files_are_the_clients_who_say_their_number():
    clients = {0: SeenClient(node=17, name=2), 1: SeenClient(node=3, name="0"), 2: SeenClient(node=9, name=1)}
    assert owners_by_name(files("client_00", "client_01", "client_02"), clients) == {0: 2, 1: 0, 2: 1}
    named = {0: SeenClient(node=17, name="ward-b"), 1: SeenClient(node=3, name="ward-a")}
    assert owners_by_name(files("ward-a", "ward-b"), named) == {0: 1, 1: 0}


def test_who_has_no_name_or_no_file_leaves_it_to_the_updates():
    names = files("client_00", "client_01")
    assert owners_by_name(names, {0: SeenClient(node=17, name=0), 1: SeenClient(node=3)}) is None
    assert owners_by_name(names, {0: SeenClient(node=17, name=0), 1: SeenClient(node=3, name=7)}) is None


def test_files_that_all_have_an_owner_are_theirs_where_some_client_has_none():
    """A client without images, or whose images nobody has: the others' rows were left without scores."""
    clients = {0: SeenClient(node=17, name=0), 1: SeenClient(node=3, name=1), 2: SeenClient(node=9, name=2)}
    assert owners_by_name(files("client_0", "client_2"), clients) == {0: 0, 2: 1}
    assert owners_by_name(files("client_0", "client_7"), clients) is None


def test_files_called_by_the_node_ids_are_theirs():
    clients = {0: SeenClient(node=7139184572), 1: SeenClient(node=304881)}
    assert owners_by_name(files("304881", "7139184572"), clients) == {0: 1, 1: 0}
    assert owners_by_name(files("304881", "305000"), clients) is None
    ours = {0: SeenClient(node=0, name="alice"), 1: SeenClient(node=1, name="bob")}  # read from a folder of checkpoints
    assert owners_by_name(files("0", "1"), ours) is None


@pytest.mark.parametrize(
    ("folder", "owners", "said", "names", "lines", "doubt"),
    [
        (
            True,
            {0: 1, 1: 0},
            {},
            ("b", "a"),
            ["client 0 (b): truth from t/1 (2 images)", "client 1 (a): truth from t/0"],
            "",
        ),
        (True, {0: 1}, {"0": "1"}, ("0", None), ["client 0: truth from t/1 (2 images)"], ""),
        (
            True,
            {0: 1},
            {"0": "1"},
            (None, None),
            ["client 0 (node 17): truth from t/1 (2 images)"],
            "it is client 0 of the rec",
        ),
        (True, {0: 1}, {"17": "1"}, (None, None), ["client 0 (node 17): truth from t/1 (2 images)"], ""),
        (True, {0: 1, 1: 1}, {"b": "1", "a": "1"}, ("b", "a"), [], "clients 0 and 1 are compared with one truth, '1'"),
        (False, None, {}, (None, None), ["all clients: truth from t (4 images)"], "2 clients are compared with one"),
        (True, None, {}, (None, None), [], "'t': the updates could not tell which file or folder of --truth is whose"),
        (False, {0: 0}, {"17": "t"}, (None, None), ["client 0 (node 17): truth from t (4 images)"], ""),
    ],
)
def test_whose_truth_is_taken_is_said_and_doubted(tmp_path, folder, owners, said, names, lines, doubt):
    place, images = tmp_path / "t", np.zeros((2, 1, 2, 2), np.float32)
    if folder:
        place.mkdir()
    for name in ("t/0.npz", "t/1.npz") if folder else ("t",):
        with (tmp_path / name).open("wb") as file:
            np.savez(file, images=images if folder else np.concatenate([images, images]))
    truth = AuditTruth(place, None, (1, 2, 2), owners, {})
    clients = {number: SeenClient(node=17 + number, name=name) for number, name in enumerate(names)}
    described = "; ".join(describe_owners(truth, clients))
    assert [line for line in lines if line not in described] == []
    doubts = doubt_owners(truth, clients, said)
    assert len(doubts) == bool(doubt) and doubt in "".join(doubts)


def test_what_clients_call_themselves_is_said_without_a_truth():
    """A newcomer's case: a verdict on client 0 of OpenFL's collaborators, and nothing said which that is."""
    sites = {0: SeenClient(node=0, name="Chandler"), 1: SeenClient(node=1, name="1"), 2: SeenClient(node=2)}
    assert describe_names(sites) == ["clients: 0 is 'Chandler'"]
    assert describe_names({1: sites[1], 2: sites[2]}) == []


def test_one_file_is_that_of_one_client_whatever_its_name():
    one, two = {3: SeenClient(node=17)}, {0: SeenClient(node=17), 1: SeenClient(node=3)}
    assert owners_by_name(files("ours"), one) == {3: 0}
    assert owners_by_name(files("ours"), two) is None and owners_by_name(files("ours", "theirs"), one) is None


def test_candidates_are_told_remedies_that_every_command_has(tmp_path):
    np.savez(tmp_path / "t.npz", images=np.random.default_rng(0).random((4, 1, 2, 2)).astype(np.float32))
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(8, 2))  # its update does not show N
    state = {name: value.clone() for name, value in model.state_dict().items()}
    key = ObservationKey(1, 0, "server")
    recorded, found = RecordedObservation.of(key, (("a", "b"),), (0,), (0,)), Reconstruction(*torch.zeros(2, 0))
    attacked = Attacked(recorded, Observation(model, ((state, state),), (1, 2, 2)), Knowledge(), found)
    said = AuditTruth(tmp_path / "t.npz", None, (1, 2, 2), None, {}).truth(attacked)
    assert "--know num_private=N" in said and "of a single client by anything" in said
    assert "--owner NODE=FOLDER of `fedspill audit`" in said


def test_whose_a_folder_is_can_be_said():
    clients = {0: SeenClient(node=7139184572), 1: SeenClient(node=304881, name="ward-b")}
    names = files("alice", "bob")
    assert owners_said(names, clients, {"304881": "truth/alice", "0": "bob.npz"}) == {1: 0, 0: 1}
    assert owners_said(names, clients, {"ward-b": "bob"}) == {1: 1}
    ids = r"with one of the node ids 7139184572 \(client 0\), 304881 \(client 1\)$"
    for node in ("5", "bob"):
        with pytest.raises(InputError, match=rf"--owner {node}=0: '{node}' is no node of the recording: .*{ids}"):
            owners_said(names, clients, {node: "0"})
    with pytest.raises(InputError, match=r"--truth holds no file or folder 'bop'; did you mean 'bob'"):
        owners_said(names, clients, {"0": "bop"})


def test_one_image_of_which_nobody_said_whose_it_is_is_one(tmp_path):
    np.savez(tmp_path / "one.npz", images=np.zeros((1, 1, 2, 2), np.float32))
    row = SimpleNamespace(recorded=SimpleNamespace(key="row", clients=(0,)))
    said = AuditTruth(tmp_path / "one.npz", None, (1, 2, 2), None, {"row": 0}).truth(row)
    assert ": 1 is given, whose is not known, and this row has 0; to score attacks" in said
