"""Make the pictures and facts of a page: images as data URIs, and scenario.yaml or audit.yaml in words."""

import base64
import io
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image
from torch import Tensor

from attacks.interface.errors import counted
from attacks.interface.normalization import stretched
from simulator.reports.drawing import DPI, Drawn
from simulator.reports.verdict_words import sentence
from simulator.results.columns import leakage_floor
from simulator.rundir.run import Run
from simulator.rundir.strip import Strip, strip_of, where_of

Values = dict[str, Any]
"""A part of the page, by the names that the templates use."""

SCENARIO, AUDIT = "scenario", "audit"  # keys of descriptions: the options of a run and of an audit
APART = ("versions", "machine", "jobs", SCENARIO, AUDIT)  # keys with headings of their own
FLAGS = ("model", "shape", "mean", "std", "truth", "public", "candidates", "seed")  # options of `fedspill audit`
REPEATED = {"rounds": "round", "clients": "client", "threat_models": "threat-model"}  # options given once for each


def facts_of(description: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the scenario or the options of an audit, and versions and machine, without empty values."""
    others = {name: value for name, value in description.items() if name not in APART}
    made = _part(description, "versions") | _part(description, "machine")
    facts = {"What was done": asked_for(description) | others, "Versions and machine": made}
    said = {
        title: {str(name).replace("_", " "): in_words(value) for name, value in content.items() if in_words(value)}
        for title, content in facts.items()
    }
    return {title: values for title, values in said.items() if values}


def in_words(value: Any) -> str:
    """Return a value of YAML in one line, without empty parts."""
    if isinstance(value, dict):
        parts = ((str(name).replace("_", " "), in_words(one)) for name, one in value.items())
        return ", ".join(one if name in ("name", "kind") else f"{name} {one}" for name, one in parts if one)
    if isinstance(value, list):
        plain = all(isinstance(one, int | float) for one in value)
        return (", " if plain else "; ").join(filter(None, map(in_words, value)))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def asked_for(description: dict[str, Any]) -> dict[str, Any]:
    """Return the scenario, or the options of an audit."""
    return _part(description, SCENARIO) or _part(description, AUDIT)


def _part(mapping: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a mapping inside another; an empty one if it is something else."""
    found = mapping.get(key)
    return dict(found) if isinstance(found, dict) else {}


def audit_command(options: dict[str, Any], out: str) -> str:
    """Return the command of an audit, without the options of its attacks, which it cannot have. options: in
    audit.yaml."""
    given = {name: options.get(name) for name in FLAGS}
    texts = {name: ",".join(map(str, value)) if isinstance(value, list) else value for name, value in given.items()}
    said = [(f"--{name}", value) for name, value in texts.items() if value]
    said += [("--owner", f"{node}={folder}") for node, folder in (options.get("owners") or {}).items()]
    said += [("--know", f"{name}={json.dumps(value)}") for name, value in (options.get("knowledge") or {}).items()]
    said += [(f"--{flag}", value) for name, flag in REPEATED.items() for value in options.get(name) or ()]
    said += [("--attack", attack["name"]) for attack in options.get("attacks") or ()]
    words = ["fedspill", "audit", options.get("recording", "RECORDING"), *(part for pair in said for part in pair)]
    return shlex.join(map(str, [*words, "--out", out]))


def summary_of(description: dict[str, Any]) -> str:
    """Return one line with data, network, clients, rounds and date, if the description has them."""
    asked = asked_for(description)
    federation = _part(asked, "federation")
    parts = [
        _part(asked, "data").get("name"),
        asked["model"].get("name") if isinstance(asked.get("model"), dict) else Path(str(asked.get("model", ""))).name,
        federation.get("clients") and counted(federation["clients"], "client"),
        federation.get("rounds") and counted(federation["rounds"], "round"),
        _part(federation, "strategy").get("name"),
        str(description.get("started", ""))[:10],
    ]
    return " · ".join(str(part) for part in parts if part)


LARGEST = 128  # pixels of a side: a page with many images stays small enough to be mailed
SMALL = 64  # pixels of a side up to which an image is stored without loss
TOGETHER = 5  # pairs that a phone has room for side by side
WORST, OTHERS = 10, 5  # pairs of the client exposed worst, and of each of the others
CSS_PIXELS = 96  # per inch


def data_uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def tile(image: Tensor, alt: str) -> Values:
    """Encode an image (C, H, W), stretched to [0, 1]: as PNG up to `SMALL`, else as JPEG, scaled down to `LARGEST`.
    alt: what is seen."""
    levels = (stretched(image[None])[0] * 255).round().byte().permute(1, 2, 0).numpy()
    picture = Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels[..., :3])
    picture.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    kind = "png" if max(levels.shape[:2]) <= SMALL else "jpeg"
    buffer = io.BytesIO()
    picture.save(buffer, kind, optimize=True)
    return {"source": data_uri(buffer.getvalue(), kind), "alt": alt}


def picture_of(run: Run, row: pd.Series, most: int, counted: int | None = None) -> Values:
    """Make the picture of a row of the leakage table: a strip of pairs, in groups that stay side by side on a narrow
    screen. most, counted: as `strip_of` has them. label: of the upper images."""
    strip = strip_of(run, row, "", most, counted)
    pairs = [_pair(strip, place) for place in range(len(strip))]
    together = min(TOGETHER, -(-len(pairs) // 2)) if len(pairs) > TOGETHER else max(len(pairs), 1)
    groups = [pairs[start : start + together] for start in range(0, len(pairs), together)]
    return {"title": where_of(row), "caption": caption_of(row, strip), "label": strip.label, "groups": groups}


def _pair(strip: Strip, place: int) -> Values:
    """Make a private image, if it is known, above its reconstruction, and a note below."""
    if strip.private is None:
        return {"private": None, "guess": tile(strip.guesses[place], f"reconstruction {place + 1}"), "note": ""}
    l2 = f"L2 {distance(float(strip.l2[place]))}"
    upper = tile(strip.private[place], f"{strip.label} image {place + 1}")
    guess = tile(strip.guesses[place], f"reconstruction of {strip.label} image {place + 1}, {l2}")
    return {"private": upper, "guess": guess, "note": l2}


def distance(l2: float) -> str:
    """Return a distance with two digits; nearly exact copies with an exponent, not as 0.00."""
    return f"{l2:.2f}" if l2 >= 0.005 or l2 == 0 else f"{l2:.0e}".replace("e-0", "e-")


def caption_of(row: pd.Series, strip: Strip) -> str:
    """Describe a picture in a sentence."""
    where, attack = sentence(where_of(row))[:-1], row["attack"]
    of = f" of {strip.total}" if strip.total > len(strip) else ""
    nouns = "image" if len(strip) == 1 else "images"
    if strip.private is None:
        return f"{where}: {len(strip)}{of} {nouns} that {attack} found. Nobody compared them with the truth."
    count = int(row["recovered"])
    recovered = "all" if count == row["num_private"] > 1 else f"{count} of {row['num_private']}"
    held = 0 if pd.isna(row.get("held")) else int(row["held"])
    more = f" ({held} with those it held back)" if held > count else ""
    floor = leakage_floor(row)
    beside = "" if np.isnan(floor) else f" (the floor is {floor:.2f})"
    return (
        f"{where}: {len(strip)}{of} {row['target']} {nouns} above what {attack} made of the update; {recovered} "
        f"recovered{more}. Leakage {row['leakage']:.2f}{beside}, median L2 distance {distance(row['l2_median'])}."
    )


def chart_of(drawn: Drawn) -> Values:
    """Encode a figure; width: in CSS pixels, at which its letters are as large as they were drawn."""
    with Image.open(drawn.path) as image:
        width = round(image.width / DPI * CSS_PIXELS)
        small = io.BytesIO()
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return vars(drawn) | {"source": data_uri(small.getvalue(), "png"), "width": width}
