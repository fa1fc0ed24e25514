"""Every experiment says what its full size would cost, before it begins."""

import pytest
import torch

from simulator.paper.command import load_file, prices
from simulator.paper.experiment import EXPERIMENTS, ExperimentRun, clocked, seconds_per_step

TIMED = [name for name, experiment in EXPERIMENTS.items() if experiment.cost is not None]
SWEPT = [name for name in EXPERIMENTS if name not in TIMED]
SMALL = {
    "hessian": ["settings.widths=[16, 32]", "settings.training_widths=[16, 32]", "settings.seeds=[0]"],
    "appendix_b": ["settings.candidates=[10, 20]"],
}
IMAGES = ["partition.images=10", "model.width=16", "data.public=60", "data.test=20", "seed=0"]


class Reached(Exception):
    pass


def run_of(name, tmp_path, profile, overrides, said=None):
    source = load_file(name, profile, overrides)
    return ExperimentRun(
        name, profile, source, tmp_path, None, lambda *_: None, (said if said is not None else []).append
    )


@pytest.mark.parametrize("name", SWEPT)
def test_what_is_not_timed_is_a_run_which_says_its_cost(name, tmp_path, monkeypatch):
    def reached(self):
        raise Reached

    monkeypatch.setattr(ExperimentRun, "sweep", reached)
    with pytest.raises(Reached):
        EXPERIMENTS[name].measure(run_of(name, tmp_path, "full", []), None)


@pytest.mark.parametrize("name", TIMED)
def test_what_is_no_run_is_timed(name, tmp_path):
    torch.set_num_threads(1)
    sizes = ["settings.sizes=[4]"] if name in ("table1", "figure8", "figure9", "figure13", "figure14") else []
    onion = ["settings.drop=2", "settings.until=6"] if name in ("figure6", "figure21") else []
    few = ["settings.distilled=[2, 4]"] if name == "theorem2" else []
    overrides = SMALL.get(name, [*IMAGES, *sizes, *onion, *few])
    said = []
    run = run_of(name, tmp_path, "quick", overrides, said)
    assert 0 < EXPERIMENTS[name].cost(run, run.check(EXPERIMENTS[name].settings)) < 3600
    if name == "figure6":
        # 3 attacks and 2 on second networks, a network each; 3 random draws and one by |α|, twice
        assert said == ["1 onion of 3 stages: 13 networks to train, 5 attacks of 1500 iterations"]


def test_what_is_measured_in_this_process_has_the_threads_of_an_attack(tmp_path):
    """By default torch takes all cores, and figures would depend on how many there are."""
    torch.set_num_threads(2)
    prices_of_hessian = dict(prices("hessian", SMALL["hessian"]))
    assert torch.get_num_threads() == 1 and "quick" in prices_of_hessian
    assert run_of("figure6", tmp_path, "quick", [*IMAGES, "engine.threads=2"]).threads == 2


def test_what_goes_before_the_steps_is_not_counted(monkeypatch):
    now = 0.0

    def run(steps):
        nonlocal now
        now += 0.1 + 0.01 * steps

    monkeypatch.setattr("simulator.paper.experiment.work_seconds", lambda: now)
    assert seconds_per_step(run) == pytest.approx(0.01)
    assert clocked(lambda: run(5)) == pytest.approx(0.15)
