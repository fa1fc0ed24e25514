"""Files that were written to harm: each ends in one line, in moments, and nothing is made of it."""

import pytest

from simulator.run_errors import InputError
from simulator.scenario.scenario import load_scenario

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
EIGHT_AXES = ", ".join(f"training.k{i}: {[0] * 10}" for i in range(8))
FILES = {
    "9⁹ values in 500 bytes": (BOMB, "more than 20,000 values"),
    "an alias of itself": ("data: &a {x: *a}\n", "an alias stands inside"),
    "5,000 lists": ("name: " + "[" * 5000, "line 1: more than 50 lists and mappings inside each other"),
    "half a character": ('name: "\\ud800"\n', "line 1: .* holds a character that no text may hold"),
    "a zero byte in a path": ('name: s\ndata: {root: "a\\0b"}\n', "line 2: .* holds a character"),
    "a number without digits": ("name: s\nseed: 0x_\n", "line 2: '0x_' is no int"),
    "a word as a number": ("name: s\nseed: !!int x\n", "line 2: 'x' is no int"),
    "a word as a fraction": ("name: s\nseed: !!float y\n", "line 2: 'y' is no float"),
    "a word as a truth value": ("name: s\nseed: !!bool z\n", "line 2: 'z' is no bool"),
    "a word as a date": ("name: !!timestamp foo\n", "line 1: 'foo' is no timestamp"),
    "code": ("name: !!python/object/apply:os.system [echo]\n", "could not determine a constructor"),
    "a key of spaces": ("name: s\nmy key: 1\n", "line 2: unknown key 'my key'"),
    "a key of spaces in a section": ("name: s\ntraining: {batch size: 8}\n", "unknown key 'training.batch size'; did"),
    "a key that a type is called": ("name: s\nint: 1\n", "line 2: unknown key 'int'"),
    "nobody's home": ("name: s\ndata: {root: ~nosuch/x}\n", "'~nosuch/x' is no path"),
    "rounds for ever": ("name: s\nfederation: {rounds: 1000000000000}\n", "line 2: federation.rounds is"),
    "layers for ever": ("name: s\nmodel: {depth: 100000000}\n", "line 2: model.depth is"),
    "cells for ever": (f"name: s\nsweep: {{{EIGHT_AXES}}}\n", "100,000,000 settings"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_one_line_says_what_is_wrong(tmp_path, name):
    text, message = FILES[name]
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load_scenario(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_a_file_of_another_kind(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_bytes(b"x" * (2**20 + 1))
    with pytest.raises(InputError, match="has 1,048,577 bytes, a scenario at most 1,048,576"):
        load_scenario(path)
    with pytest.raises(InputError, match="is no file"):
        load_scenario(tmp_path)


def test_what_set_says_is_read_with_the_same_care(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("name: s\n")
    for value in ("!!int x", "[" * 5000, "&a [*a]"):
        with pytest.raises(InputError):
            load_scenario(path, [f"seed={value}"])
