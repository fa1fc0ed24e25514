"""Nothing that fedspill needs binds those who use it."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "reference" / "licences.py"


@pytest.fixture(scope="module")
def licences():
    spec = importlib.util.spec_from_file_location("licences", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_dependency_is_copyleft(licences):
    found = {name: licences.licence_of(distribution) for name, distribution in licences.needed("fedspill").items()}
    assert len(found) > 60 and {"torch", "ray", "flwr", "certifi"} <= found.keys()  # certifi: through others
    assert not {name: said for name, said in found.items() if licences.COPYLEFT.search(said) or said == "not said"}


@pytest.mark.parametrize("said", ["GPL-3.0-only", "GNU Affero License (AGPL)", "AGPL-3.0", "(MIT OR GPL-2)"])
def test_what_binds_is_recognized(licences, said):
    assert licences.COPYLEFT.search(said)


@pytest.mark.parametrize("said", ["MIT", "LGPL-2.1", "Mozilla Public License 2.0 (MPL 2.0)", "Apache-2.0"])
def test_what_does_not_is_let_through(licences, said):
    assert not licences.COPYLEFT.search(said)
