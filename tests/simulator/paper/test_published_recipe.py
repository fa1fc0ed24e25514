from simulator.paper.command import load_file
from simulator.paper.experiment import EXPERIMENTS

PUBLISHED = {"dual_normalization": "mean", "scale_duals": False, "schedule": "constant", "patience": 0}
OURS = {"one_step"}  # its duals, η/N times a residual, are as small as a step of the published recipe


def test_the_full_profiles_attack_as_the_authors_do():
    for name in set(EXPERIMENTS) - OURS:
        for options in load_file(name, "full", []).data.get("adversary", {}).get("attacks", []):
            if options["name"] == "ntk":
                assert {**PUBLISHED, "learning_rate": 0.02}.items() <= options.items(), name


def test_the_onion_too():
    assert load_file("figure6", "full", []).data["settings"]["attack"] == {**PUBLISHED, "kernel": "final"}
