import pytest

from clients.data import SOURCES
from tests.clients.data.data_sources import load, refused


def test_unknown_names():
    assert refused("mnits") == "unknown data.name 'mnits'; did you mean 'mnist'?; a hub data set is OWNER/NAME"
    assert all(name in refused("qqq") for name in SOURCES)


@pytest.mark.parametrize("name", sorted(set(SOURCES) - {"digits", "faces"}))
def test_a_missing_root(name, tmp_path):
    assert refused(name).startswith(f"data.root is not given: data {name!r} expects as its value a")
    absent = tmp_path / "absent"
    assert refused(name, absent).startswith(f"data.root is {str(absent)!r}: data {name!r} expects there a")
    assert refused(name, absent).endswith("there is no such file or folder")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert refused(name, empty).startswith(f"data.root is {str(empty)!r}: data {name!r} expects there a")


def test_loading_twice_reads_once():
    assert load("digits") is load("digits")
