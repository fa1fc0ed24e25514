"""The quick benchmark of defenses gives its rows of the recorded table, on a busy machine as on an idle one.

The table is of the profile `more`; `quick` runs fewer rows of the same cells.

`make test-all` runs it; minutes of two cores, no part of `make test`. Where the scenario or what it measures has
changed on purpose, `python -m tests.benchmarks.recorded_defenses --record` writes the table anew, and says what
differs.

Processors round differently, and a row may be on an edge: an attack that is sure of itself by a hair on one returns
nothing on the other. The table has therefore every row twice, as one processor gives it and as it does without
AVX-512. On a processor that was recorded a row has to be the very same. On any other its figures may lie between the
two and ROOM beyond: of 274 rows the two differed by at most 0.15 of what is recovered, 0.23 of what is held and 0.14 of
the accuracy, but for one defense, quantization, of which the observer's attack returns 0.68 or nothing. What is
counted, or follows from the scenario alone, has to be the same everywhere, and no attack may fail or run out of time.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import torch

from simulator.reports.benchmark_table import KEY
from simulator.rundir.run import Run
from simulator.scenario.benchmark import load_benchmark
from tests.capacity import beyond_capacity

SCENARIO = Path(__file__).parents[2] / "scenarios" / "defenses.yaml"
RECORDED = Path(__file__).with_name("recorded_defenses.csv")
QUICK, ALL = "quick", "more"
OLDER = {  # without AVX-512, as PyTorch and the libraries below it are told
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}
PROCESSOR, OF_THE_MACHINE = "processor", "client_seconds"
FIGURES = ["recovered_fraction", "leakage", "held_fraction", "membership_auc", "test_accuracy"]
SAME_EVERYWHERE = ["seeds", "failures", "epsilon", "bytes", "prior_success", "reconstruction_bound"]
ROUNDING, ROOM = 1e-6, 0.25


def test_the_quick_benchmark_gives_the_recorded_table(tmp_path):
    assert RECORDED.exists(), "no table is recorded yet: python -m tests.benchmarks.recorded_defenses --record"
    recorded = pd.read_csv(RECORDED)
    run = {cell.scenario.defense for cell in load_benchmark(SCENARIO, QUICK).cells()}
    assert run <= set(recorded.defense)
    assert differences(measured(SCENARIO, tmp_path / "out", QUICK), recorded[recorded.defense.isin(run)]) == []


def measured(scenario: Path, out: Path, profile: str = ALL, environment: Mapping[str, str] = {}) -> pd.DataFrame:
    """benchmark.csv of a profile, and the processor. AssertionError where an attack has no result."""
    command = [Path(sys.executable).with_name("fedspill"), "benchmark", scenario, "--profile", profile, "--out", out]
    command += ["--set", "output.figures=false"]
    surroundings = {**os.environ, **environment}
    ended = subprocess.run(command, capture_output=True, text=True, env=surroundings, check=False)
    assert ended.returncode == 0, ended.stderr
    leakage = Run(out).leakage
    assert set(leakage.status) <= {"ok", "skipped"} and beyond_capacity(leakage).empty
    table = pd.read_csv(out / "benchmark.csv").drop(columns=OF_THE_MACHINE)
    table.insert(0, PROCESSOR, processor(bool(environment)))
    return table


def processor(older: bool = False) -> str:
    """What decides how PyTorch rounds."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        name = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "unknown")
    return f"{name}, {'AVX2' if older else torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def differences(found: pd.DataFrame, recorded: pd.DataFrame) -> list[str]:
    """A line for every row that only one table has, and for every value that is not what it has to be."""
    own = recorded[recorded[PROCESSOR] == found[PROCESSOR].iloc[0]]
    known = recorded if own.empty else own
    here, there = found.set_index(KEY), known.set_index(KEY)
    lines = [f"{key}: gone" for key in there.index.difference(here.index)]
    lines += [f"{key}: not recorded" for key in here.index.difference(there.index)]
    lines += [f"{name}: a column of one table only" for name in here.columns.symmetric_difference(there.columns)]
    names = [*FIGURES, *SAME_EVERYWHERE] if own.empty else there.columns.drop(PROCESSOR)
    for name in here.columns.intersection(names):
        more = ROOM if own.empty and name not in SAME_EVERYWHERE else ROUNDING
        for key in here.index.intersection(there.index):
            value, values = here.at[key, name], there.loc[[key], name].drop_duplicates().tolist()
            if not lies_between(value, values, more):
                lines.append(f"{key} {name}: {value}, recorded {' to '.join(sorted(map(str, values)))}")
    return sorted(lines)


def lies_between(value: float | str, values: list, room: float) -> bool:
    """Whether a cell is one of those recorded, or a number between the least and the greatest of them."""
    if pd.isna(value) or isinstance(value, str):
        return value in values or (pd.isna(value) and any(map(pd.isna, values)))
    numbers = [each for each in values if pd.notna(each) and not isinstance(each, str)]
    if not numbers:
        return False
    room *= max(1.0, abs(max(numbers)))
    return min(numbers) - room <= value <= max(numbers) + room


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the table anew")
    parser.add_argument("--scenario", type=Path, default=SCENARIO)
    parser.add_argument("--table", type=Path, default=RECORDED)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(given.scenario, Path(folder) / "out")
        if given.table.exists():
            print(*differences(found, pd.read_csv(given.table)), sep="\n")
        if given.record:
            older = measured(given.scenario, Path(folder) / "older", environment=OLDER)
            pd.concat([found, older]).to_csv(given.table, index=False)


if __name__ == "__main__":
    main()
