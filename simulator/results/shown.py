"""What a run shows of itself in a notebook: its worst row as pictures, and a line for each client."""

from typing import Protocol

import numpy as np
import pandas as pd
from torch import Tensor

from attacks.interface.pictures import Pictures
from simulator.results.floors import FLOORS, better_floor
from simulator.results.formats import load_images
from simulator.results.keys import ALL, ObservationKey
from simulator.results.schema import LEAKAGE
from simulator.results.storage import CellStore

MOST_LINES = 20  # of the table
LINE = ["cell", "round", "client", "threat_model", "attack", "defense", "recovered", "num_private", "num_reconstructed"]
LINE += ["leakage", *(floor.format("leakage") for floor in FLOORS)]


class Tables(Protocol):
    """As much of a run as pictures are made of."""

    @property
    def samples(self) -> pd.DataFrame: ...

    def store(self, cell: str = "") -> CellStore: ...

    def private_images(self, key: ObservationKey, cell: str = "") -> Tensor | None: ...


def worst_first(leakage: pd.DataFrame) -> pd.DataFrame:
    """Rows of the leakage table, those in which most leaked first: without the truth, those that returned most."""
    columns = ["recovered_fraction", "leakage", "num_reconstructed"]
    return leakage.sort_values(columns, ascending=False, kind="stable", na_position="last")


def worst_table(leakage: pd.DataFrame) -> pd.DataFrame:
    """The worst row of each client, and of all together, in as many columns as people read."""
    rows = worst_first(leakage[(leakage.status == "ok") & (leakage.target == "private")])
    worst = rows.groupby("client", sort=False).head(1).head(MOST_LINES)
    named = worst.assign(client=worst.client.astype(str).where(worst.client != ALL, "all")).round(2)
    return named[[name for name in LINE if name in named and named[name].notna().any()]]


def matched_pictures(run: Tables, row: pd.Series, most: int) -> Pictures:
    """Of a row of the leakage table: private images above their reconstructions, the closest first; what the attack
    returned alone where nobody knows the private ones."""
    key, cell = ObservationKey.of(row), str(row.get("cell", ""))
    found = load_images(run.store(cell).reconstruction_path(key, row["attack"]))
    who = "all clients" if key.client == ALL else f"client {key.client}"
    where = f"{f'{cell}, ' if cell else ''}round {key.round}, {who}, {key.threat_model}, {row['attack']}"
    private = run.private_images(key, cell)
    if private is None or pd.isna(row["recovered"]):
        return Pictures(f"{where}: {len(found)} images found", (("found", found[:most]),))
    own = _samples_of(run.samples, row)
    own = own[own.match >= 0].sort_values("l2", kind="stable").head(most)
    title = f"{where}: {row['recovered']:.0f} of {row['num_private']:.0f} recovered, leakage {row['leakage']:.2f}"
    strips = (("private", private[own.image.tolist()]), ("reconstructed", found[own.match.tolist()]))
    captions = tuple(f"L2 {distance:.2g}" for distance in own.l2)
    return Pictures(f"{title} (floor {better_floor(row, LEAKAGE.columns['leakage']):.2f})", strips, captions)


def _samples_of(samples: pd.DataFrame, row: pd.Series) -> pd.DataFrame:
    keys = ["round", "client", "threat_model", "attack", "target", *(["cell"] if row.get("cell") else [])]
    return samples[np.logical_and.reduce([samples[name] == row[name] for name in keys])]
