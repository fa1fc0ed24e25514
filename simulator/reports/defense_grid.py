"""What is left of the same private images under each defense: one line of pictures for every defense."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch import Tensor

from simulator.evaluation.truth import Truth
from simulator.reports.drawing import UNDEFENDED, Drawn, save
from simulator.reports.strips import show, who
from simulator.results.formats import load_images
from simulator.results.keys import ALL, ObservationKey
from simulator.results.run import Run

COLUMNS = 8  # of images
ACROSS, MOST_IN_ONE = 2, 5  # columns of lines where there are more lines than that
IMAGE, GAP, NAMES = 0.5, 0.03, 1.55  # inches; NAMES: of the text left of a line


@dataclass(frozen=True, eq=False)
class Line:
    """A defense, what became of the images under it, and its reconstructions: (C, H, W), or None where none was
    returned that matches the image."""

    defense: str
    outcome: str
    guesses: Sequence[Tensor | None]


def defense_grid(record: Run, path: Path) -> Drawn | None:
    """The same private images of one client for every defense, above what the best attack makes of them.

    At the first seed and the last attacked round: the client from which most is recovered without a defense.
    """
    good = record.leakage[(record.leakage.status == "ok") & (record.leakage.target == "private")]
    good = good[(good.seed == good.seed.min()) & (good["round"] == good["round"].max())]
    if good.empty:
        return None
    ranked = good.sort_values(["recovered_fraction", "leakage"], kind="stable", na_position="first")
    single = ranked[ranked.client != ALL]
    plain = single[single.defense == UNDEFENDED]
    first = next(rows for rows in (plain, single, ranked) if len(rows)).iloc[-1]
    client, order = int(first["client"]), list(dict.fromkeys(cell.scenario.defense for cell in record.cells.values()))
    images = matches(record, first).sort_values("l2", kind="stable").image.head(COLUMNS).tolist()
    private = _private(record, str(first.get("cell", "")), [client] if client != ALL else _clients(record, first))
    tried = (_line(record, ranked[ranked.defense == defense], client, images) for defense in order)
    lines = [line for line in tried if line is not None]
    _draw(private[images], lines, path)
    of = f"{who(client)}, round {first['round']}, seed {first['seed']}"
    return Drawn(
        path,
        "The same images under every defense",
        f"The same {len(images)} of {len(private)} private images ({of}) and what the best attack makes of them under "
        "each defense. An empty frame: nothing returned that matches the image.",
        f"{of}: {'; '.join(f'{line.defense}: {line.outcome}' for line in lines)}.",
    )


def matches(record: Run, row: pd.Series) -> pd.DataFrame:
    """The private images of a row of the leakage table, one line for each: `image`, `match` and `l2`."""
    keys = ["round", "client", "threat_model", "attack", "target", *(["cell"] if row.get("cell") else [])]
    own = record.samples
    for name in keys:
        own = own[own[name] == row[name]]
    return own


def _line(record: Run, rows: pd.DataFrame, client: int, images: Sequence[int]) -> Line | None:
    """Of one defense, from its rows, the strongest attack last. A defense that hides the client is attacked as the
    union of its round, where the client's images have other places."""
    own = rows[rows.client == client]
    own = own if len(own) else rows[rows.client == ALL]
    if own.empty:
        return None
    row = own.iloc[-1]
    cell = str(row.get("cell", ""))
    clients = _clients(record, row)
    before = clients[: clients.index(client)] if row["client"] == ALL and client in clients else []
    start = len(_private(record, cell, before)) if before else 0
    match = matches(record, row).set_index("image").match
    found = load_images(record.store(cell).reconstruction_path(ObservationKey.of(row), row["attack"]))
    places = [int(match.get(start + image, -1)) for image in images]
    guesses = [found[place] if place >= 0 else None for place in places]
    union = "all clients, " if row["client"] == ALL and client != ALL else ""
    return Line(row["defense"], f"{row['recovered']} of {row['num_private']} ({union}{row['attack']})", guesses)


def _clients(record: Run, row: pd.Series) -> list[int]:
    return list(record.store(str(row.get("cell", ""))).recorded(ObservationKey.of(row)).clients)


def _private(record: Run, cell: str, clients: Sequence[int]) -> Tensor:
    return Truth.of(record.cells[cell].scenario, clients, clients).private


def _draw(private: Tensor, lines: Sequence[Line], path: Path) -> None:
    """A line of private images above each column of lines."""
    across = ACROSS if len(lines) > MOST_IN_ONE else 1
    tall = -(-len(lines) // across)
    width, step = NAMES + private.shape[0] * (IMAGE + GAP) + 0.2, IMAGE + 2 * GAP
    figure = plt.figure(figsize=(width * across, step * (tall + 1) + 0.1))
    for number in range(across):
        left = number * width
        _row(figure, (left, 0.0), "private", "", list(private))
        for place, line in enumerate(lines[number * tall : (number + 1) * tall]):
            _row(figure, (left, step * (place + 1) + 0.06), line.defense, line.outcome, line.guesses)
    save(figure, path)


def _row(
    figure: plt.Figure, corner: tuple[float, float], name: str, outcome: str, images: Sequence[Tensor | None]
) -> None:
    """Name and outcome, and images right of them; corner: (from the left, from the top), in inches."""
    width, height = figure.get_size_inches()
    left, bottom = corner[0] + NAMES, height - corner[1] - IMAGE
    middle, lift = (bottom + IMAGE / 2) / height, 0.09 / height if outcome else 0.0
    edge = (left - 0.08) / width
    figure.text(edge, middle + lift, name, fontsize=9, weight="bold", ha="right", va="center")
    figure.text(edge, middle - 0.09 / height, outcome, fontsize=9, color="0.3", ha="right", va="center")
    for column, image in enumerate(images):
        place = (left + column * (IMAGE + GAP), bottom)
        axis = figure.add_axes((place[0] / width, place[1] / height, IMAGE / width, IMAGE / height))
        show(axis, torch.ones(1, 1, 1) if image is None else image)
        if image is None:
            axis.axis("on")
            axis.set(xticks=[], yticks=[])
            plt.setp(axis.spines.values(), visible=True, color="0.75")
