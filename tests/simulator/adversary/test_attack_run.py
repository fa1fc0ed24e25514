import pytest
import torch

from attacks import InputError, Knowledge, Observation, Reconstruction
from simulator.evaluation.attack_run import AttackRun
from simulator.scenario.scenario import validate
from simulator.scenario.sections import AttackConfig
from simulator.scenario.yaml_source import YamlSource

NOISY = {"name": "s", "defenses": [{"name": "noise", "scale": 0.5}]}


def attack_run(adaptive):
    config = AttackConfig.model_validate({"name": "mean_image", "adaptive": adaptive})
    return AttackRun.of(config, validate(YamlSource(NOISY)))


def test_an_adaptive_attack_knows_the_defense_and_another_does_not():
    granted = Knowledge(num_private=3)
    assert attack_run(adaptive=True).knowledge(granted) == Knowledge(num_private=3, noise_scale=0.5)
    assert attack_run(adaptive=False).knowledge(granted) == granted


def test_a_run_gives_its_attack_all_that_it_may_know(monkeypatch):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    state = model.state_dict()
    observation = Observation(model, ((state, {name: value + 0.1 for name, value in state.items()}),), (1, 2, 2))
    given = []
    nothing = Reconstruction(torch.zeros(0, 1, 2, 2), torch.zeros(0))
    monkeypatch.setattr("attacks.baselines.MeanImage.run", lambda self, *args: given.append(args[1]) or nothing)
    attack_run(adaptive=True).run(observation, Knowledge())
    assert given == [Knowledge(noise_scale=0.5)]


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (Reconstruction(torch.zeros(3, 7), torch.zeros(3)), r"of shape \(3, 7\), not \(M, 1, 2, 2\)"),
        (Reconstruction(torch.zeros(1, 1, 2, 2), torch.zeros(1), held=torch.zeros(2, 4)), r"of shape \(2, 4\)"),
        (Reconstruction(torch.full((1, 1, 2, 2), torch.nan), torch.zeros(1)), "with NaN or Inf"),
        (Reconstruction(torch.zeros(3, 1, 2, 2), torch.zeros(2)), r"residual is \(2,\), it has to be \(3,\)"),
        (torch.zeros(1, 1, 2, 2), "has to return a Reconstruction: 'Tensor' object"),
    ],
)
def test_what_is_no_list_of_images_is_not_scored_and_named_by_its_place(found, says, monkeypatch):
    monkeypatch.setattr("attacks.baselines.MeanImage.reconstruct", lambda *given: found)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    state = model.state_dict()
    observation = Observation(model, ((state, {name: value + 0.1 for name, value in state.items()}),), (1, 2, 2))
    with pytest.raises(InputError, match=rf"^MeanImage.reconstruct \(.*test_attack_run.py:\d+\) .*{says}"):
        attack_run(adaptive=False).run(observation, Knowledge(num_private=1, pixel_mean=(0.0,)))
