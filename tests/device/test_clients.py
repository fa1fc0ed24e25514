"""Local training behind every defense, pretraining and distillation on the card that is not there."""

import pytest
import torch

from attacks.kernel.infinite import InfiniteNTK
from clients.config import DefenseConfig, ModelConfig
from clients.defenses import DEFENSES
from clients.distillation import DistillOptions, distill
from simulator.run.pretraining import Pretraining
from tests.clients.test_local_update import FACTORY
from tests.device.card import card
from tests.device.training_cases import OPTIONS, TRAINING, client, settings
from tests.simulator.run.test_pretraining import scenario, start

FEW, MORE = 2, 8  # steps of local training
WAITS = {
    "clients/training.py:_run_epoch": "the loss of an epoch",
    "clients/training.py:<lambda>": "the order of an epoch's images comes from the CPU's random numbers",
    "clients/training.py:make_batch": "DP-SGD: which images a step samples does, too",
    "clients/defenses/differential_privacy/dp_optimizer.py:add_noise": "DP-SGD: its noise does, too",
    "clients/defenses/training_data.py:local_step": "what is drawn for each image, and which are mixed, does, too",
}
"""The places that may wait in every step or epoch, and why."""


def check(make, **given):
    """make: of a number of steps, a client's configuration."""
    (here, used), found = client(make(FEW), **given), []
    with card() as waits:
        for steps in (FEW, MORE):
            waits.seen.clear()
            found.append((client(make(steps), **given), waits.by_place()))
    ((there, device), few), (_, more) = found
    assert (used, device) == ("cpu", "cuda")
    for name, value in here.items():
        assert there[name].device.type == "cpu"
        torch.testing.assert_close(there[name], value, rtol=1e-4, atol=1e-5)
    assert not {place for place in more if more[place] - few[place] >= (MORE - FEW) / 2} - set(WAITS)


@pytest.mark.filterwarnings("ignore:Secure RNG")
@pytest.mark.parametrize("name", sorted(DEFENSES))
def test_a_client_behind_a_defense_returns_what_it_returns_on_the_cpu(name):
    defense = DefenseConfig.model_validate({"name": name, **OPTIONS.get(name, {})})
    check(lambda steps: settings(defense.model_dump(), steps=steps, epochs=None))


@pytest.mark.parametrize("name", TRAINING)
def test_a_client_trains_there_as_on_the_cpu(name):
    check(lambda steps: settings(steps=steps, epochs=None, **TRAINING[name]), proximal=0.1)


@pytest.mark.parametrize(("name", "small"), [("resnet18", {"channels": 4}), ("vit_tiny", {"depth": 1, "width": 24})])
def test_a_client_of_another_network_trains_there_as_on_the_cpu(name, small):
    check(lambda steps: settings(model=ModelConfig(name=name, **small), steps=steps, epochs=None, batch_norm="train"))


def test_dropout_runs_there(tmp_path):
    (tmp_path / "net.py").write_text(FACTORY)
    check(lambda steps: settings(model=ModelConfig(name=f"{tmp_path / 'net.py'}:make"), steps=steps, epochs=None))


def test_pretraining_happens_there():
    _, made, data = start(scenario())
    pretraining = Pretraining.of(made.model_copy(update={"use_gpu": True}), data)
    here = pretraining.run().state_dict()
    with card() as waits:
        there = pretraining.run().state_dict()
        assert any(wait.kind == "upload" for wait in waits.seen)
    for name, value in here.items():
        torch.testing.assert_close(there[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["kip", "rkip"])
def test_distillation_asks_once_in_each_step_whether_the_kernel_is_singular(method):
    images, targets = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.eye(2).repeat(3, 1)

    def distilled(steps, device):
        options = DistillOptions(method, steps, kernel=InfiniteNTK(), device=device)
        return distill(images, targets, 2, torch.Generator().manual_seed(0), options).images

    here, counts = distilled(FEW, "cpu"), []
    with card() as waits:
        there = distilled(FEW, "cuda")
        for steps in (FEW, MORE):
            waits.seen.clear()
            distilled(steps, "cuda")
            counts.append(waits.by_place())
    torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)
    grown = {place: (counts[1][place] - counts[0][place]) / (MORE - FEW) for place in counts[1]}
    assert {place: most for place, most in grown.items() if most} == {"attacks/kernel/empirical.py:kernel_duals": 1}
