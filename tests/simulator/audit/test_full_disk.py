"""A disk that is full, read-only or gone, at every moment of an audit: one line, and the same command goes on."""

import errno
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from simulator.audit.run_audit import audit
from simulator.run_errors import DiskError
from tests.simulator.audit.recorded import SHAPE, record


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record(tmp_path_factory.mktemp("federation") / "rec", clients=(2, 0, 1))


def audited(recorded, out, **options):
    options = {"attacks": ["mean_image"], "workers": 1, "mean": 0.3, "std": 0.4, "page": False, **options}
    return audit(recorded, f"{recorded}/net.py:net", SHAPE, out=out, **options)


@pytest.fixture
def disk(monkeypatch):
    """Counts what is written; from `disk.full` on, nothing more is taken but half of the first."""

    class Disk:
        writes, full, number = 0, 10**9, errno.ENOSPC

        def take(self, content):
            self.writes += 1
            return content if self.writes < self.full else content[: len(content) // 2 * (self.writes == self.full)]

    disk, write, write_bytes = Disk(), os.write, Path.write_bytes

    def counted(write, target, content):
        taken = disk.take(content)
        if len(taken) < len(content):
            if taken:
                write(target, taken)
            raise OSError(disk.number, os.strerror(disk.number))
        return write(target, content)

    monkeypatch.setattr("simulator.results.ledger.os.write", lambda file, content: counted(write, file, content))
    monkeypatch.setattr(Path, "write_bytes", lambda path, content: counted(write_bytes, path, content))
    return disk


def test_a_disk_that_is_full_at_any_write_is_one_line_and_the_audit_goes_on(recorded, tmp_path, disk):
    chosen = {"clients": [0, 1]}
    whole = audited(recorded, tmp_path / "whole", **chosen).leakage.drop(columns="seconds")
    moments = disk.writes
    assert moments > 15  # description, journal, observations, reconstructions, rows, tables
    stopped = 0
    for full in range(1, moments + 1):
        out = tmp_path / f"full{full}"
        disk.writes, disk.full = 0, full
        with pytest.raises(DiskError, match=r"^'.*' cannot be written \(No space left on device\): [^\n]*$") as caught:
            audited(recorded, out, **chosen)
        stopped += caught.value.tables is not None
        assert not list(out.rglob("*.partial"))
        disk.full = 10**9
        again = audited(recorded, out, **chosen).leakage.drop(columns="seconds")
        kept = again.detail.str.contains("its images are not kept")
        assert kept.sum() <= 1  # scores need no disk: the row was there
        pd.testing.assert_frame_equal(again[~kept], whole[~kept])
    assert stopped > 10  # the rows that there were came with the error


def test_a_folder_that_vanishes_is_one_line_and_its_rows_are_not_lost(recorded, tmp_path, monkeypatch):
    from simulator.evaluation.job import run_job

    def removing(job):
        done = run_job(job)
        if job.key.client == 1:
            shutil.rmtree(tmp_path / "out")
        return done

    monkeypatch.setattr("simulator.audit.run_audit.run_job", removing)
    with pytest.raises(DiskError, match=r"cannot be written \(No such file or directory\)") as caught:
        audited(recorded, tmp_path / "out")
    assert caught.value.tables["leakage"].client.tolist() == [0]
    monkeypatch.undo()
    assert len(audited(recorded, tmp_path / "out").leakage) == 4


def test_a_folder_that_becomes_read_only_is_one_line(recorded, tmp_path, disk):
    disk.full, disk.number = 6, errno.EROFS
    with pytest.raises(DiskError, match=r"cannot be written \(Read-only file system\)"):
        audited(recorded, tmp_path / "out")
