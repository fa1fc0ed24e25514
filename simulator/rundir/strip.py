"""A strip of images: private ones above what an attack made of them, for a page, a notebook and figures."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pandas as pd
from torch import Tensor

from attacks.interface.normalization import Pictures
from attacks.scoring.images import RECOVERED_PSNR, hungarian_match, lengths
from attacks.scoring.leakage import LOOSE
from attacks.scoring.recognition import Views, comparable, smoothed, unmoved
from simulator.results.columns import leakage_floor
from simulator.results.disk import load_images
from simulator.results.keys import ObservationKey, owner
from simulator.results.schema import LEAKAGE
from simulator.results.storage import CellStore
from simulator.rundir.exposure_rows import COUNTS, exposure_rows

MOST = 10  # pairs


class Images(Protocol):
    """The part of a run that strips are made of."""

    def samples_of(self, row: pd.Series) -> pd.DataFrame: ...

    def store(self, cell: str = "") -> CellStore: ...

    def private_images(self, key: ObservationKey, cell: str = "") -> Tensor | None: ...


@dataclass(frozen=True, eq=False)
class Strip:
    """Private images above what was made of them.

    private: (K, C, H, W) in [0, 1], in the order to show; None where nobody has them, and the guesses stand alone.
    guesses: likewise.
    l2: (K,), their distances.
    label: what the upper images are, written beside the first.
    total: pairs that there are, those not shown among them.
    """

    title: str
    private: Tensor | None
    guesses: Tensor
    l2: np.ndarray
    label: str = "private"
    total: int = 0

    def __len__(self) -> int:
        return len(self.guesses)

    @property
    def heading(self) -> str:
        """The title, and if not all images are shown, how many of how many."""
        if not len(self):
            return f"{self.title}: nothing returned"
        which = "the first" if self.private is None else "the closest"
        return f"{self.title} ({which} {len(self)} of {self.total} shown)" if self.total > len(self) else self.title

    def lines(self, columns: int) -> Iterator["Strip"]:
        """Cut the strip into pieces of at most `columns` pairs, the first with the heading; one without images."""
        for start in range(0, max(len(self), 1), columns):
            part = slice(start, start + columns)
            private = None if self.private is None else self.private[part]
            title = "" if start else self.heading if len(self) else self.title
            yield replace(self, title=title, private=private, guesses=self.guesses[part], l2=self.l2[part], total=0)

    def pictures(self) -> Pictures:
        """Return the strip for a notebook, or a PNG file."""
        if self.private is None:
            return Pictures(self.title, (("found", self.guesses),))
        captions = tuple(f"L2 {distance:.2g}" for distance in self.l2)
        return Pictures(self.title, ((self.label, self.private), ("reconstructed", self.guesses)), captions)


def strip_of(run: Images, row: pd.Series, title: str, most: int = MOST, counted: int | None = None) -> Strip:
    """Make the strip of a row of the leakage table: at most `most` reconstructions, matched as a verdict counts
    them, the closest first, with the images of the row's target, or, if the row has no scores, the best ones, of those
    held back where none was returned. counted: how many of them there are as a verdict counts, those that are recovered
    before others; default all."""
    path = run.store(cell_of(row)).reconstruction_path(ObservationKey.of(row), row["attack"])
    found, own, label = load_images(path), run.samples_of(row), str(row["target"])
    if own.empty:
        if not len(found) and row["num_held"] > 0:  # an eye may know them
            found, title = load_images(path, "held"), f"{title}; held back, not sure"
        found = found[:counted]
        return Strip(title, None, found[:most], np.full(min(most, len(found)), np.nan), label, len(found))
    own, private = own.assign(recovered=own.identified & (own.psnr >= RECOVERED_PSNR)), scored_against(run, row)
    matched = own[own.match >= 0].sort_values("l2", kind="stable")
    judged = exposure_rows(pd.DataFrame([row]).assign(target="private")).iloc[0]
    if judged.measure in LOOSE and judged.best > judged.recovered and comparable(private):
        matched = _alike(own, private[own.image.tolist()], found, row.recognized_threshold)
    if counted is not None:
        matched = pd.concat([matched[matched.recovered], matched[~matched.recovered]]).head(counted)
    shown = matched.head(most)
    upper, lower = private[shown.image.tolist()], found[shown.match.tolist()]
    return Strip(title, upper, lower, shown.l2.to_numpy(), label, len(matched))


def _alike(own: pd.DataFrame, private: Tensor, found: Tensor, least: float) -> pd.DataFrame:
    """Match samples anew as `recognized` counts: first as many pairs as may be that are recovered, or more alike than
    `least` and alike to no other image as much, each the most alike first."""
    likeness = Views(smoothed(found)).likeness(unmoved(smoothed(private))).astype(float)
    recovered = own.recovered.to_numpy(bool)
    known = (likeness > least) & (likeness == likeness.max(0))
    known[np.flatnonzero(recovered), own.match[recovered]] = True
    match = hungarian_match(-likeness - len(private) * known)
    places = np.flatnonzero(match >= 0)
    places = places[np.lexsort((-likeness[places, match[places]], ~known[places, match[places]]))]
    match = match[places]
    return own.iloc[places].assign(match=match, l2=lengths(found[match] - private[places]))


def scored_against(run: Images, row: pd.Series) -> Tensor:
    """Read the images (N, C, H, W) that a row was scored against, in the order of the column `image` of samples."""
    cell, key = cell_of(row), ObservationKey.of(row)
    if row["target"] == "distilled":
        store = run.store(cell)
        return store.load_distilled(key.round, store.recorded(key).clients)
    images = run.private_images(key, cell)
    assert images is not None  # the row was scored against them
    return images


def cell_of(row: pd.Series) -> str:
    """Return the cell of a row; "" without a sweep."""
    return str(row.get("cell", "") or "")


def where_of(row: pd.Series) -> str:
    pairs = (part.partition("=") for part in cell_of(row).split(","))
    cell = ", ".join(f"{key.replace('_', ' ')} {value}".strip() for key, _, value in pairs)
    return f"{owner(row['client'])}, round {row['round']}{f' ({cell})' if cell else ''}"


def title_of(row: pd.Series, where: str = "") -> str:
    """Say where a row is from, how many images were recovered, and every larger count. where: default `where_of`."""
    where = where or where_of(row)
    if pd.isna(row.get("recovered")):
        return f"{where}: {row['num_reconstructed']} images returned"
    counts = {LEAKAGE.columns[name].heading: row.get(name) for name in COUNTS}
    known = {name: count for name, count in counts.items() if not pd.isna(count)}
    more = [f", {count:.0f} {name}" for name, count in known.items() if count > row["recovered"]]
    return f"{where}: {row['recovered']} of {row['num_private']} recovered{''.join(more)}, leakage {row['leakage']:.2f}"


def worst_pictures(run: Images, row: pd.Series, most: int) -> Pictures:
    """Return the pictures of a row for a notebook: who sees what, and the floor of the leakage."""
    names = (cell_of(row), f"round {row['round']}", owner(row["client"]), row["threat_model"], row["attack"])
    floor = leakage_floor(row)
    beside = "" if np.isnan(floor) or pd.isna(row["recovered"]) else f" (floor {floor:.2f})"
    return strip_of(run, row, title_of(row, ", ".join(filter(None, names))) + beside, most=most).pictures()
