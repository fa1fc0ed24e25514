"""`fedspill audit` on checkpoints that no Flower app has recorded."""

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from attacks import InputError
from simulator.audit.record import recording_of
from simulator.audit.recording import Recording
from simulator.results.keys import ALL
from tests.simulator.audit.recorded import MODEL, digits, network, trained


@pytest.fixture
def folder(tmp_path):
    """Two rounds of two clients, a file format each."""
    (tmp_path / "task.py").write_text(MODEL)
    start, model = {name: value.clone() for name, value in network().state_dict().items()}, network()
    for number in (1, 2):
        place = tmp_path / "runs" / f"round_{number}"
        place.mkdir(parents=True)
        save_file(start, place / "global.safetensors")
        replies = [trained(model, start, client) for client in (0, 1)]
        torch.save({"model": replies[0], "train_conf": {"train": {"model": "net"}}}, place / "site-1.pt")
        np.savez(place / "site-2.npz", *[value.numpy() for value in replies[1].values()])
        start = {name: (replies[0][name] + replies[1][name]) / 2 for name in start}
    save_file(start, tmp_path / "runs" / "global.safetensors")
    return tmp_path / "runs"


def test_an_audit_of_a_folder_of_checkpoints(fedspill, folder, tmp_path):
    for number, name in enumerate(("site-1", "site-2")):
        (tmp_path / "truth").mkdir(exist_ok=True)
        np.savez(tmp_path / "truth" / f"{name}.npz", images=digits(number)[0].numpy())
    result = fedspill(
        "audit", folder, "--model", f"{tmp_path / 'task.py'}:net", "--shape", "1,8,8", "--mean", "0.3", "--std", "0.4",
        "--attack", "span", "--truth", tmp_path / "truth", "--out", tmp_path / "out", "--workers", "1",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    rows = pd.read_csv(tmp_path / "out" / "leakage.csv")
    server = rows[rows.threat_model == "server"]
    assert len(server) == 4 and (server.recovered_fraction == 1).all()
    assert set(rows.threat_model) == {"server", "observer", "history"}


def test_what_is_written_is_a_recording(folder):
    place = recording_of(folder)
    assert place == folder.with_name("runs-recording") and recording_of(place) == place
    recording = Recording(place)
    assert {client.name for client in recording.clients.values()} == {"site-1", "site-2"}
    assert [one.round for one in recording.rounds] == [1, 2]


def test_the_numbers_of_images_stand_beside_the_checkpoints(folder):
    (folder / "round_1" / "counts.json").write_text('{"site-1": 10, "site-2": 7}')
    recording = Recording(recording_of(folder))
    assert [one.images for one in recording.rounds] == [{0: 10, 1: 7}, {}]
    told = {key.client: recording.granted(key).num_private for key in recording.observations() if key.round == 1}
    assert told == {0: 10, 1: 7, ALL: None}


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ('{"site-3": 1}', "the round has no client 'site-3'; did you mean"),
        ('{"site-1": "many"}', "valid integer, unable to parse string as an integer: write the images of each client"),
        ("[10, 7]", "Input should be an object: write the images of each client, {"),
    ],
)
def test_numbers_of_another_form_are_refused(folder, counts, said):
    (folder / "round_1" / "counts.json").write_text(counts)
    with pytest.raises(InputError, match=r"counts\.json'") as caught:
        recording_of(folder)
    assert said in str(caught.value) and not folder.with_name("runs-recording").exists()


def test_a_round_without_what_was_sent(fedspill, folder, tmp_path):
    (folder / "round_2" / "global.safetensors").unlink()
    result = fedspill("audit", folder, "--model", f"{tmp_path / 'task.py'}:net", "--shape", "1,8,8")
    assert result.returncode == 2 and "has 0 files `global`, one is needed" in result.stderr
    assert not folder.with_name("runs-recording").exists()


def test_two_files_of_one_client_are_named(folder):
    """A reader's case: the later one had been left out, and nothing said so."""
    (folder / "round_1" / "site-1.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"'site-1\.pt' and 'site-1\.safetensors', of one client"):
        recording_of(folder)
