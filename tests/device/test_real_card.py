"""What CUDA itself gives, where there is a card: what the CPU gives.

`card` shows on any machine that attacks keep to CUDA's rules; kernels and their rounding, graphs, streams and random
numbers are seen here alone. With a card, the other tests of attacks run on it, too: `device: auto` takes it. They say
what `span` finds there: its searches, cut short as here, end elsewhere when the last digit changes, and so does
training behind BatchNorm.
"""

import pytest
import torch

from clients.config import DefenseConfig, ModelConfig
from clients.defenses import DEFENSES
from tests.device.cases import CASES
from tests.device.training_cases import OPTIONS, TRAINING, client, settings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

BUDGET = 3  # runs of every loop: rounding does not grow to more than the bound
ENTRIES = "gradient_matching, fedleak"  # matches the largest entries: which ones these are changes with the last digit
STEADY = [name for name, case in CASES.items() if case.attack != "span" and name != ENTRIES]


@pytest.mark.filterwarnings("error::UserWarning")  # a step that no graph can hold
@pytest.mark.parametrize("name", STEADY)
def test_an_attack_gives_what_the_cpu_gives(name):
    here, there = CASES[name].run("cpu", BUDGET), CASES[name].run("cuda", BUDGET)
    for field in ("images", "residual", "duals", "held", "features"):
        one, other = getattr(here, field), getattr(there, field)
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("name", ["ntk, plain", "gradient_matching, plain", "span, batches"])
def test_an_attack_gives_the_same_bits_twice(name):
    once, twice = (CASES[name].run("cuda", BUDGET).images for _ in range(2))
    assert torch.equal(once, twice)


def check(made):
    (here, used), (there, device) = client(made.model_copy(update={"use_gpu": False})), client(made)
    assert (used, device) == ("cpu", "cuda")
    for name, value in here.items():
        torch.testing.assert_close(there[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", sorted(DEFENSES))
def test_a_client_behind_a_defense_returns_what_it_returns_on_the_cpu(name):
    defense = DefenseConfig.model_validate({"name": name, **OPTIONS.get(name, {})})
    check(settings(defense.model_dump(), steps=8, epochs=None))


@pytest.mark.parametrize("name", TRAINING)
def test_a_client_trains_as_on_the_cpu(name):
    check(settings(steps=8, epochs=None, **TRAINING[name]))


def test_a_vision_transformer_trains_as_on_the_cpu():
    check(settings(model=ModelConfig(name="vit_tiny", depth=1, width=24), steps=8, epochs=None))
