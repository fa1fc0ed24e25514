"""The JSON schema that editors use agrees with the models, and with every scenario of the repository."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from simulator.cli.scenario_files import TEMPLATE
from simulator.scenario.json_schema import file_schema
from simulator.scenario.yaml_source import parse_value

SCENARIOS = Path(__file__).parents[3] / "scenarios"
FILES = sorted(SCENARIOS.rglob("*.yaml"))


@pytest.fixture(scope="module")
def validator():
    return jsonschema.Draft7Validator(file_schema())


def test_the_shipped_schema_is_up_to_date():
    shipped = json.loads((SCENARIOS / "scenario.schema.json").read_text())
    assert shipped == json.loads(json.dumps(file_schema())), "run: fedspill schema > scenarios/scenario.schema.json"


def test_it_is_a_schema(validator):
    validator.check_schema(validator.schema)


def test_every_scenario_of_the_repository_names_it_and_fits_it(validator):
    wrong = {path.name: [error.message for error in validator.iter_errors(read(path.read_text()))] for path in FILES}
    assert {name: errors for name, errors in wrong.items() if errors} == {}
    for path in FILES:
        first = [line.partition("=") for line in path.read_text().splitlines()[:2]]  # one may be the price
        schema = next((after for before, _, after in first if before == "# yaml-language-server: $schema"), "none")
        assert (path.parent / schema).resolve() == SCENARIOS / "scenario.schema.json", path.name


def test_what_init_writes_fits_it(validator):
    assert not list(validator.iter_errors(read(TEMPLATE)))


@pytest.mark.parametrize(
    "text",
    [
        "name: a\nmodle: {}", "seed: 3", "name: a\nseed: first", "name: a\nmodel: {widht: 3}",
        "name: a\nmodel: {name: mlp, channels: 3}", "name: a\nadversary: {attacks: [{name: ntk, iteration: 3}]}",
        "name: a\nadversary: {knowledge: [num_privat]}", "name: a\ndefenses: [{name: clipping, scale: 1.0}]",
        "name: a\nbenchmark: {defences: [none]}",
    ],
)  # fmt: skip
def test_it_refuses_what_check_refuses(validator, text):
    assert list(validator.iter_errors(yaml.safe_load(text)))


@pytest.mark.parametrize(
    "text",
    [
        "name: a", "extends: b.yaml\nmodel: {width: 3}", "name: a\nfederation: {strategy: FedAdam}",
        "name: a\nadversary: {attacks: [span, {name: ntk, iterations: 3}], knowledge: {num_private: 8}}",
        "name: a\nmodel: {name: 'nets.py:make', options: {deep: 3}}", "name: a\ndefenses: ['own_mods:quiet', clipping]",
        "extends: b.yaml\nmodel: {name: lenet5, width: null}", "name: a\nbenchmark: {defenses: [none], seeds: 2}",
    ],
)  # fmt: skip
def test_it_accepts_what_can_be_written(validator, text):
    assert not list(validator.iter_errors(yaml.safe_load(text)))


def read(text):
    """YAML as scenarios are read, 1e-3 a number."""
    return parse_value(text)
