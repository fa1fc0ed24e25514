"""The example of docs/explanation/defenses.md, run as it stands there."""

import re
from pathlib import Path

import pytest
import torch

from clients.defenses import DEFENSES
from simulator.run.strategies import defended_strategy
from simulator.scenario.scenario import Scenario
from tests.clients.defenses.parts import context, make

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "defenses.md"


@pytest.fixture
def coarse(monkeypatch):
    monkeypatch.setitem(DEFENSES, "coarse", None)  # taken out again afterwards
    example = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(example[1], {"__name__": "clients.defenses.coarse"})
    return DEFENSES["coarse"]


def test_one_class_has_both_halves(coarse):
    sent, said = make("coarse", decimals=1).protect_update({"w": torch.tensor([0.26, 0.5])}, context())
    assert sent["w"].tolist() == pytest.approx([0.3, 0.5]) and said == {"changed": 1.0}
    scenario = Scenario.model_validate({"name": "s", "defenses": [{"name": "coarse", "noise_multiplier": 0.7}]})
    strategy = defended_strategy(scenario)
    assert type(strategy).__name__ == "DifferentialPrivacyServerSideFixedClipping"
    assert (
        strategy.noise_multiplier == 0.7
        and strategy.num_sampled_clients == scenario.federation.clients
        and scenario.defense == "coarse"
    )


def test_what_the_scenario_refuses_follows_from_the_server_half(coarse):
    with pytest.raises(ValueError, match="secure_aggregation with coarse leaves the server sums"):
        Scenario.model_validate({"name": "s", "defenses": ["coarse", "secure_aggregation"]})
