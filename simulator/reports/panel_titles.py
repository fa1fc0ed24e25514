"""What tells one row of a run's tables from another, in words."""

import re

import pandas as pd

from simulator.results.schema import LEAKAGE, SAMPLES

HELPERS = ("cell", "panel", "who")  # columns that are neither of the schema nor swept


def swept_keys(frame: pd.DataFrame) -> list[str]:
    """The settings that a sweep moved, other than the seed and the defenses, which are columns of every table."""
    return [name for name in frame if name not in {*HELPERS, *LEAKAGE.columns, *SAMPLES.columns}]


def short(key: str) -> str:
    """A setting's own name, without its section: `learning rate`."""
    return key.rpartition(".")[2].replace("_", " ")


def in_words(value: object) -> str:
    """A value that a sweep set; a mapping, which tables have as JSON, without its signs: `FedProx, proximal_mu: 50`."""
    return re.sub(r"\b(name|options): ", "", re.sub(r'[{}"]', "", str(value)))


def panel_titles(frame: pd.DataFrame, without: str = "") -> pd.Series:
    """What tells one panel from another: attack, defense, target and the swept settings other than the seed.

    without: a setting that the panels have on an axis.
    """
    titles = frame.attack.astype(str)
    if without != "defense":
        titles = titles + frame.defense.map(lambda name: "" if name == "none" else f", {name}")
    titles = titles + frame.target.map(lambda name: "" if name == "private" else f", {name} images")
    for key in swept_keys(frame):
        if key != without:
            titles = titles + f", {short(key)} " + frame[key].map(in_words)
    return titles
