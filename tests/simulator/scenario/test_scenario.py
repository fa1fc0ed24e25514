from pathlib import Path

import pytest

from attacks import InputError
from simulator.results.keys import ALL
from simulator.results.threat_models import all_views
from simulator.run.plan import expected_views, make_plan
from simulator.scenario.scenario import load_scenario, validate
from simulator.scenario.sweep import short_keys
from simulator.scenario.yaml_source import YamlSource


@pytest.fixture
def write(tmp_path):
    def write(text, name="s.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_name_is_enough(write):
    scenario = load_scenario(write("name: tiny\n"))
    assert (scenario.data.name, scenario.federation.rounds, scenario.federation.clients) == ("digits", 2, 3)
    assert [(attack.label, attack.optional) for attack in scenario.adversary.attacks] == [
        ("span", True),
        ("ntk", False),
    ]
    assert scenario.defense == "none"


def test_extends_merges_key_by_key_and_lists_are_replaced(write):
    write("name: base\nmodel: {width: 64, depth: 1}\nadversary: {threat_models: [server, observer]}\n", "base.yaml")
    scenario = load_scenario(
        write("extends: base.yaml\nname: child\nmodel: {depth: 3}\nadversary: {threat_models: [observer]}\n")
    )
    assert (scenario.name, scenario.model.options) == ("child", {"width": 64, "depth": 3})
    assert scenario.adversary.threat_models == ["observer"]


@pytest.mark.parametrize("text", ["{}", "null"])
def test_an_inherited_sweep_can_be_taken_back(write, text):
    write("name: base\nsweep: {seed: [0, 1]}\n", "base.yaml")
    write("extends: base.yaml\nseed: 1\n", "between.yaml")
    assert load_scenario(write(f"extends: between.yaml\nsweep: {text}\n")).sweep == {}
    assert load_scenario(write("extends: base.yaml\n"), [f"sweep={text}"]).sweep == {}
    assert load_scenario(write("extends: base.yaml\nsweep: {training.epochs: [1, 2]}\n")).swept != ["seed"]


def test_extends_in_a_circle(write):
    write("extends: s.yaml\n", "other.yaml")
    with pytest.raises(InputError, match="back to the file itself"):
        load_scenario(write("extends: other.yaml\n"))


def test_set_overrides_and_indexes_lists(write):
    path = write("name: s\nadversary: {attacks: [{name: ntk, iterations: 5}]}\n")
    scenario = load_scenario(
        path, ["model.width=32", "adversary.attacks.0.iterations=7", "training.learning_rate=1e-3"]
    )
    assert scenario.model.options == {"width": 32}
    assert scenario.adversary.attacks[0].make().iterations == 7
    assert scenario.training.learning_rate == 0.001


def test_sweep_makes_a_grid_with_paired_seeds(write):
    text = "name: s\nsweep: {seed: [0, 1], training.learning_rate: [1e-2, 0.1], model.width: [8]}\n"
    cells = load_scenario(write(text)).cells()
    grid = [(c.scenario.training.learning_rate, c.scenario.seed) for c in cells]
    assert grid == [(0.01, 0), (0.01, 1), (0.1, 0), (0.1, 1)]
    assert cells[0].name == "learning_rate=0.01,width=8,seed=0"
    values = {"training.learning_rate": 0.1, "model.width": 8, "seed": 1}
    assert cells[3].swept == {"cell": "learning_rate=0.1,width=8,seed=1", **values}


def test_the_digest_knows_what_changes_the_tables(write):
    def digest(*sets):
        return load_scenario(write("name: s\n"), list(sets)).digest

    assert digest() == digest("engine.cpus=2") == digest("output.root=elsewhere") == digest("adversary.timeout=5")
    assert digest() != digest("seed=1") and digest() != digest("model.width=3")
    assert digest() == digest("output.diagnostics=true") != digest("output.diagnostics=false")
    assert digest("output.diagnostics=false") == digest("output.diagnostics=false", "output.figures=false")


def test_knowledge_by_name_or_by_value_beside_what_every_participant_knows(write):
    anybody = {"pixel_mean": True, "pixel_std": True, "pixel_range": True}
    assert load_scenario(write("name: s\n")).adversary.knowledge == anybody
    listed = load_scenario(write("name: s\nadversary: {knowledge: [num_private]}\n"))
    assert listed.adversary.knowledge == {**anybody, "num_private": True}
    valued = load_scenario(write("name: s\nadversary: {knowledge: {num_private: 12, pixel_mean: false}}\n"))
    assert valued.adversary.knowledge == {
        "num_private": 12,
        "pixel_mean": False,
        "pixel_std": True,
        "pixel_range": True,
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty"),
        ("- a\n- b\n", "this is a list"),
        ("a: [1, 2\n", "; indent the keys of a section alike, by spaces"),
        ("name: s\nmodell: {}\n", "line 2: unknown key 'modell'; did you mean 'model'?"),
        ("name: s\nmodel:\n  widht: 3\n", "line 3: unknown key 'model.widht'; did you mean 'width'?"),
        ("name: s\nseed: [1, 2]\n", "line 2: seed is [1, 2]: input should be a valid integer"),
        ("name: s\nmodel: {width: wide}\n", "model.width is 'wide'"),
        ("name: s\nmodel: {width: 0}\n", "greater than or equal to 1"),
        ("name: s\nfederation: {fraction: 1.5}\n", "less than or equal to 1"),
        ("name: s\nmodel: {bias: 3}\n", "model.bias is 3"),
        ("seed: 1\n", "key 'name' is missing"),
        ("name: a/b\n", "name is 'a/b'"),
        ("name: s\ntraining: {epochs: 1, steps: 1}\n", "exclude each other"),
        ("name: s\ntraining: {optimizer: adam, momentum: 0.9}\n", "momentum belongs to sgd"),
        ("name: s\ntraining: {autocast: bfloat16}\nmodel: {precision: float64}\n", "autocast mixes with float32"),
        ("name: s\nadversary: {threat_models: [servr]}\n", "'server', 'observer', 'history' or 'server_history'"),
        ("name: s\nadversary: {attacks: [nkt]}\n", "did you mean 'ntk'?"),
        ("name: s\nadversary: {attacks: [{name: ntk, iteratons: 3}]}\n", "did you mean 'iterations'?"),
        ("name: s\nadversary: {attacks: [{name: ntk, iterations: many}]}\n", "'iterations' is 'many'"),
        ("name: s\nadversary: {attacks: [{name: ntk, iterations: 0}]}\n", "iterations is 0"),
        ("name: s\nadversary: {attacks: [ntk, ntk]}\n", "two attacks are called 'ntk'"),
        ("name: s\nadversary: {knowledge: [labls]}\n", "did you mean 'labels'?"),
        ("name: s\nmodel: {name: lenet5, width: 1024}\n", "the options of model 'lenet5' are multiplier, bias"),
        ("name: s\nmodel: {name: lenet}\n", "line 2: model.name is 'lenet': unknown; did you mean 'lenet5'?"),
        ("name: s\nmodel: {name: 'n.py:f', width: 8}\n", "line 2: model.width is 8: your own factory"),
        ("name: s\nmodel: {checkpiont: a.pt}\n", "unknown key 'model.checkpiont'; did you mean 'checkpoint'?"),
        ("name: s\nsweep: {model.multiplier: [1]}\n", "line 2: unknown key 'model.multiplier' (it is 1; the options"),
        ("name: s\nsweep: {model.name: [mlp, lenet5], model.width: [8]}\n", "the options of model 'lenet5' are"),
        ("name: s\nsweep: {model.widht: [1]}\n", "s.yaml, line 2: unknown key 'model.widht'"),
        ("name: s\nsweep:\n  seed: [0]\n  training.epochs: [1, 0]\n", "line 4: training.epochs is 0: input should"),
        ("name: s\nextends: nowhere.yaml\n", "does not exist"),
        ("name: s\nsweep: {seed: []}\n", "at least 1 item"),
        ("name: s\nsweep: {engine.cpus: [1, 2]}\n", "the same for the whole run"),
        ("name: s\nadversary: {attacks: []}\n", "at least 1 item"),
        ("name: s\nadversary: {attacks: [{name: ntk, label: a/b}]}\n", "label is 'a/b'"),
        ("name: s\nadversary: {attacks: [{name: ntk, batch_size: 0}]}\n", "batch_size is 0"),
        ("name: s\nadversary: {attacks: [{name: ntk, device: gpu}]}\n", "device is 'gpu'"),
        ("name: s\ndefenses: [dp]\n", "defenses"),
        ("name: s\ndefenses: [noise, noise]\n", "two are called 'noise'"),
        ("name: s\ndefenses: [rkip, dp_sgd]\n", "defenses rkip and dp_sgd exclude each other"),
        ("name: s\ndefenses: [dp_sgd, prune_easiest]\n", "defenses prune_easiest and dp_sgd exclude each other"),
        ("name: s\ndefenses: [dp_sgd]\ntraining: {stop_at_loss: 0.1}\n", "dp_sgd excludes training.stop_at_loss"),
        (
            "name: s\ndefenses: [central_dp]\n"
            "federation: {strategy: {name: FedAvg, options: {weighted_by_key: last-loss}}}\n",
            "needs the mean of the updates, weighted by images",
        ),
        ("name: s\ndefenses: [secure_aggregation, central_dp]\n", "nothing to clip per client"),
        ("name: s\ndefenses: [central_dp, secure_aggregation]\n", "nothing to clip per client"),
        *(
            (
                f"name: s\ndefenses: [secure_aggregation]\nfederation: {{strategy: {name}}}\n",
                f"{name!r} needs the update",
            )
            for name in (
                *("DifferentialPrivacyServerSideFixedClipping", "FedMedian", "FedTrimmedAvg"),
                *("Krum", "MultiKrum", "Bulyan", "QFedAvg"),
            )
        ),
        (
            "name: s\ndefenses: [secure_aggregation]\nfederation: {strategy: {name: "
            "DifferentialPrivacyClientSideFixedClipping, options: {strategy: Krum}}}\n",
            "'Krum' needs the update of each client",
        ),
    ],
)
def test_bad_scenarios_give_one_clear_line(write, text, says):
    with pytest.raises(InputError) as caught:
        load_scenario(write(text))
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("strategy", ["FedAvg", "FedProx", "FedAvgM", "FedAdagrad", "FedAdam", "FedYogi"])
def test_strategies_of_averages_run_behind_secure_aggregation(write, strategy):
    federation = f"federation: {{strategy: {strategy}}}\n"
    assert load_scenario(write(f"name: s\ndefenses: [clipping, secure_aggregation]\n{federation}")).hides_clients
    private = f"name: s\ndefenses: [{{name: central_dp, clipping: client}}, secure_aggregation]\n{federation}"
    if strategy in ("FedAvg", "FedProx"):
        assert load_scenario(write(private)).hides_clients
    else:  # a server optimizer: what one client changes is no longer bounded
        with pytest.raises(InputError, match=f"strategy '{strategy}' makes of one client: use FedAvg or FedProx"):
            load_scenario(write(private))


def test_a_sweep_may_pair_models_with_options_of_their_own_and_null_takes_an_inherited_one_back(write):
    models = "[{name: mlp, width: 8}, {name: lenet5, multiplier: 2}]"
    cells = load_scenario(write(f"name: s\nmodel: {{depth: 1}}\nsweep: {{model: {models}}}\n")).cells()
    assert [cell.scenario.model.options for cell in cells] == [{"width": 8}, {"multiplier": 2}]
    write("name: base\nmodel: {width: 8}\n", "base.yaml")
    child = load_scenario(write("extends: base.yaml\nname: s\nmodel: {name: lenet5, width: null}\n"))
    assert (child.model.name, child.model.options) == ("lenet5", {})


def test_shorthands_can_be_overridden_in_part(write):
    path = write("name: s\nfederation: {strategy: FedMedian}\nadversary: {attacks: [ntk]}\n")
    sets = ["federation.strategy.options.min_train_nodes=2", "adversary.attacks.0.iterations=7"]
    scenario = load_scenario(path, sets)
    assert (scenario.federation.strategy.name, scenario.adversary.attacks[0].options) == (
        "FedMedian",
        {"iterations": 7},
    )


def test_cells_of_a_sweep_have_names_of_their_own(write):
    attacks = "[[{name: ntk, iterations: 4000, kernel: final}], [{name: ntk, iterations: 4000, kernel: initial}]]"
    cells = load_scenario(write(f"name: s\nsweep: {{adversary.attacks: {attacks}}}\n")).cells()
    assert len({cell.name for cell in cells}) == 2
    with pytest.raises(InputError, match="give each value once"):
        load_scenario(write("name: s\nsweep: {seed: [1, 1]}\n"))


def test_swept_values_of_several_types_become_text_in_the_tables(write):
    cells = load_scenario(write("name: s\nsweep: {training.batch_size: [null, 4]}\n")).cells()
    assert [cell.swept["training.batch_size"] for cell in cells] == ["null", "4"]
    assert [cell.scenario.training.batch_size for cell in cells] == [None, 4]


def test_a_file_that_names_a_part_is_sought_beside_the_scenario(write, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSPILL_ALLOW_CODE", "all")
    attack = write("from attacks import SpanAttack\nclass Own(SpanAttack):\n    name = 'own'\n", "beside.py")
    monkeypatch.chdir(tmp_path.parent)
    (found,) = load_scenario(write("name: s\nadversary: {attacks: ['beside.py:Own']}\n")).adversary.attacks
    assert (found.name, found.label) == (f"{attack.resolve()}:Own", "own")


def test_paths_are_made_absolute_and_their_contents_count(write, tmp_path):
    net = write("def make(): pass\n", "nets.py")
    path = write(f"name: s\nmodel: {{name: '{net}:make'}}\n")
    assert load_scenario(path).model.name == f"{net.resolve()}:make"
    before = load_scenario(path).digest
    net.write_text("def make(): return 1\n")
    assert load_scenario(path).digest != before
    assert load_scenario(path, ["engine.threads=2"]).digest != load_scenario(path).digest


def test_bad_overrides(write):
    path = write("name: s\n")
    with pytest.raises(InputError, match="write key=value"):
        load_scenario(path, ["model.width"])
    with pytest.raises(InputError, match=r"--set model\.width=-1"):
        load_scenario(path, ["model.width=-1"])
    with pytest.raises(InputError, match="no keys of its own"):
        load_scenario(path, ["name.first=x"])
    with pytest.raises(InputError, match="no list to index"):
        load_scenario(path, ["adversary.attacks.0.iterations=3"])
    with pytest.raises(InputError, match="the list has 1 entries"):
        load_scenario(write("name: s\nadversary: {attacks: [ntk]}\n"), ["adversary.attacks.3.name=ntk"])


@pytest.mark.parametrize(
    ("listed", "of_a_client", "of_all"),
    [
        ("[server]", ["server"], []),
        ("[observer]", [], ["observer"]),
        ("[history]", ["history"], []),
        ("[server, history]", ["server", "history"], []),
        ("[observer, history]", [], ["observer", "history"]),
        ("[history, observer, server]", ["server", "history"], ["observer", "history"]),
    ],
)
def test_history_follows_the_threat_models_beside_it(write, listed, of_a_client, of_all):
    scenario = load_scenario(write(f"name: s\nfederation: {{rounds: 3}}\nadversary: {{threat_models: {listed}}}\n"))
    views = all_views(scenario.adversary.threat_models, hides_clients=False)
    for subject, expected in ((1, of_a_client), (ALL, of_all)):
        assert [view.threat_model for view in views if view.shows(subject)] == expected
    pairs = sum(held for *_, held in expected_views(scenario.cells()[0]))  # three clients
    histories = 3 * ("history" in of_a_client) + ("history" in of_all)
    assert pairs == 3 * (3 * ("server" in of_a_client) + ("observer" in of_all)) + (1 + 2 + 3) * histories


def test_a_merged_mapping_may_be_overridden_key_by_key(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("name: s\ntraining: &base {epochs: 3, batch_size: 4}\nmodel: {pretrain: {<<: *base, epochs: 7}}\n")
    pretrain = load_scenario(path).model.pretrain
    assert (pretrain.epochs, pretrain.batch_size) == (7, 4)


def test_a_value_of_the_command_line_has_no_key_twice(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("name: s\n")
    with pytest.raises(InputError, match=r"'\{width: 1, width: 2\}': key 'width' stands in line 1 already"):
        load_scenario(path, ["model={width: 1, width: 2}"])


def test_keys_of_a_sweep_that_end_alike_are_told_apart(write):
    attack = "adversary: {attacks: [{name: gradient_matching}]}"
    axes = "{training.learning_rate: [0.1, 0.2], adversary.attacks.0.learning_rate: [0.01, 0.02], model.width: [8, 9]}"
    names = [cell.name for cell in load_scenario(write(f"name: s\n{attack}\nsweep: {axes}\n")).cells()]
    assert len(set(names)) == 8 and names[0] == "training.learning_rate=0.1,0.learning_rate=0.01,width=8"


def test_a_key_that_ends_another_keeps_its_name():
    assert short_keys(["name", "data.name", "model.name", "model.depth"]) == {
        "name": "name",
        "data.name": "data.name",
        "model.name": "model.name",
        "model.depth": "depth",
    }
    assert (
        short_keys(["training.epochs", "model.pretrain.epochs", "seed"])["model.pretrain.epochs"] == "pretrain.epochs"
    )


def test_an_override_below_a_list_is_named_where_it_is_wrong(write):
    with pytest.raises(InputError, match=r"^--set partition.images.1=-3: partition.images.1 is -3"):
        load_scenario(write("name: s\npartition: {images: [1, 2]}\n"), ["partition.images.1=-3"])


@pytest.mark.parametrize("value", ["[spam]", "[{name: span, foo: 3}]", "3"])
def test_what_an_override_replaces_is_named_by_no_line_of_the_file(write, value):
    path = write("name: s\nadversary:\n  attacks:\n  - {name: span, device: cpu}\n")
    with pytest.raises(InputError, match=r"^--set adversary\.attacks="):
        load_scenario(path, [f"adversary.attacks={value}"])


def test_the_hospital_s_scenario_has_the_published_settings_and_can_run():
    plan = make_plan(load_scenario(Path(__file__).parents[3] / "scenarios" / "hospital.yaml"))
    (defense,) = plan.scenario.chain
    assert (defense.clipping_norm, defense.sensitivity, defense.epsilon) == (1.0, 1e-4, 10.0)


@pytest.mark.parametrize("keep", ["lats", {"last": 0}, {"last": "3"}, {"lst": 3}, 3, None, {}, {"last": 3, "x": 1}])
def test_which_rounds_are_kept_is_said_in_one_of_three_ways(keep):
    with pytest.raises(InputError, match=r"output.keep.*: write attacked, all, or \{last: K\}"):
        validate(YamlSource({"name": "s", "output": {"keep": keep}}))


def test_the_last_rounds_can_be_kept():
    assert validate(YamlSource({"name": "s", "output": {"keep": {"last": 3}}})).kept_rounds == 3
    assert validate(YamlSource({"name": "s"})).kept_rounds is None
