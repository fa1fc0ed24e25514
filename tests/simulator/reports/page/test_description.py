"""What a page says of how it was made."""

from simulator.reports.page.pictures import audit_command


def test_the_command_of_an_audit_has_what_was_asked_for():
    asked = {
        "recording": "runs/mine", "model": "task.py:Net", "shape": [1, 8, 8], "mean": [0.3], "std": [], "truth": None,
        "public": "others.npz", "candidates": "mine.npz", "rounds": [1, 3], "clients": [-1],
        "threat_models": ["observer"],
        "attacks": [{"name": "span", "label": "span"}],
    }  # fmt: skip
    assert audit_command(asked, "again") == (
        "fedspill audit runs/mine --model task.py:Net --shape 1,8,8 --mean 0.3 --public others.npz "
        "--candidates mine.npz --round 1 --round 3 --client -1 --threat-model observer --attack span --out again"
    )
