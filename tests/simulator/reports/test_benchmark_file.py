"""Benchmark files: rows, strengths, profiles, and what is wrong with others."""

from pathlib import Path

import pytest

from attacks import InputError
from simulator.scenario.benchmark import load_any, load_benchmark

DEFENSES = Path(__file__).parents[3] / "scenarios" / "defenses.yaml"


def test_the_shipped_benchmark_has_every_defense_with_and_without_a_profile():
    wanted = "none clipping noise top_k random_k quantization secure_aggregation central_dp local_dp dp_sgd".split()
    wanted += (
        "sign_sgd power_sgd percentile svt soteria half_precision secagg_plus personal_layers adam bfloat16".split()
    )
    for profile, seeds in ((None, 5), ("more", 1)):
        cells = load_benchmark(DEFENSES, profile).cells()
        defenses = {cell.scenario.defense for cell in cells}
        assert {*wanted, "prune_easiest", "augmentation", "mixup"} <= defenses
        assert len(cells) == seeds * len(defenses)
        one = cells[0].scenario
        joined = one.federation.clients * one.federation.fraction
        assert joined * one.partition.images <= 40  # 8x8 digits tell no more apart
        assert one.adversary.when == [one.federation.rounds]  # accuracy and ε of the table are those of the release


def test_the_quick_profile_has_some_of_the_same_cells():
    few, more = (
        {cell.name: cell.scenario for cell in load_benchmark(DEFENSES, profile).cells()}
        for profile in ("quick", "more")
    )
    assert 10 < len(few) < len(more) / 2 and all(scenario == more[name] for name, scenario in few.items())


def test_every_setting_of_the_sweep_over_strengths_is_a_row_of_its_own():
    scenario = load_benchmark(DEFENSES.with_name("equal_utility.yaml"), "quick")
    names = [cell.scenario.defense for cell in scenario.cells()]
    assert names[:2] == ["none", "none"] and len(names) == 2 * len(set(names))
    assert {"dp_sgd=10000.0", "dp_sgd=1.0", "noise=0.1", "central_dp=1.0"} <= set(names)


ROWS = """
name: x
benchmark:
  defenses:
    - none
    - {name: noise, scale: 0.5, label: loud}
    - {label: adam, set: {training.optimizer: adam, training.learning_rate: 0.001}}
    - {label: quiet, defenses: [{name: noise, scale: 0.01}], set: {model.width: 64}}
  strengths: {noise: {name: noise, scale: [0.1, 1.0]}}
  seeds: 1
  profiles: {quick: {benchmark: {seeds: 2}}}
"""


def written(tmp_path, text):
    path = tmp_path / "b.yaml"
    path.write_text(text)
    return path


def test_a_row_may_set_training_and_model_and_a_strength_is_a_row_for_each_value(tmp_path):
    scenario = load_benchmark(written(tmp_path, ROWS))
    cells = {cell.scenario.defense: cell for cell in scenario.cells()}
    assert list(cells) == ["none", "loud", "adam", "quiet", "noise=0.1", "noise=1.0"]
    assert cells["adam"].scenario.training.optimizer == "adam" and cells["adam"].scenario.training.learning_rate == 1e-3
    assert cells["none"].scenario.training.optimizer == "sgd" and cells["none"].scenario.model.options == {}
    quiet = cells["quiet"].scenario
    assert quiet.model.options == {"width": 64} and quiet.defenses[0].options == {"scale": 0.01}
    assert cells["adam"].name == "defense=adam,seed=0" and cells["adam"].swept == {
        "cell": cells["adam"].name,
        "seed": 0,
    }
    assert cells["noise=1.0"].scenario.defenses[0].options == {"scale": 1.0}


def test_the_command_line_has_the_last_word_on_a_benchmark(tmp_path):
    path = written(tmp_path, ROWS)
    own = ["benchmark.defenses=[none, noise]", "benchmark.strengths={}", "benchmark.seeds=3", "model.width=77"]
    cells = load_benchmark(path, "quick", own).cells()
    assert [cell.scenario.defense for cell in cells] == ["none"] * 3 + ["noise"] * 3
    assert {cell.scenario.model.options["width"] for cell in cells} == {77}
    assert len(load_any(path, "quick").cells()) == 12 and len(load_any(path).cells()) == 6
    with pytest.raises(InputError, match=r"benchmark\.sedes"):
        load_any(path, None, ["benchmark.sedes=3"])
    with pytest.raises(InputError, match="only a benchmark file has profiles"):
        load_any(written(tmp_path, "name: x\n"), "quick")


def test_what_a_file_gives_wins_over_a_profile_of_the_file_it_extends(tmp_path):
    text = f"extends: {DEFENSES}\nname: mine\nbenchmark:\n  defenses: [none, power_sgd, noise]\n"
    mine, shipped = load_benchmark(written(tmp_path, text), "quick"), load_benchmark(DEFENSES, "quick")
    assert [cell.scenario.defense for cell in mine.cells()] == ["none", "power_sgd", "noise"]  # one seed, as quick says
    assert mine.adversary.attacks == shipped.adversary.attacks  # what it does not give, the profile still does
    own = f"{text}  profiles: {{quick: {{benchmark: {{defenses: [noise]}}}}}}\n"
    cells = load_benchmark(written(tmp_path, own), "quick").cells()  # its own profile stands above its own list
    assert [cell.scenario.defense for cell in cells] == ["noise"]


def test_mnist_takes_the_place_of_digits_where_its_folder_is_given():
    scenario = load_benchmark(DEFENSES, None, ["data.root=/somewhere", "model.width=777"])
    assert scenario.data.name == "mnist" and scenario.partition.images == 20 and scenario.model.options["width"] == 777


@pytest.mark.parametrize(
    ("text", "profile", "says"),
    [
        ("name: x\n", None, "has a section `benchmark`"),
        ("name: x\nbenchmark: {defenses: [none], profiles: {quick: {}}}\n", "quik", "did you mean 'quick'?"),
        ("name: x\nbenchmark: {defenses: []}\n", None, "benchmark.defenses"),
        ("name: x\nbenchmark: {defenses: [none], seed: 3}\n", None, "benchmark.seed"),
        ("name: x\nseed: abc\nbenchmark: {defenses: [none]}\n", None, "line 2: seed is 'abc'"),
        ("name: x\nseed: null\nbenchmark: {defenses: [none]}\n", None, "line 2: seed is None"),
        ("name: x\ndata: [1]\nbenchmark: {defenses: [none]}\n", None, "line 2: data is [1]"),
        ("name: x\ndata: digits\nbenchmark: {defenses: [none], with_root: {data: {}}}\n", None, "data is 'digits'"),
        ("name: x\nsweep: {seed: [1]}\nbenchmark: {defenses: [none]}\n", None, "line 2: a benchmark sweeps over its"),
        ("name: x\nbenchmark: {defenses: [cliping]}\n", None, "did you mean 'clipping'?"),
        (
            "name: x\nbenchmark:\n  defenses: [{label: a, sett: {}}]\n",
            None,
            "line 3: defenses: a row has no key 'sett'; did you mean 'set'?",
        ),
        ("name: x\nbenchmark:\n  defenses: [{set: {}}]\n", None, "needs a `label`"),
        ("name: x\nbenchmark:\n  defenses: [{label: a, set: {seed: 1}}]\n", None, "row 'a' cannot set 'seed'"),
        (
            "name: x\nbenchmark:\n  defenses: [{label: a, set: {training.optimiser: adam}}]\n",
            None,
            "line 3: unknown key 'training.optimiser'; did you mean 'optimizer'? (row 'a')",
        ),
        ("name: x\nbenchmark: {defenses: [none], strengths: {a: {name: noise}}}\n", None, "strengths.a is"),
        (
            "name: x\nbenchmark: {defenses: [[secure_aggregation, central_dp]]}\n",
            None,
            "use {name: central_dp, clipping: client}",
        ),
    ],
)
def test_bad_benchmarks_say_what_is_wrong(tmp_path, text, profile, says):
    path = tmp_path / "b.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_benchmark(path, profile)
    assert says in str(caught.value)
