"""Every experiment says what its full size would cost, before it begins."""

import time

import pytest
import torch

from simulator.paper.base import EXPERIMENTS, Job
from simulator.paper.costs import STEPS, clocked, seconds_per_step
from simulator.paper.files import load_file

TIMED = [name for name, experiment in EXPERIMENTS.items() if experiment.cost is not None]
SWEPT = [name for name in EXPERIMENTS if name not in TIMED]
SMALL = {
    "hessian": ["settings.widths=[16, 32]", "settings.training_widths=[16, 32]", "settings.seeds=1"],
    "appendix_b": ["settings.candidates=[10, 20]"],
}
IMAGES = ["partition.images=10", "model.width=16", "data.public=60", "data.test=20", "seed=0"]


class Reached(Exception):
    pass


def job_of(name, tmp_path, profile, overrides, said=None):
    source = load_file(name, profile, overrides)
    return Job(name, profile, source, tmp_path, None, lambda *_: None, (said if said is not None else []).append)


@pytest.mark.parametrize("name", SWEPT)
def test_what_is_not_timed_is_a_run_which_says_its_cost(name, tmp_path, monkeypatch):
    def reached(self, scenario=None, folder="run"):
        raise Reached

    monkeypatch.setattr(Job, "sweep", reached)
    with pytest.raises(Reached):
        EXPERIMENTS[name].measure(job_of(name, tmp_path, "full", []))


@pytest.mark.parametrize("name", TIMED)
def test_what_is_no_run_is_timed(name, tmp_path):
    torch.set_num_threads(1)
    sizes = ["settings.sizes=[4]"] if name in ("table1", "figure8", "figure9", "figure13", "figure14") else []
    onion = ["settings.drop=2", "settings.until=6"] if name in ("figure6", "figure21") else []
    few = ["settings.distilled=[2, 4]"] if name == "theorem2" else []
    overrides = SMALL.get(name, [*IMAGES, *sizes, *onion, *few])
    said = []
    job = job_of(name, tmp_path, "quick", overrides, said)
    assert 0 < EXPERIMENTS[name].cost(job) < 3600
    if onion:
        # 3 stages: 3 attacks and 2 on second networks; 5 networks for them, and 3 random draws and one by |α| twice
        count = 2 if name == "figure21" else 1
        assert said == [f"{count} onions of 3 stages: {13 * count} networks to train, {5 * count} attacks of 1500 iterations"]


def test_what_goes_before_the_steps_is_not_counted():
    def run(steps):
        time.sleep(0.2 + 0.02 * steps)

    assert 0.02 <= seconds_per_step(run) < 0.2 / STEPS + 0.02
    assert clocked(lambda: time.sleep(0.05)) >= 0.05
