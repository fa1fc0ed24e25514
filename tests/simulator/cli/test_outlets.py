"""Streams that end before the command does: a pipe without a reader, a full disk, none at all."""

import errno
import io
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.terminal import Outlet, Terminal

FEDSPILL = str(Path(sys.executable).parent / "fedspill")
FULL = Path("/dev/full")


class Ended(io.StringIO):
    def __init__(self, code):
        super().__init__()
        self.code = code

    def write(self, text):
        raise OSError(self.code, "no more")


def in_shell(line, cwd):
    """(exit codes of the pipe's parts, stderr)."""
    command = ["bash", "-c", f"{line}; echo ${{PIPESTATUS[@]}} > codes"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    return [int(code) for code in (cwd / "codes").read_text().split()], result.stderr


def test_a_reader_that_leaves_early_is_nobodys_fault(tmp_path):
    assert in_shell(f"{FEDSPILL} list --json | head -1", tmp_path) == ([0, 0], "")


@pytest.mark.skipif(not FULL.exists(), reason="a device that is always full is one of Linux")
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (
            "list >/dev/full",
            1,
            "fedspill: stdout cannot be written (No space left on device): what was to stand there is lost\n",
        ),
        (
            "check none.yaml >/dev/full",
            2,
            "fedspill: scenario 'HERE/none.yaml' does not exist: give the path of a YAML file\n",
        ),
        ("check none.yaml 2>/dev/full", 2, ""),
        ("list >&- 2>&-", 0, ""),
    ],
)
def test_what_a_stream_did_not_take_is_said_as_far_as_it_can_be(tmp_path, line, code, said):
    assert in_shell(f"{FEDSPILL} {line}", tmp_path) == ([code], said.replace("HERE", str(tmp_path)))


def test_letters_that_an_encoding_does_not_have_end_nothing(tmp_path):
    assert in_shell(f"PYTHONIOENCODING=ascii {FEDSPILL} schema >listed", tmp_path) == ([0], "")
    assert "\\u" in (tmp_path / "listed").read_text(encoding="ascii")


@pytest.mark.parametrize(("code", "lost"), [(errno.ENOSPC, True), (errno.EIO, True), (errno.EPIPE, False)])
def test_an_outlet_takes_everything(code, lost):
    outlet = Outlet(Ended(code))
    print("a line", file=outlet, flush=True)
    assert outlet.failed is not None and outlet.is_lost == lost and not outlet.isatty()


def test_no_run_ends_with_its_screen(monkeypatch):
    """Rich raises SystemExit, which a sweep would take for the end of a cell."""
    monkeypatch.setattr(sys, "stderr", Ended(errno.EPIPE))
    console = Terminal(stderr=True)
    console.print("a line")
    assert console.quiet
