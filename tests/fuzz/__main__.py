"""`make fuzz`: every kind of input in a process of its own, and a table of what came of it."""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

from tests.fuzz.harness import Report, fuzz
from tests.fuzz.kinds import KINDS

SHARE = {"plan": 0.2, "run folder": 0.2, "mailed run": 0.02}  # of what the others get: these take longest
MOST_ADDRESSES = 16 * 2**30  # bytes: a bomb ends in a MemoryError, not in a machine that swaps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="inputs of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--keep", type=Path, default=Path("runs/fuzz"), help="where findings are kept")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    kinds = given.kinds.split(",")
    if given.one:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
        print(json.dumps(fuzz(kinds[0], given.count, given.seed, given.keep).as_json()))
        return 0
    total = sum(SHARE.get(kind, 1.0) for kind in kinds)
    reports = []
    print(f"{'kind':<15} {'inputs':>7} {'refused':>8} {'read':>7} {'findings':>9} {'slowest':>8} {'beyond start':>13}")
    for kind in kinds:
        report = apart(kind, round(given.count * SHARE.get(kind, 1.0) / total), given.seed, given.keep)
        reports.append(report)
        done = report.refused + report.read + len(report.findings)
        print(
            f"{kind:<15} {done:>7} {report.refused:>8} {report.read:>7} {len(report.findings):>9} "
            f"{report.slowest:>6.1f} s {report.mib:>9.0f} MiB",
            flush=True,
        )
        for what in sorted({what for what, _ in report.findings}):
            place = next(place for other, place in report.findings if other == what)
            print(f"    {what}: {place}")
    return int(any(report.findings for report in reports))


def apart(kind: str, count: int, seed: int, keep: Path) -> Report:
    """In a process of its own: a crash is a finding of that kind, and memory is counted from its start."""
    command = [sys.executable, "-m", "tests.fuzz", "--one", "--kinds", kind, "--count", str(count)]
    done = subprocess.run(
        [*command, "--seed", str(seed), "--keep", str(keep)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return Report(kind, findings=[(f"the process ended with {done.returncode}: {done.stderr[-300:]}", "")])
    return Report(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    sys.exit(main())
