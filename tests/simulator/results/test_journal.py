"""Damage to a run's directory: found, named, and done again."""

import json
import zlib

import numpy as np
import pytest

from simulator.results.disk import is_changed, write_bytes
from simulator.results.ledger import JOURNAL, Ledger, decode, encode, read_journal
from simulator.run_errors import DiskError

KEY = {"defense": "none", "seed": 0, "target": "private", "attack": "ntk", "threat_model": "server", "status": "ok"}


def fill(folder, cells=("a", "b", "c")):
    """A run of cells with two rows and one checkpoint each."""
    ledger = Ledger(folder, swept=["cell"])
    for cell in sorted(set(cells) - ledger.done):
        name = f"{cell}.safetensors"
        crc = write_bytes(folder / name, f"weights of {cell} ".encode() * 50)
        rows = [{**KEY, "cell": cell, "round": 1, "client": client, "psnr_mean": ord(cell)} for client in (0, 1)]
        ledger.add(cell, leakage=rows)
        ledger.mark_done(cell, {name: crc})
    ledger.write_tables()
    return ledger


def test_no_end_of_a_line_can_be_cut_off():
    entry = {"table": "leakage", "cell": "ä", "row": {"l2": 0.1, "x": None}}
    line = encode(entry).rstrip("\n")
    assert decode(line) == json.loads(line) == entry
    assert all(decode(line[:at]) is None for at in range(len(line)))


def test_a_line_with_the_checksum_of_earlier_versions_is_still_read(tmp_path):
    fill(tmp_path)
    lines = (tmp_path / JOURNAL).read_text().splitlines()
    (tmp_path / JOURNAL).write_text("".join(f'{line[:-1]}, "crc32": "00000000"}}\n' for line in lines))
    assert read_journal(tmp_path / JOURNAL).done == set("abc") and fill(tmp_path).problems == []


@pytest.mark.parametrize(
    "entry", [[], {"done": 3}, {"done": [], "cell": "a"}, {"table": "leakage", "cell": ["a"], "row": {}}, {"x": 1}]
)
def test_a_line_of_another_form_is_damaged_too(entry):
    assert decode(json.dumps(entry)) is None


def change(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def cut(path, at):
    path.write_bytes(path.read_bytes()[:at])


DAMAGE = {  # what is done to which file, and what is said
    "the last line is torn": (lambda run: cut(run / JOURNAL, -30), "c", "line 9 is torn or changed"),
    "its end is torn off": (lambda run: cut(run / JOURNAL, -5), "c", "line 9 is torn"),
    "a middle line is changed": (lambda run: change(run / JOURNAL, 3), "a", "'a' is done again: the journal has 1 of"),
    "it is no text any more": (lambda run: (run / JOURNAL).write_bytes(b"\xff\x00" * 99), "abc", "line 1 is torn"),
    "a checkpoint has another bit": (lambda run: change(run / "b.safetensors", 300), "b", "'b.safetensors' is cut off"),
    "a checkpoint is cut off": (lambda run: cut(run / "b.safetensors", 300), "b", "'b.safetensors' is cut off or chan"),
    "a checkpoint is empty": (lambda run: cut(run / "b.safetensors", 0), "b", "'b.safetensors' is cut off or changed"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_named_and_done_again(tmp_path, damage):
    harm, cells, said = DAMAGE[damage]
    whole = fill(tmp_path).tables()["leakage"]
    harm(tmp_path)
    found = read_journal(tmp_path / JOURNAL)
    assert found.done == set("abc") - set(cells)
    assert any(said in problem for problem in found.problems) and all("\n" not in problem for problem in found.problems)
    again = fill(tmp_path)
    assert again.done == set("abc") and again.problems == found.problems
    assert again.tables()["leakage"].equals(whole)
    assert read_journal(tmp_path / JOURNAL).problems == []


def test_a_line_that_was_taken_out_whole_is_missed(tmp_path):
    fill(tmp_path)
    lines = (tmp_path / JOURNAL).read_text().splitlines(keepends=True)
    (tmp_path / JOURNAL).write_text("".join(lines[:4] + lines[5:]))
    assert read_journal(tmp_path / JOURNAL).done == {"a", "c"}


def test_a_checkpoint_that_somebody_deleted_is_not_made_again(tmp_path):
    fill(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    assert read_journal(tmp_path / JOURNAL).done == set("abc")
    assert sorted(read_journal(tmp_path / JOURNAL).files) == ["a.safetensors", "b.safetensors", "c.safetensors"]


def test_a_long_file_is_checked_to_its_last_byte(tmp_path):
    content = np.random.default_rng(0).bytes(9 * 2**20)
    crc = write_bytes(tmp_path / "x", content)
    assert crc == f"{zlib.crc32(content):08x}" and not is_changed(tmp_path / "x", crc)
    change(tmp_path / "x", -1)
    assert is_changed(tmp_path / "x", crc)


def test_a_journal_that_somebody_has_removed_is_not_begun_anew(tmp_path):
    ledger = fill(tmp_path)
    (tmp_path / JOURNAL).unlink()
    with pytest.raises(DiskError, match=r"cannot be written \(No such file"):
        ledger.add("d", leakage=[{**KEY, "cell": "d", "round": 1, "client": 0}])
    assert not (tmp_path / JOURNAL).exists() and len(ledger.tables()["leakage"]) == 6
