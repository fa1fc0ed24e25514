import torch

from attacks import Knowledge, Observation
from simulator.adversary.attack_run import AttackRun
from simulator.scenario.scenario import validate
from simulator.scenario.sections import AttackConfig
from simulator.scenario.yaml_source import Source

NOISY = {"name": "s", "defenses": [{"name": "noise", "scale": 0.5}]}


def attack_run(adaptive):
    config = AttackConfig.model_validate({"name": "mean_image", "adaptive": adaptive})
    return AttackRun.of(config, validate(Source(NOISY)))


def test_an_adaptive_attack_knows_the_defense_and_another_does_not():
    granted = Knowledge(num_private=3)
    assert attack_run(adaptive=True).knowledge(granted) == Knowledge(num_private=3, noise_scale=0.5)
    assert attack_run(adaptive=False).knowledge(granted) == granted


def test_a_run_gives_its_attack_all_that_it_may_know(monkeypatch):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    state = model.state_dict()
    observation = Observation(model, ((state, {name: value + 0.1 for name, value in state.items()}),), (1, 2, 2))
    given = []
    monkeypatch.setattr("attacks.baselines.MeanImage.run", lambda self, *args: given.append(args[1]))
    attack_run(adaptive=True).run(observation, Knowledge())
    assert given == [Knowledge(noise_scale=0.5)]
