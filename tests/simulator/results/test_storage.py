import itertools
import json
import os
import resource

import numpy as np
import pytest
import torch

from attacks import InputError, Knowledge, Reconstruction
from clients.config import ModelConfig
from clients.models import build_model
from clients.models.checkpoint import read_checkpoint
from simulator.results import storage as storage_module
from simulator.results.disk import check_out, load_images, make_out, reconstruction_file, save_state, write_bytes
from simulator.results.keys import ALL, ObservationKey, RecordedObservation
from simulator.results.storage import CellStore, make_knowledge
from simulator.run_errors import DiskError

SHAPE = (1, 8, 8)


@pytest.fixture
def store(tmp_path):
    store = CellStore(tmp_path)
    store.create(ModelConfig(width=8, depth=1), SHAPE, 10, seed=0)
    return store


def states():
    return [build_model(ModelConfig(width=8, depth=1), SHAPE, 10, seed).state_dict() for seed in (1, 2)]


def test_an_observation_comes_back_as_it_was_written(store):
    initial, final = states()
    pair = (store.save_global(0, initial), store.save_client(1, 3, final))
    key = ObservationKey(1, 3, "server")
    recorded = RecordedObservation.of(key, (pair,), clients=(3,), round_clients=(0, 3))
    store.save_observation(recorded, Knowledge(num_private=7, pixel_mean=(0.25,)))
    observation, knowledge = store.load(key)
    assert (observation.round, observation.client, observation.threat_model) == (1, 3, "server")
    assert all(torch.equal(observation.initial[name], initial[name]) for name in initial)
    assert all(torch.equal(observation.final[name], final[name]) for name in final)
    assert knowledge == Knowledge(num_private=7, pixel_mean=(0.25,))
    assert store.observation_keys() == [key]
    assert store.recorded(key) == recorded.model_copy(update={"knowledge": {"num_private": 7, "pixel_mean": [0.25]}})


def test_public_images_travel_beside_the_checkpoints(store):
    images = torch.rand(3, *SHAPE)
    pair = tuple(store.save_global(i, state) for i, state in enumerate(states()))
    store.save_public_images(images)
    key = ObservationKey(1, ALL, "observer")
    store.save_observation(RecordedObservation.of(key, (pair,), (0, 1), (0, 1)), Knowledge(public_images=images))
    assert torch.equal(store.load(key)[1].public_images, images)
    written = json.loads((store.checkpoints / "round_0001_client_all_observer.json").read_text())
    assert written["knowledge"] == {"public_images": 3}


def test_names_of_files(store):
    assert ObservationKey(7, 3, "server").name == "round_0007_client_03_server"
    assert (
        store.reconstruction_path(ObservationKey(1, ALL, "observer"), "ntk").name
        == "round_0001_client_all_observer_ntk.npz"
    )


def test_missing_observation_names_what_there_is(store):
    with pytest.raises(InputError, match="recorded: none"):
        store.load(ObservationKey(9, 9, "server"))


def test_states_keep_their_bits(tmp_path):
    state = {"a": torch.randn(3, 4).T, "n": torch.tensor(3), "d": torch.randn(2).double()}
    save_state(tmp_path / "s.safetensors", state)
    loaded = read_checkpoint(tmp_path / "s.safetensors")
    assert all(torch.equal(loaded[name], state[name]) and loaded[name].dtype == state[name].dtype for name in state)
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]  # no partial file is left


@pytest.mark.parametrize("archive", [False, True])
def test_what_the_system_says_against_a_checkpoint_is_one_line_and_nothing_is_left(tmp_path, archive):
    path, megabytes = tmp_path / "s.safetensors", {"a": torch.zeros(2**19)}
    save_state(path, {"a": torch.ones(1)}, archive)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        with pytest.raises(DiskError, match=r"^'.*s.safetensors' cannot be written \(File too large\): [^\n]*$"):
            save_state(path, megabytes, archive)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]
    assert read_checkpoint(path)["a"].tolist() == [1.0]  # the file that was there
    save_state(path, megabytes, archive)
    assert torch.equal(read_checkpoint(path)["a"], megabytes["a"])


def test_an_archive_has_the_same_files_and_no_checksums(tmp_path, monkeypatch):
    """Of what is large, the system's memory is asked back; that the disk takes it is asked first."""
    asked = []
    monkeypatch.setattr(os, "fsync", lambda file: asked.append("written"))
    monkeypatch.setattr(os, "posix_fadvise", lambda file, start, size, advice: asked.append((start, size, advice)))
    for archive in (False, True):
        store = CellStore(tmp_path / str(archive), archive=archive)
        store.create(ModelConfig(width=8, depth=1), SHAPE, 10, 0)
        store.save_global(0, {"a": torch.arange(2.0**19)})
        store.save_global(1, {"a": torch.arange(2.0)})
    assert asked == ["written", (0, 0, os.POSIX_FADV_DONTNEED)]  # the one large checkpoint of the archive
    files = [sorted((tmp_path / str(archive)).rglob("*.safetensors")) for archive in (False, True)]
    assert [a.read_bytes() for a in files[0]] == [b.read_bytes() for b in files[1]]
    assert list(store.files) == ["checkpoints/architecture.json"]


def test_reconstructions_are_stored_as_pixels(tmp_path):
    found = Reconstruction(torch.tensor([[[[-0.5, 0.25, 0.9]]]]), torch.tensor([0.1]), pixel_mean=(0.25,))
    write_bytes(tmp_path / "r.npz", reconstruction_file(found))
    assert load_images(tmp_path / "r.npz").tolist() == [[[[0.0, 0.5, 1.0]]]]
    assert np.load(tmp_path / "r.npz")["residual"].tolist() == pytest.approx([0.1])


def test_knowledge_of_the_wrong_kind_is_named():
    with pytest.raises(InputError, match="num_private is 'many'"):
        make_knowledge({"num_private": "many"})


def test_knowledge_from_plain_values():
    assert make_knowledge({"pixel_mean": 0.5, "labels": [1, 2]}) == Knowledge(pixel_mean=(0.5,), labels=(1, 2))


def test_a_history_names_the_checkpoints_of_its_rounds_and_reads_each_once(store, monkeypatch):
    states = [build_model(ModelConfig(width=8, depth=1), SHAPE, 10, seed).state_dict() for seed in range(3)]
    names = [store.save_global(i, state) for i, state in enumerate(states)]
    key = ObservationKey(2, ALL, "history")
    store.save_observation(RecordedObservation.of(key, tuple(itertools.pairwise(names)), (0,), (0,)), Knowledge())
    read = []
    monkeypatch.setattr(
        storage_module, "read_checkpoint", lambda path, like: read.append(path.name) or read_checkpoint(path)
    )
    observation, _ = store.load(key)
    assert sorted(read) == names == sorted(path.name for path in store.checkpoints.glob("*.safetensors"))
    assert len(observation.pairs) == 2 and observation.pairs[0][1] is observation.pairs[1][0]
    for i, pair in enumerate(observation.pairs):
        for state, expected in zip(pair, states[i : i + 2], strict=True):
            assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_a_folder_that_cannot_be_made_is_refused_and_none_is_left_behind(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to(tmp_path / "nowhere")
    for path in (file, file / "below" / "it", link):
        with pytest.raises(InputError, match=f"'{file if path != link else link}' is a file: choose another --out"):
            check_out(path)
    check_out(tmp_path / "new" / "folder")
    check_out(tmp_path)
    assert sorted(tmp_path.iterdir()) == [file, link]
    with pytest.raises(InputError, match=r"cannot be made .*: choose another --out"):
        make_out(tmp_path / ("x" * 300))
