"""Valid input, changed at random."""

import copy
import gzip
import io
import json
import random
import zipfile
from typing import Any

BYTES = [  # pieces that readers of any format have stumbled over
    *(b"", b"\x00", b"\xff\xfe", b"\xff" * 8, b"\x00" * 8, b"\x7f" * 4, b"\x80", b"-1", b"9" * 400, b"1e309", b".nan"),
    *(
        b"-.inf",
        b"null",
        b"{}",
        b"[]",
        b"[" * 500,
        b"{" * 500,
        b"&a [*a]",
        b"*x",
        b"|",
        b"? ",
        b"!!int x",
        b"!!binary =",
    ),
    *(b"!!python/object/apply:os.system [echo]", b"subprocess:Popen", b"../../x", b"~nosuch/x", b"\x1b]0;x\x07"),
    *(b"[/bold]", b"<script>", b"\r\n", b"\t", b"true", b"0x_", b"'", b'"', "é\u2028\u202e".encode()),
    "\ud800".encode("utf-8", "surrogatepass"),
]
VALUES: list[Any] = [  # in the place of a value of a scenario or of a JSON file
    *(None, True, False, 0, 1, -1, 2, 3, 10**6, 10**9, 10**12, 10**40, -(10**18)),
    *(0.0, 0.5, 1e-300, 1e300, 1e308, float("nan"), float("inf")),
    *("", " ", "a", "none", "every", "all", "a" * 5000, "../../etc/passwd", "~nosuch/x", "/dev/zero", "/dev/null"),
    *("[/bold]", "\x1b[2J", "$x^{$", "=cmd|calc!A1", "<script>alert(1)</script>", "subprocess:Popen", "é\u202e"),
    *("a b", "a.b", "1e3", "0x10", [], {}, [[]], [None], [1, "a"], [10**9], [0.5, float("nan")], [[1, 2], [3]]),
    *({"a": 1}, {"name": "x"}, {"name": ["x"]}, {"": {}}, list(range(30)), {"x": {"y": {"z": [{}]}}}),
]


def mutated(data: bytes, rng: random.Random, pieces: list[bytes] = BYTES) -> bytes:
    """One to six changes: a piece put in, a byte changed, some cut out, some doubled, the end cut off."""
    content = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 6])):
        at, act = rng.randrange(len(content) + 1), rng.random()
        if act < 0.35:
            content[at : at + rng.randint(0, 8)] = rng.choice(pieces)
        elif act < 0.65:
            content[at : at + 1] = bytes([rng.randrange(256)])
        elif act < 0.8:
            del content[at : at + rng.randint(1, 40)]
        elif act < 0.95:
            content[at:at] = content[rng.randrange(len(content) + 1) :][: rng.choice([4, 60, 2000])]
        else:
            del content[at:]
    return bytes(content)


def leaves_of(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where values stand in a tree of mappings and lists, mappings and lists themselves included."""
    found = [path] if path else []
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        found += leaves_of(value, (*path, key))
    return found


def with_odd_values(data: Any, rng: random.Random) -> Any:
    """A tree of which one to four values are replaced by odd ones, taken away, or called something else. Changed in
    place."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        places = leaves_of(data)
        if not places:
            return copy.deepcopy(rng.choice(VALUES))
        *parents, last = rng.choice(places)
        owner = data
        for key in parents:
            owner = owner[key]
        act = rng.random()
        if act < 0.7:
            owner[last] = copy.deepcopy(rng.choice(VALUES))
        elif act < 0.85:
            del owner[last]
        elif isinstance(owner, dict):
            owner[rng.choice(["name", "x", "my key", "int", "seed", "", "a.b", "kind", 7, None])] = owner.pop(last)
        else:
            owner.append(copy.deepcopy(owner[last]))
    return data


def repacked(data: bytes, rng: random.Random) -> bytes:
    """A zip or gzip file, or a journal, of which the content is changed and the checksums are right: what an enemy
    would send, and what no checksum keeps from the readers behind it."""
    if data[:2] == b"\x1f\x8b":
        return gzip.compress(mutated(gzip.decompress(data), rng))
    if data[:2] == b"PK":
        content = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(content, "w") as new:
            chosen = rng.choice(old.namelist())
            for name in old.namelist():
                new.writestr(name, mutated(old.read(name), rng) if name == chosen else old.read(name))
        return content.getvalue()
    lines = data.decode().splitlines()
    at = rng.randrange(len(lines))
    lines[at] = json.dumps(with_odd_values(json.loads(lines[at]), rng))
    return "\n".join(lines).encode()
