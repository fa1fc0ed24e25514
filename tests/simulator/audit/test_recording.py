"""Opening a recording: what is no recording, or a damaged one, is said in a line."""

import json

import pytest

from attacks import InputError
from simulator.audit.recording import Recording

WHOLE = {
    "format": 1,
    "fedspill": "0.2.0",
    "strategy": "FedAvg",
    "clients": {"0": {"node": 17, "name": "north"}},
    "rounds": [{"round": 3, "clients": [0], "images": {"0": 8}}],
    "problems": ["a line"],
}


def recording(folder, **changed):
    (folder / "recording.json").write_text(json.dumps(WHOLE | changed))
    return Recording(folder)


def test_what_is_in_it(tmp_path):
    found = recording(tmp_path, added_later=1)
    assert found.clients[0].node == 17 and found.clients[0].name == "north"
    assert found.rounds[0].round == 3 and found.rounds[0].images == {0: 8}
    assert found.observations() == [] and found.contents.problems == ("a line",)
    assert found.contents.model_dump(mode="json") == WHOLE


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"format": 2, "fedspill": "9.1"}, "has format 2, this fedspill reads 1: it was made by fedspill 9.1"),
        ({"rounds": [{"round": "x", "clients": [], "images": {}}]}, "recording.json' is damaged: rounds.0.round"),
        ({"clients": {"0": {}}}, "recording.json' is damaged: clients.0.node: field required"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, changed, says):
    with pytest.raises(InputError, match=says):
        recording(tmp_path, **changed)


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"is no recording: it has no recording\.json; fedspill\.Record makes one"):
        Recording(tmp_path)
    (tmp_path / "mine").mkdir()
    near = recording(tmp_path / "mine").path
    for path in (tmp_path, near / "recording.json", near / "checkpoints"):  # beside it, and within it
        with pytest.raises(InputError, match=rf"json; did you mean '{near}'\?"):
            Recording(path)
    (tmp_path / "recording.json").write_text('{"format": 1')
    with pytest.raises(InputError, match="cannot be read"):
        Recording(tmp_path)
