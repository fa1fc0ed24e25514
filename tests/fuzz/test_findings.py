"""What `make fuzz` has found, each as the smallest input that does it."""

import io
import json
import resource
import zipfile

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from attacks import InputError, Knowledge, Observation
from attacks.membership import MembershipTest
from clients.data.files import read_npz
from clients.models.checkpoint import read_checkpoint
from simulator.audit.recording import Recording
from simulator.reports.page.pictures import facts_of, summary_of
from simulator.results.disk import load_images
from simulator.results.keys import ObservationKey
from simulator.results.ledger import Ledger
from simulator.results.storage import CellStore
from simulator.rundir.run import Run
from simulator.scenario.scenario import load_scenario
from tests.fuzz.run_folders import write_recording, write_run
from tests.fuzz.tensors import gigabytes


@pytest.fixture
def root(tmp_path):
    write_run(tmp_path / "run")
    return tmp_path / "run"


def test_characters_that_there_are_not(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.frombuffer(np.array([0x110000], np.uint32).tobytes(), "<U1"))
    with pytest.raises(InputError, match="x holds characters that there are not"):
        read_npz(tmp_path / "x.npz", ("x",))


def test_a_zip_file_of_a_version_to_come(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros(2))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[content.rindex(b"PK\x01\x02") + 6] = 198  # the version that is needed to unpack it
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError, match="is no npz file"):
        read_npz(tmp_path / "x.npz", ("x",))


@pytest.mark.parametrize("name", ["arr_0.npy", "archive/data/0"])
def test_a_checkpoint_that_unpacks_to_gigabytes(tmp_path, name):
    """An npz file, and a PyTorch file, which is a zip file too."""
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": (75 * 2**20,)})
        for _ in range(300):
            member.write(bytes(2**20))
    with pytest.raises(InputError, match=r"the file would unpack 30.* bytes to 314,5"):
        read_checkpoint(tmp_path / "a.pt")


def test_single_values_of_a_checkpoint_are_still_read(tmp_path):
    np.savez(tmp_path / "a.npz", **{"bn.num_batches_tracked": np.int64(3), "bn.weight": np.ones(2)})
    assert read_checkpoint(tmp_path / "a.npz")["bn.num_batches_tracked"] == 3


@pytest.mark.parametrize("key", ["round", "client", "threat_model", "clients", "round_clients", "pairs", "knowledge"])
@pytest.mark.parametrize("value", ["gone", 3.5, [[1]], None])
def test_an_observation_without_what_makes_one(tmp_path, key, value):
    write_recording(tmp_path / "recording")
    recording = Recording(tmp_path / "recording")
    path = recording.observation_path(ObservationKey(1, 0, "server"))
    content = json.loads(path.read_text())
    content[key] = value
    if value == "gone":
        del content[key]
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"(is damaged: {key}|no field|knowledge)"):
        recording.observations()
        recording.granted(ObservationKey(1, 0, "server"))


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "../" * 2000])
def test_a_name_that_no_disk_takes(tmp_path, name):
    write_recording(tmp_path / "recording")
    recording = Recording(tmp_path / "recording")
    key = ObservationKey(1, 0, "server")
    path = recording.observation_path(key)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pairs": [[name, name]]}))
    with pytest.raises(InputError, match=r"does not exist|leads out of"):
        recording.pairs(key)
    with pytest.raises(InputError, match=r"no observation|leads out of"):
        recording.load(ObservationKey(1, 0, name))


@pytest.mark.parametrize("key", ["model", "shape", "outputs", "seed"])
@pytest.mark.parametrize("value", [None, "x", [1, 2], -1.5])
def test_an_architecture_that_is_none(root, key, value):
    path = root / "checkpoints" / "architecture.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(InputError, match=f"architecture.json' is damaged: {key}"):
        CellStore(root).architecture()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04", b"nothing of the kind"])
def test_reconstructions_and_tables_that_are_damaged(root, content):
    path = next((root / "reconstructions").glob("*.npz"))
    path.write_bytes(content)
    with pytest.raises(InputError, match="reconstructions"):
        load_images(path)
    (root / "leakage.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"leakage.parquet' cannot be read"):
        _ = Run(root).leakage


def test_reconstructions_of_another_type(tmp_path):
    np.savez(tmp_path / "r.npz", images=np.array([["a"]]))
    with pytest.raises(InputError, match=r"are <U1 \(1, 1\): \(M, C, H, W\) is expected"):
        load_images(tmp_path / "r.npz")


@pytest.mark.parametrize("row", [{"round": {"a": 1}}, {"client": []}, {"l2_mean": {"x": 1}}, {"surprise": 1}, {1: 2}])
def test_a_journal_that_no_run_wrote(root, row):
    journal = root / "ledger.jsonl"
    lines = journal.read_text().splitlines()
    entry = json.loads(lines[0])
    entry["row"] |= row
    lines[0] = json.dumps(entry)
    journal.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="holds rows that no run wrote"):
        Ledger(root).write_tables()


@pytest.mark.parametrize("key", ["federation", "data", "model"])
@pytest.mark.parametrize("value", [None, True, 3, [1], "x"])
def test_a_description_with_something_else_in_the_place_of_a_section(root, key, value):
    description = yaml.safe_load((root / "scenario.yaml").read_text())
    description["scenario"][key] = value
    description |= {"versions": value, 7: value}
    assert facts_of(description) and summary_of(description) is not None


def test_a_setting_of_many_lines(tmp_path):
    (tmp_path / "s.yaml").write_text("name: s\n")
    with pytest.raises(InputError) as caught:
        load_scenario(tmp_path / "s.yaml", ["data.std=[0,\n" + "\n".join("0," for _ in range(30)) + "\n0]"])
    assert "\n" not in str(caught.value)


ODD = {
    "fp8": (lambda weight: weight.to(torch.float8_e4m3fn), "type float8_e4m3fn"),
    "bool": (lambda weight: weight > 0, "type bool"),
    "complex": (lambda weight: weight.to(torch.complex64), "type complex64"),
    "integers": (lambda weight: weight.to(torch.int32), "type int32"),
    "quantized": (lambda weight: torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8), "type qint8"),
    "sparse": (lambda weight: weight.to_sparse(), "layout sparse_coo"),
    "CSR": (lambda weight: weight.to_sparse_csr(), "layout sparse_csr"),
    "meta": (lambda weight: weight.to("meta"), "device 'meta'"),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_weight_that_nothing_can_be_computed_with(tmp_path, odd, recwarn):
    """In a file, and in an observation that somebody makes."""
    make, called = ODD[odd]
    model = torch.nn.Linear(6, 4)
    state = model.state_dict() | {"weight": make(model.weight.detach())}
    torch.save(state, tmp_path / "a.pt")
    recwarn.clear()
    wanted = f"tensor 'weight' is o[fn] the {called}.*: save dense tensors of float16, bfloat16, float32 or float64$"
    with pytest.raises(InputError, match=f"^checkpoint '.*a.pt': {wanted}"):
        read_checkpoint(tmp_path / "a.pt", model.state_dict())
    assert not recwarn  # a user sees one line
    with pytest.raises(InputError, match=f"^checkpoint {wanted}"):
        Observation(model, ((model.state_dict(), state),), (1, 1, 6))


def test_a_safetensors_file_of_a_type_that_nothing_can_be_computed_with(tmp_path):
    save_file({"images": torch.ones(2).to(torch.float8_e5m2)}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="'images' is of the type float8_e5m2"):
        read_checkpoint(tmp_path / "a.safetensors")


def test_counts_of_batch_norm_are_integers_or_their_mean(tmp_path):
    like = torch.nn.BatchNorm1d(3).state_dict()
    for count in (torch.tensor(3), torch.tensor(3, dtype=torch.int32), torch.tensor(2.5)):
        torch.save(like | {"num_batches_tracked": count}, tmp_path / "a.pt")
        assert read_checkpoint(tmp_path / "a.pt", like)["num_batches_tracked"] == count


def test_a_view_of_terabytes_in_a_small_file(tmp_path):
    expanded = torch.zeros(1).expand(10**6, 10**6)
    for content in ({"weight": torch.ones(3), "more": expanded}, [expanded] * 6):
        torch.save(content, tmp_path / "a.pt")
        with pytest.raises(InputError, match=r"has 1,... bytes, and tensors of [\d,]+: '(more|0)' has the shape"):
            read_checkpoint(tmp_path / "a.pt")
    torch.save({"weight": torch.ones(1).expand(64)}, tmp_path / "a.pt")
    assert read_checkpoint(tmp_path / "a.pt")["weight"].shape == (64,)


@pytest.mark.slow
def test_parts_that_are_gigabytes_together(tmp_path):
    (tmp_path / "a.npz").write_bytes(gigabytes())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"the file would unpack [\d,]+ bytes to 1,258,"):
        read_checkpoint(tmp_path / "a.npz")
    with pytest.raises(InputError, match="the file would unpack"):
        read_npz(tmp_path / "a.npz", ("x_train", "y_train"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 2**10  # KiB


def test_a_checkpoint_of_mixed_precision_tells_members():
    model, images = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 12)), torch.rand(5, 1, 8, 8)
    sent = model.state_dict()
    final = {"1.weight": sent["1.weight"].double() + torch.rand(12, 64), "1.bias": sent["1.bias"].half()}
    told = Knowledge(num_private=2)
    for state in (sent, sent | {"1.bias": sent["1.bias"].double()}, {k: v.bfloat16() for k, v in sent.items()}):
        observation = Observation(model, ((state, final),), (1, 8, 8))
        assert MembershipTest.of(observation, told).residual(images).isfinite().all()


def test_a_pickle_of_one_byte(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"\x80")
    with pytest.raises(InputError, match="damaged"):
        read_checkpoint(tmp_path / "a.pt")
    content = io.BytesIO()
    torch.save({"a": torch.zeros(2)}, content, _use_new_zipfile_serialization=False)
    (tmp_path / "a.pt").write_bytes(content.getvalue()[:-3])
    with pytest.raises(InputError, match="damaged"):
        read_checkpoint(tmp_path / "a.pt")
