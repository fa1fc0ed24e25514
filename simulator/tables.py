"""The leakage table as a person reads it in a terminal."""

import json

import pandas as pd
from rich.table import Table

SHOWN = {
    "round": "round",
    "client": "client",
    "threat_model": "threat",
    "attack": "attack",
    "num_private": "private",
    "recovered": "recovered",
    "leakage": "leakage",
    "l2_median": "L2 median",
    "floor_l2_median": "(floor)",
    "psnr_best": "PSNR best",
    "psnr_mean": "PSNR mean",
    "floor_psnr_mean": "(floor)",
    "ssim_mean": "SSIM",
    "kernel_distance": "kernel dist.",
    "knowledge": "knows",
}
COUNTS = ("round", "num_private", "recovered")
MAX_ROWS = 60


def leakage_table(frame: pd.DataFrame, swept: list[str]) -> Table:
    """One line per row of the table; floors stand in parentheses beside the scores they belong to."""
    table = Table(title="Leakage: what the adversary reconstructed", title_justify="left", row_styles=["", "dim"])
    varying = [column for column in ("defense", "seed", *swept) if column in frame and frame[column].nunique() > 1]
    for name in [*varying, *SHOWN.values()]:
        table.add_column(name, justify="left" if name in ("threat", "attack", "knows") else "right", no_wrap=name != "knows")
    for _, row in frame.head(MAX_ROWS).iterrows():
        values = [str(row[column]) for column in varying]
        table.add_row(*values, *[show(column, row) for column in SHOWN])
    if len(frame) > MAX_ROWS:
        table.caption = f"the first {MAX_ROWS} of {len(frame)} rows; the rest is in leakage.csv"
    return table


def show(column: str, row: pd.Series) -> str:
    """One cell: scores rounded, floors in parentheses, faults in words."""
    value = row[column]
    if column == "client":
        return "all" if value < 0 else str(value)
    if column == "knowledge":
        return known(value)
    if row["status"] != "ok" and column in ("recovered", "leakage"):
        return row["status"] if column == "recovered" else ""
    if pd.isna(value):
        return ""
    if column in COUNTS or isinstance(value, str):
        return str(value)
    if column.startswith("floor_"):
        return f"({value:.2f})"
    return f"{value:.4f}" if column == "kernel_distance" else f"{value:.2f}"


def known(knowledge: str) -> str:
    """The names of the granted fields, from the table's JSON."""
    return ", ".join(json.loads(knowledge)) if isinstance(knowledge, str) and knowledge else ""
