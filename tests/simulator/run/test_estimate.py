"""What a run leaves behind, in bytes, before it runs."""

import time
from dataclasses import dataclass

import pytest

from simulator.evaluation import attack_run
from simulator.evaluation.attack_run import attack_seconds, or_more
from simulator.run import estimate
from simulator.run.estimate import dearest, handling_seconds, kept_bytes, size_of, waiting_bytes
from simulator.scenario.scenario import validate
from simulator.scenario.sections import AttackConfig
from simulator.scenario.yaml_source import YamlSource


@pytest.mark.parametrize(
    ("adversary", "defenses", "checkpoints"),
    [
        ({}, [], 3 * 4 + 4),  # three rounds of four clients, and global checkpoints from the first to the last
        ({"when": []}, [], 0),
        ({"when": [2]}, [], 4 + 2),
        ({"when": [2], "threat_models": ["history"]}, [], 2 * 4 + 3),
        ({}, ["secure_aggregation"], 3 + 4),
        ({"keep": {"last": 2}}, [], 2 * 4 + 3),  # and what the first of them started from
        ({"keep": {"last": 2}, "when": []}, [], 2 * 4 + 3),
        ({"keep": {"last": 9}}, [], 3 * 4 + 4),
        ({"keep": "all", "when": []}, [], 3 * 4 + 4),
    ],
)
def test_the_disk_that_checkpoints_take(adversary, defenses, checkpoints):
    keep = adversary.get("keep", "attacked")
    adversary = {key: value for key, value in adversary.items() if key != "keep"}
    content = {"name": "s", "federation": {"rounds": 3, "clients": 4}, "adversary": adversary, "defenses": defenses}
    content["output"] = {"keep": keep}
    cells = validate(YamlSource(content)).cells()
    assert kept_bytes(cells, [1000]) == checkpoints * 4000


@pytest.mark.parametrize(
    ("keep", "rounds", "defenses", "checkpoints"),
    [
        ("attacked", 100, [], 0),
        ({"last": 2}, 100, [], 5 * (4 + 1)),  # four rounds whose attacks are under way, and the one that goes on
        ({"last": 2}, 100, ["secure_aggregation"], 5 * (1 + 1)),
        ({"last": 2}, 3, [], 1 * (4 + 1)),  # only the first of them is removed
        ({"last": 2}, 2, [], 0),
    ],
)
def test_the_disk_that_waits_for_attacks(keep, rounds, defenses, checkpoints):
    federation = {"rounds": rounds, "clients": 4}
    content = {"name": "s", "federation": federation, "defenses": defenses, "output": {"keep": keep}}
    assert waiting_bytes(validate(YamlSource(content)).cells(), [1000]) == checkpoints * 4000


@pytest.mark.parametrize(
    ("when", "diagnostics", "seconds"),
    [
        # a reply 0.08 + 0.11, a score 0.05 + 0.24, diagnostics 0.05 + 0.45 seconds for a million parameters
        ([], True, 3 * 4 * 0.19),
        ([2], False, 3 * 4 * 0.19 + 4 * 0.29),
        ([2], True, 3 * 4 * 0.19 + 4 * 0.79),
        ("every", True, 3 * 4 * (0.19 + 0.79)),
    ],
)
def test_messages_and_scores_have_a_price(when, diagnostics, seconds):
    content = {"name": "s", "federation": {"rounds": 3, "clients": 4}, "output": {"diagnostics": diagnostics}}
    content["adversary"] = {"attacks": ["mean_image"], "when": when}
    (cell,) = validate(YamlSource(content)).cells()
    assert handling_seconds(cell, 1_000_000) == pytest.approx(seconds)


@pytest.mark.parametrize("restarts", [1, 3])
def test_an_attack_is_priced_by_a_few_iterations(monkeypatch, restarts):
    """Three seconds of preparation, two for the first iteration, half a second for each other, one to finish."""
    clock = [0.0]

    @dataclass
    class Run:
        config: AttackConfig

        def run(self, observation, knowledge, report):
            clock[0] += 3
            total = 6 * restarts
            for done in range(total):
                clock[0] += 0.5 if done else 2.0
                report(done, total, 1.0)
            report(total, total, 1.0)
            clock[0] += 1

    monkeypatch.setattr(attack_run, "work_seconds", lambda: clock[0])
    attack = AttackConfig.model_validate({"name": "ntk", "iterations": 400})
    whole = 3 + 2 + (400 * restarts - 1) * 0.5 + 1
    assert attack_seconds(Run(attack), None, None) == pytest.approx(whole)


@dataclass
class Slow:
    """An attack that prepares itself for `before` processor seconds and then reports after iterations of 0.05 each."""

    config: AttackConfig
    before: float

    def run(self, observation, knowledge, report):
        ended = time.process_time() + self.before
        while time.process_time() < ended:
            pass
        for done in range(6):
            ended = time.process_time() + 0.05
            while time.process_time() < ended:
                pass
            report(done, 6, 1.0)


@pytest.mark.parametrize(
    ("name", "before", "iterations", "whole"),
    [("span", 60.0, None, None), ("span", 0.0, None, 0.3), ("ntk", 60.0, 400, None), ("ntk", 0.0, 400, 20.0)],
)
def test_an_attack_that_takes_too_long_to_be_measured(monkeypatch, name, before, iterations, whole):
    """It is given up in the midst of its preparation too, where nothing is reported; how far it said it had come by
    then is what its price is made of."""
    monkeypatch.setattr(attack_run, "LONGEST_PROBE", 0.2)
    attack = {"name": name} | ({} if iterations is None else {"iterations": iterations})
    began = time.perf_counter()
    seconds = attack_seconds(Slow(AttackConfig.model_validate(attack), before), None, None)
    assert time.perf_counter() - began < 30
    assert seconds is None if whole is None else seconds == pytest.approx(whole, rel=0.5)


class Inverting(Slow):
    """As `span` that has found maps and inverts them: by its last report it would be through."""

    def run(self, observation, knowledge, report):
        report(1, 2, 1.0)
        report(2, 2, 1.0)
        super().run(observation, knowledge, report)


def test_an_attack_that_goes_on_in_silence_has_no_price(monkeypatch):
    monkeypatch.setattr(attack_run, "LONGEST_PROBE", 0.2)
    assert attack_seconds(Inverting(AttackConfig(name="span"), 60.0), None, None) is None


@pytest.mark.parametrize(("threat_model", "seconds"), [("server", 1 + 3 + 40 + 16), ("observer", 60)])
def test_clients_with_few_and_with_many_images_are_priced_by_both(monkeypatch, threat_model, seconds):
    """One of 40 images costs an attack many times what one of a single image does: a second an image, as here."""
    content = {"name": "s", "partition": {"images": [1, 3, 40, 16]}, "federation": {"rounds": 1, "clients": 4}}
    content["adversary"] = {"threat_models": [threat_model], "attacks": ["span"]}
    monkeypatch.setattr(attack_run, "attack_seconds", lambda run, observation, told: float(told.num_private))
    (cell,) = validate(YamlSource(content)).cells()
    assert estimate.estimate(cell)[1] == {"span": pytest.approx(seconds)}


def test_what_is_said_of_attacks_that_are_not_measured():
    said = or_more("span", 900.0)
    assert said == ", or more: one span takes more than 10 s of processor time, at most 15 min"


def test_bytes_for_people():
    assert (size_of(10_838_376), size_of(14_800_000_000)) == ("11 MB", "14.8 GB")


def test_check_says_which_attack_and_option_costs_hours():
    attacks = [AttackConfig.model_validate(one) for one in ({"name": "span"}, {"name": "ntk"})]
    said = dearest(attacks, {"span": 20.0, "ntk": 2000.0})
    assert said.startswith("ntk takes 33 min, by 4,000 iterations, which is its default; {name: ntk, iterations: 500}")
    assert said.endswith(" takes about 4 min")
    assert dearest(attacks, {"span": 20.0, "ntk": 599.0}) == dearest(attacks, {"span": 2000.0, "ntk": 900.0}) == ""
    assert dearest([], {}) == ""
