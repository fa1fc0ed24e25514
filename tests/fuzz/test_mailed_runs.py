"""What mailed run directories have done: each the smallest one that did it."""

import contextlib
import io
import json
import os
import time

import pandas as pd
import pytest
import yaml

from attacks import InputError
from simulator.reports.figures import draw_figures
from simulator.results.disk import check_out, write_atomically
from simulator.results.keys import ObservationKey
from simulator.results.ledger import JOURNAL, Ledger, read_journal
from simulator.results.storage import CellStore
from simulator.run_errors import printable
from simulator.rundir.run import Run
from simulator.scenario import yaml_source
from tests.fuzz.harness import longest_here
from tests.fuzz.mailed_runs import BOMB, DEEP, WORDS, change_journal, packed
from tests.fuzz.reported import report_it
from tests.fuzz.run_folders import write_run


@pytest.fixture
def root(tmp_path):
    write_run(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def in_moments():
    longest, start = longest_here(), time.perf_counter()
    yield
    assert time.perf_counter() - start < longest


@pytest.mark.parametrize(
    ("text", "message"),
    [(BOMB, "more than 20,000 values"), (DEEP, "more than 50 lists"), ("x: [" + "1, " * 300_000 + "]\n", "20,000 val")],
)
def test_a_description_out_of_all_proportion(root, text, message):
    with (root / "scenario.yaml").open("a") as file:
        file.write(text)
    with pytest.raises(InputError, match=f"scenario.yaml' cannot be read .*{message}.*the run directory is damaged"):
        Run(root)


def test_a_digest_that_looks_like_a_number(tmp_path):
    """What `safe_dump` does not quote, its reader takes for no number, as people mean it who type 1e3."""
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({"digest": "12345678e9"}))
    assert yaml_source.read_document(tmp_path / "x.yaml", "description", yaml_source.Dumped)[1]["digest"] == (
        "12345678e9"
    )


def test_json_that_is_deeper_than_its_reader(root):
    (root / "checkpoints" / "architecture.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"architecture.json' cannot be read"):
        CellStore(root).architecture()


def test_a_table_of_100_kilobytes_and_2_gigabytes(root):
    frame = pd.read_parquet(root / "leakage.parquet")
    (root / "leakage.parquet").write_bytes(packed(frame.iloc[[0] * 300_000]))
    with pytest.raises(InputError, match=r"the file would unpack [\d,]+ bytes to \d,\d{3},\d{3},\d{3}"):
        _ = Run(root).leakage


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop(columns="threat_model"), "it has no column 'threat_model'"),
        (lambda frame: frame.assign(attack=3), "column 'attack' holds something else than texts"),
        (lambda frame: frame.assign(l2_mean="x"), "column 'l2_mean' holds something else than numbers"),
        (lambda frame: frame.assign(knowledge="[/x]"), "column 'knowledge' holds something else than JSON"),
        (lambda frame: frame.assign(client=[0, None]), "column 'client' has rows without a value"),
    ],
)
def test_a_table_that_no_run_wrote(root, change, message):
    (root / "leakage.parquet").write_bytes(packed(change(pd.read_parquet(root / "leakage.parquet"))))
    with pytest.raises(InputError, match=message):
        _ = Run(root).leakage


@pytest.mark.parametrize("name", ["../../dev/zero", "../" * 30 + "dev/zero", "/dev/zero", "..", "a\0b"])
def test_a_journal_that_names_a_file_elsewhere(root, name):
    change_journal(root, lambda entry: entry | {"files": {name: "00000000"}} if "done" in entry else entry)
    assert read_journal(root / JOURNAL).done == set()
    assert "leads out of" in Ledger(root).problems[0]


@pytest.mark.parametrize("name", ["../../other/a.safetensors", "/etc/passwd", "/dev/zero", ".."])
def test_an_observation_that_names_a_file_elsewhere(root, name):
    path = CellStore(root).observation_path(ObservationKey(1, 0, "server"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pairs": [[name, name]]}))
    with pytest.raises(InputError, match="leads out of"):
        Run(root).observation(1, 0)


def test_an_audit_names_the_checkpoints_of_its_recording(root, tmp_path):
    path = CellStore(root).observation_path(ObservationKey(1, 0, "server"))
    content = json.loads(path.read_text())
    (root / "checkpoints").rename(tmp_path / "checkpoints")
    write_run(tmp_path / "audit")
    pairs = [[str(tmp_path / "checkpoints" / name) for name in pair] for pair in content["pairs"]]
    path = CellStore(tmp_path / "audit").observation_path(ObservationKey(1, 0, "server"))
    path.write_text(json.dumps(content | {"pairs": pairs}))
    assert Run(tmp_path / "audit").observation(1, 0)[0].pairs
    os.symlink("/dev/zero", tmp_path / "checkpoints" / "zero")
    path.write_text(json.dumps(content | {"pairs": [[str(tmp_path / "checkpoints" / "zero")] * 2]}))
    with pytest.raises(InputError, match="leads out of"):
        Run(tmp_path / "audit").observation(1, 0)


@pytest.mark.parametrize("name", ["scenario.yaml", "leakage.parquet", "ledger.jsonl", "checkpoints/architecture.json"])
@pytest.mark.parametrize("place", ["/dev/zero", "/etc/passwd"])
def test_a_link_that_leads_out(root, name, place):
    (root / name).unlink()
    (root / name).symlink_to(place)
    with pytest.raises(InputError, match="leads out of"):
        _ = read_journal(root / JOURNAL).done, Run(root).leakage, Run(root).store().architecture()


def test_a_pipe_in_the_place_of_a_file(root):
    (root / "leakage.parquet").unlink()
    os.mkfifo(root / "leakage.parquet")
    with pytest.raises(InputError, match="is no file"):
        _ = Run(root).leakage


def test_figures_stay_in_their_folder(root, tmp_path):
    """Called by attacks of a table, and written through links that lie there."""
    (tmp_path / "mine").write_text("mine")
    (root / "figures" / "reconstructions_server_a").mkdir(parents=True)
    (root / "figures" / "curves.png").symlink_to(tmp_path / "mine")
    frame = pd.read_parquet(root / "leakage.parquet").assign(attack="a/../../../taken")
    (root / "leakage.parquet").write_bytes(packed(frame))
    lines = []
    draw_figures(Run(root), lines.append)
    assert (tmp_path / "mine").read_text() == "mine" and not list(tmp_path.glob("*.png"))
    assert sum("leads out of" in line for line in lines) == 2, lines


def test_what_is_written_follows_no_link(root, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (root / ".report.html.partial").symlink_to(tmp_path / "mine")
    write_atomically(root / "report.html", "page")
    assert (tmp_path / "mine").read_text() == "mine" and (root / "report.html").read_text() == "page"


def test_cells_stay_inside_the_run(tmp_path):
    with pytest.raises(InputError, match="leads out of"):
        CellStore(tmp_path, "/../../a=1")


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("column", ["threat_model", "attack", "detail", "data.label_column"])
def test_no_text_of_a_table_rules_the_terminal(root, column, word, monkeypatch):
    monkeypatch.setattr("simulator.cli.finish.draw", lambda figures: None)  # takes seconds
    frame = pd.read_parquet(root / "leakage.parquet")
    frame[column] = [word, "other"]
    (root / "leakage.parquet").write_bytes(packed(frame))
    if column == "data.label_column":
        content = yaml.safe_load((root / "scenario.yaml").read_text())
        content["scenario"]["sweep"] = {column: [word, "other"]}
        (root / "scenario.yaml").write_text(yaml.safe_dump(content, allow_unicode=True))
    with contextlib.suppress(InputError):  # a name that an attack cannot have; `report_it` looks at what was said
        said = " ".join(report_it(root).split())
        assert column == "detail" or "".join(printable(word).split())[:6] in "".join(said.split())


def test_json_says_nothing_that_a_terminal_obeys(capsys):
    from simulator.terminal import print_json

    value = {"x": "é\x1b[2J\x9b\u202e\U000e0001\ud800"}
    print_json(value)
    text = capsys.readouterr().out
    assert all(sign.isprintable() or sign == "\n" for sign in text) and "é" in text
    assert json.loads(text) == value


@pytest.mark.parametrize("place", ["x" * 300, "x" * 300 + "/b", "a\0b"])
def test_an_out_that_no_disk_takes(tmp_path, place):
    with pytest.raises(InputError, match=r"is no path .*: choose another --out"):
        check_out(tmp_path / place)


def test_a_finding_is_noticed(root, monkeypatch):
    monkeypatch.setattr("simulator.terminal.printable", lambda text: text)
    monkeypatch.setattr("simulator.cli.finish.draw", lambda figures: None)
    frame = pd.read_parquet(root / "leakage.parquet").assign(threat_model="\x1b[2J")
    (root / "leakage.parquet").write_bytes(packed(frame))
    with io.StringIO() as file, contextlib.redirect_stdout(file), pytest.raises(AssertionError, match="reach the ter"):
        report_it(root)
