"""What a page says of how it was made."""

from simulator.reports.page.pages import repeat
from simulator.reports.page.pictures import audit_command


def test_options_of_attacks_that_no_command_has_are_said_to_be_left_out(record):
    record.description = {"audit": {"attacks": [{"name": "ntk", "label": "ntk", "options": {"iterations": 5}}]}}
    command, needs = repeat(record, "audit", "mine")
    assert command.startswith("fedspill audit RECORDING --attack ntk --out ")
    assert needs.startswith("The options of ntk are given in Python, `fedspill.audit(attacks=…)`.")


def test_the_command_of_an_audit_has_what_was_asked_for():
    asked = {
        "recording": "runs/mine", "model": "task.py:Net", "shape": [1, 8, 8], "mean": [0.3], "std": [], "truth": None,
        "public": "others.npz", "candidates": "mine.npz", "rounds": [1, 3], "clients": [-1],
        "threat_models": ["observer"],
        "owners": {"0": "client 0"}, "knowledge": {"num_private": 20, "batch_size": False}, "seed": 3,
        "attacks": [{"name": "span", "label": "span"}, {"name": "my net.py:Own", "label": "own"}],
    }  # fmt: skip
    assert audit_command(asked, "again") == (
        "fedspill audit runs/mine --model task.py:Net --shape 1,8,8 --mean 0.3 --public others.npz "
        "--candidates mine.npz --seed 3 --owner '0=client 0' --know num_private=20 --know batch_size=false --round 1 "
        "--round 3 --client -1 --threat-model observer --attack span --attack 'my net.py:Own' --out again"
    )
