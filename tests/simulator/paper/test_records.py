"""What is recorded of the papers' experiments: verdicts are those of the data, and the page is made of them."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from attacks import InputError
from simulator.cli.commands import PaperCommand
from simulator.cli.paper import paper
from simulator.paper.records import Made, check_records, decide, page_row, size_of, titles

DOCS = Path(__file__).resolve().parents[3] / "docs"
RECORDED = DOCS / "records" / "paper"


def copied(tmp_path, *names):
    """Some of the committed records, in a place of their own."""
    for name in names:
        shutil.copytree(RECORDED / name, tmp_path / "records" / "paper" / name)
    return tmp_path / "records" / "paper"


def test_every_recorded_verdict_is_what_its_data_give_and_the_page_is_made_of_them(tmp_path):
    records = copied(tmp_path, *(folder.name for folder in RECORDED.iterdir()))
    claims, wrong = check_records(records, titles())
    assert wrong is None and set(claims) == {folder.name for folder in RECORDED.iterdir()}
    page = (tmp_path / "paper.md").read_text()
    assert page == (DOCS / "paper.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|")]
    gallery = 2 + (len(claims) + 1) // 2
    assert len(rows) == 2 + sum(map(len, claims.values())) + gallery and len(page.splitlines()) - len(rows) <= 80
    assert all(f"(records/paper/{name}/figure.png)" in page for name in claims)
    recorded = [claim for path in RECORDED.glob("*/claims.json") for claim in json.loads(path.read_text())]
    by_verdict = Counter(claim["verdict"].split(" (")[0].split(" after")[0] for claim in recorded)
    numbers = list(map(int, re.findall(r"(\d+) (?:claims|hold|do not|are)\b", page.splitlines()[2])))
    assert numbers == [len(recorded), by_verdict["holds"], by_verdict["does not hold"], by_verdict["undecided"]]
    for name, found in claims.items():
        made = Made.read(records / name)
        assert made.command.split()[:3] == ["fedspill", "paper", made.experiment] and "/" not in made.command
        assert all(claim.identity or claim.n >= 5 for claim in found) and made.around["versions"]["torch"]


def test_a_verdict_that_is_not_what_the_data_give_is_named(tmp_path):
    records = copied(tmp_path, "theorem1", "theorem2")
    path = records / "theorem1" / "claims.json"
    claims = json.loads(path.read_text())
    claims[1]["verdict"] = "does not hold"
    path.write_text(json.dumps(claims))
    answer = paper(PaperCommand(records=records))
    assert str(answer.error) == f"recorded otherwise than the data say: theorem1: {claims[1]['claim']}"
    assert answer.data["theorem1"][1]["verdict"].startswith("holds")
    path.unlink()
    (records / "theorem2" / "figure.png").unlink()
    assert check_records(records, titles())[1] is None and (records / "theorem2" / "figure.png").stat().st_size > 5000
    assert len(json.loads(path.read_text())) == 2
    data = pd.read_csv(records / "theorem1" / "data.csv")
    data.assign(worst_l2=0.5).to_csv(records / "theorem1" / "data.csv", index=False)
    assert "theorem1: a loss of 0 means" in str(check_records(records, titles())[1])


def test_what_was_made_by_an_earlier_version_is_refused(tmp_path):
    folder = copied(tmp_path, "theorem1") / "theorem1"
    (folder / "experiment.json").write_text('{"experiment": "theorem1", "profile": "quick", "digest": "0"}')
    with pytest.raises(InputError, match="does not say how"):
        decide(folder)
    with pytest.raises(InputError, match="holds no records"):
        check_records(tmp_path / "nowhere", titles())


def test_a_folder_is_named_after_its_experiment_and_may_say_more(tmp_path):
    """As one on a second data set does; its rows stand behind those of the first."""
    records = copied(tmp_path, "theorem1", "theorem2")
    shutil.copytree(records / "theorem1", records / "theorem1_cifar10")
    claims, wrong = check_records(records, titles())
    assert wrong is None and list(claims) == ["theorem1", "theorem1_cifar10", "theorem2"]
    page = (tmp_path / "paper.md").read_text()
    assert page.count("| `theorem1` |") == 4 and "(records/paper/theorem1_cifar10/figure.png)" in page
    (records / "theorem1").rename(records / "theorem9")
    with pytest.raises(InputError, match="theorem9' is a record of 'theorem1': name it theorem1, or theorem1_ and"):
        check_records(records, titles())


def test_a_row_of_the_page(tmp_path):
    claim = decide(copied(tmp_path, "theorem1") / "theorem1")[0]
    row = page_row("theorem1", claim, "quick")
    assert row[0] == "`theorem1`" and "holds where" not in row[3] and row[5] == "5" and row[-1] == "quick"
    assert size_of(pd.DataFrame({"num_private": [5, 20], "width": 64})) == "5 to 20 images, width 64"
    assert size_of(pd.DataFrame({"train": [5], "width": 0})) == "5 images"
