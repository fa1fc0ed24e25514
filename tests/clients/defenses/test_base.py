import pytest

from attacks import InputError
from clients.defenses import Encoding
from clients.defenses.base import DEFENSES, register
from tests.clients.defenses.parts import context, make


def test_what_travels():
    def encoded(*names):
        encoding = Encoding()
        for name in names:
            encoding = make(name).encode(encoding, context())
        return encoding.bytes(1000)

    assert encoded() == 4000 and encoded("clipping") == 4000
    assert encoded("top_k") == 100 * 8  # a value and a position each
    assert encoded("random_k") == 100 * 4  # positions follow from a seed
    assert encoded("quantization") == 1000
    assert encoded("top_k", "quantization") == 100 * 5
    assert encoded("top_k", "noise") == 4000  # noise fills the zeros


def test_a_name_that_another_defense_has_is_refused():
    class Mine:
        name = "clipping"

    before = DEFENSES.find("clipping")
    with pytest.raises(InputError, match=r"Mine: the name 'clipping' is that of clients.defenses.*: choose another"):
        register(Mine)
    assert DEFENSES["clipping"] is before
