import pytest
import torch

from attacks import InputError, Knowledge
from clients.local_update import load_data
from simulator.adversary.grant import grant
from simulator.scenario.scenario import load_scenario


@pytest.fixture
def granted(tmp_path):
    def grant_to(knowledge, clients, training="{epochs: 5, batch_size: 3, learning_rate: 0.1}", defenses="[]", std=""):
        path = tmp_path / "s.yaml"
        path.write_text(
            f"name: s\npartition: {{images: [4, 7]}}\nfederation: {{clients: 2}}\n"
            f"data: {{public: 30, test: 30{std}}}\ntraining: {training}\n"
            f"defenses: {defenses}\nadversary: {{knowledge: {knowledge}}}\n"
        )
        scenario = load_scenario(path)
        data = load_data(scenario.cells()[0].client_config(use_gpu=False))
        return grant(scenario, data, clients, scenario.defense_facts()), data

    return grant_to


def test_what_every_participant_knows_is_granted_unless_it_is_withheld(granted):
    knowledge, data = granted("{}", [0])
    assert knowledge.given() == {"pixel_mean": data.normalization.mean, "pixel_range": (0.0, 1.0)}
    assert granted("{pixel_mean: false, pixel_range: null}", [0])[0].given() == {}
    divided, _ = granted("{pixel_mean: false}", [0], std=", std: [0.4]")
    assert divided.given() == {"pixel_std": (0.4,), "pixel_range": (0.0, 1.0)}


def test_true_grants_the_truth_about_exactly_these_clients(granted):
    knowledge, data = granted("[num_private, labels, steps, learning_rate, batch_size, optimizer]", [1])
    assert knowledge.num_private == 7 and knowledge.labels == tuple(data.client(1)[1].tolist())
    assert (knowledge.steps, knowledge.batch_size) == (15, 3)  # five epochs of ⌈7 / 3⌉
    assert (knowledge.learning_rate, knowledge.optimizer) == (0.1, "sgd")
    assert granted("[num_private]", [0, 1])[0].num_private == 11


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ("{momentum: 0.9, weight_decay: 1.0e-3}", {"momentum": 0.9, "weight_decay": 1e-3}),
        ("{optimizer: adamw}", {"momentum": 0.0, "weight_decay": 0.0, "betas": (0.9, 0.999)}),
    ],
)
def test_the_client_s_optimizer_is_granted_with_its_settings(granted, training, expected):
    knowledge, _ = granted("[momentum, betas, weight_decay]", [0], training)
    assert knowledge.given() == expected | {"pixel_mean": knowledge.pixel_mean, "pixel_range": (0.0, 1.0)}


def test_a_value_is_what_the_adversary_believes_even_if_wrong(granted):
    assert granted("{num_private: 99}", [0])[0].num_private == 99
    assert granted("{num_private: false}", [0])[0].num_private is None


def test_public_images_are_in_the_input_space_of_the_model(granted):
    knowledge, data = granted("[public_images]", [0])
    images = data.public()[0]
    assert torch.allclose(knowledge.public_images, images - images.mean(), atol=1e-6)


def test_public_images_cannot_be_made_up(granted):
    with pytest.raises(InputError, match="public_images"):
        granted("{public_images: 12}", [0])


def test_the_order_of_the_images_is_believed_not_granted(granted):
    assert granted("{batches: [[0, 1, 2], [3]]}", [0])[0].batches == ((0, 1, 2), (3,))
    with pytest.raises(InputError, match="give lists of indices"):
        granted("{batches: true}", [0])


def test_true_grants_what_the_defense_in_force_has(granted):
    knowledge, _ = granted("[noise_scale, kept_fraction]", [0], defenses="[{name: noise, scale: 0.5}, {name: top_k}]")
    assert (knowledge.noise_scale, knowledge.kept_fraction) == (0.5, 0.1)
    with pytest.raises(InputError, match=r"quantization_bits is true: the defense in force, 'noise', has none to tell"):
        granted("[quantization_bits]", [0], defenses="[{name: noise, scale: 0.5}]")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", float("nan")),
        ("clip_norm", float("inf")),
        ("momentum", 1.0),
        ("betas", (0.9, 1.5)),
        ("weight_decay", -0.1),
        ("kept_fraction", 5.0),
        ("quantization_bits", 100_000),
        ("pixel_mean", (float("nan"),)),
        ("pixel_range", (1.0, 0.0)),
        ("labels", ()),
        ("labels", (1, -1)),
    ],
)
def test_what_cannot_be_true_is_refused_by_name(field, value):
    with pytest.raises(InputError, match=f"^knowledge {field} is "):
        Knowledge(**{field: value})
