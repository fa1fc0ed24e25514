"""The tables of a run: rows are appended to a journal as they come, and written as parquet and CSV at the end."""

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd

from simulator.evaluation.job import JobResult, row_order

LEAKAGE_COLUMNS = (
    "round client threat_model attack defense seed target status detail num_private num_inferred num_reconstructed "
    "l2_min l2_median l2_mean psnr_best psnr_mean ssim_mean recovered recovered_fraction floor_l2_median "
    "floor_psnr_mean floor_recovered_fraction leakage relative_residual kernel_distance delta_l2 delta_linf knowledge "
    "seconds floor_leakage hungarian_psnr_mean floor_hungarian_psnr_mean membership_auc membership_tpr adaptive "
    "distilled_l2_median linearization_error hessian_norm unexplained verdict layer_ranks attacker_images "
    "attacker_kernel_distance attacker_linearization_error attacker_hessian_norm attacker_verdict "
    "mean_image_l2_median mean_image_psnr_mean mean_image_leakage"
).split()
SAMPLE_COLUMNS = (
    "round client threat_model attack defense seed target image l2 psnr ssim dual identified match floor_l2 "
    "mean_image_l2"
).split()
UTILITY_COLUMNS = "round defense seed test_accuracy test_loss client_loss clients epsilon".split()
CLIENT_COLUMNS = (
    "round client defense seed status detail num_examples steps first_loss last_loss seconds worker pid gpu_ids device "
    "epsilon bytes"
).split()
JOURNAL = "ledger.jsonl"
TABLES = {
    "leakage": LEAKAGE_COLUMNS,
    "samples": SAMPLE_COLUMNS,
    "utility": UTILITY_COLUMNS,
    "clients": CLIENT_COLUMNS,
}
INTEGERS = ("num_private", "num_inferred", "num_reconstructed", "recovered", "num_examples", "steps", "pid")


class Ledger:
    """Append-only journal of a run directory, one JSON object a line, and the tables made of it.

    A cell of a sweep counts once it is marked done: reopening an interrupted run keeps done cells and drops the rest.
    """

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.journal = run_dir / JOURNAL
        entries = read_journal(self.journal)
        self.done = finished_cells(run_dir)
        kept = [entry for entry in entries if entry.get("cell", entry.get("done")) in self.done]
        partial = self.journal.with_suffix(".partial")
        partial.write_text("".join(json.dumps(entry) + "\n" for entry in kept))
        os.replace(partial, self.journal)

    def add(self, table: str, cell: str, order: tuple[Any, ...], row: dict[str, Any]) -> None:
        self._append({"table": table, "cell": cell, "order": order, "row": row})

    def add_result(self, cell: str, result: JobResult) -> None:
        """A finished attack: its rows of the leakage table and its samples, in one write."""
        entries = []
        for part in (result, *result.more):
            entries.append({"table": "leakage", "cell": cell, "order": part.order, "row": part.row})
            for sample in part.samples:
                order = (*row_order(cell, sample), sample["image"])
                entries.append({"table": "samples", "cell": cell, "order": order, "row": sample})
        self._append(*entries)

    def mark_done(self, cell: str) -> None:
        self._append({"done": cell})
        self.done.add(cell)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table, sorted, with its fixed columns first and those of a sweep after them."""
        entries = [entry for entry in read_journal(self.journal) if "table" in entry]
        frames = {}
        for name, columns in TABLES.items():
            own = sorted((entry for entry in entries if entry["table"] == name), key=lambda entry: entry["order"])
            frame = pd.DataFrame([entry["row"] for entry in own])
            extra = [column for column in frame.columns if column not in columns]
            frame = frame.reindex(columns=[*columns, *extra])
            for column in set(INTEGERS) & set(frame.columns):
                frame[column] = pd.array(pd.to_numeric(frame[column]), dtype="Int64")
            frames[name] = frame
        return frames

    def write_tables(self) -> dict[str, pd.DataFrame]:
        """leakage.csv and one parquet file per table, each replaced in one step."""
        frames = self.tables()
        for name, frame in frames.items():
            partial = self.run_dir / f".{name}.partial"
            frame.to_parquet(partial, index=False)
            os.replace(partial, self.run_dir / f"{name}.parquet")
        partial = self.run_dir / ".leakage.partial"
        frames["leakage"].to_csv(partial, index=False)
        os.replace(partial, self.run_dir / "leakage.csv")
        return frames

    def _append(self, *entries: dict[str, Any]) -> None:
        with self.journal.open("a") as file:
            file.write("".join(json.dumps(entry) + "\n" for entry in entries))
            file.flush()
            os.fsync(file.fileno())


def finished_cells(run_dir: Path) -> set[str]:
    """The cells of a run whose training and attacks are all in its journal."""
    return {entry["done"] for entry in read_journal(run_dir / JOURNAL) if "done" in entry}


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Every entry; none where there is no journal yet."""
    if not path.exists():
        return []
    entries = []
    for line in path.read_text().splitlines():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:  # the last line of a run that was killed while writing it
            continue
    return entries
