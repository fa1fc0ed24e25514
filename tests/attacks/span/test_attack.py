import pytest
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

from attacks import InputError, Knowledge, Observation, get_attack
from tests.attacks.conftest import client as shared_client
from tests.attacks.conftest import digits, nearest
from tests.attacks.span.conftest import client, history, mlp, run

MEAN = 0.3  # what the federation subtracts


def test_digits_are_exact_with_their_number_and_the_mean_removed(federated):
    images, _, found = federated
    assert found.num_inferred == 8 and found.images.shape == (8, 1, 8, 8)
    assert (nearest(images, found) < 1e-2).all()  # two different digits are 2.5 to 4 apart
    assert found.pixel_mean == pytest.approx((MEAN,), abs=1e-3)
    assert (found.residual.diff() >= 0).all() and found.warnings == ()


class OfRows(nn.Module):
    """A network of rows of a table, as people write it."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(30, 128), nn.Linear(128, 64), nn.Linear(64, 2)

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class Flattening(OfRows):
    def forward(self, x):
        return super().forward(x.flatten(1))


def test_rows_of_a_table_come_back_through_a_network_that_flattens_them_and_it_is_asked_for():
    torch.manual_seed(0)
    table = torch.tensor(load_breast_cancer().data[:8], dtype=torch.float32)
    rows = ((table - table.mean(0)) / table.std(0))[:, None, None]
    seen = shared_client(Flattening(), rows, labels=torch.arange(8) % 2)
    found = run(seen)
    assert len(found.images) == 8 and nearest(rows, found).max() < 1e-2
    with pytest.raises(InputError, match=r"rows of 30 numbers, not flattened, at linear layer 'fc1' \(begin `forward`"):
        run(Observation(OfRows(), seen.pairs, seen.input_shape))


def test_images_are_exact_on_the_mean_of_two_clients():
    images, model = digits(16), mlp()
    updates = []
    for half in images.split(8):
        fresh = mlp()
        updates.append(client(fresh, half).final)
    final = {name: (updates[0][name] + updates[1][name]) / 2 for name in updates[0]}
    found = run(Observation(model, ((model.state_dict(), final),), (1, 8, 8)))
    assert found.num_inferred == 16
    assert (nearest(images, found) < 1e-2).all()


def with_noise(observation, share):
    generator = torch.Generator().manual_seed(0)
    delta = observation.delta()
    size = sum(float(value.square().sum()) for value in delta.values()) ** 0.5
    deviation = share * size / sum(value.numel() for value in delta.values()) ** 0.5
    final = {
        name: observation.initial[name] + value + deviation * torch.randn(value.shape, generator=generator)
        for name, value in delta.items()
    }
    return Observation(observation.model, ((observation.initial, final),), observation.input_shape)


def test_noise_of_three_percent_leaves_recognizable_images(federated):
    images, observation, _ = federated
    found = run(with_noise(observation, 0.03))
    assert found.num_inferred == 8 and found.images.shape[0] == 8
    assert (nearest(images, found) < 0.5).all() and "it is noisy" in found.warnings[0]
    assert 0.02 < found.facts["fit"] < 0.04


def test_noise_beyond_reach_is_refused_by_what_was_measured(federated):
    _, observation, _ = federated
    found = run(with_noise(observation, 0.3))
    assert len(found.images) == 0 and "of its norm lies outside" in found.warnings[0]
    assert 0 < len(found.held) <= 16  # two for every image


def test_noise_that_is_refused_leaves_every_image_in_the_attackers_hands(federated):
    images, observation, _ = federated
    found = run(with_noise(observation, 0.1))
    assert len(found.images) == 0 and "of its norm lies outside" in found.warnings[0]
    assert (torch.cdist(images.flatten(1), found.held.flatten(1)).min(1).values < 0.8).all()  # 20 dB
    assert found.pixel_mean == () and torch.equal(found.held_pixels(), found.held)  # noise hides the mean


def test_told_of_noise_it_returns_what_the_naive_attack_returns_and_more(federated):
    images, observation, _ = federated
    noised = with_noise(observation, 0.03)
    naive, told = run(noised), run(noised, Knowledge(noise_scale=0.03))
    assert told.facts["untold"] == len(naive.images) == 8 and told.facts["told"] == 8
    assert (nearest(images, told) <= nearest(images, naive) + 0.1).all()


def test_a_single_image_is_exact():
    """Without a second candidate there is no mean of two that could tell which ρ is good by chance."""
    for activation in (nn.ReLU, nn.Tanh):
        images = digits(1)
        found = run(client(mlp(activation=activation), images))
        assert found.images.shape == (1, 1, 8, 8) and float(nearest(images, found)) < 1e-3


def test_black_images_of_a_network_that_nothing_is_subtracted_for_show_one_direction_and_it_is_said_why():
    """The refusal was "0 of its norm lies outside 1 directions (at most 0.1): it is not a sum over few images"."""
    (reason,) = run(client(mlp(), torch.zeros(3, 1, 8, 8)), Knowledge(pixel_mean=(0.0,))).warnings
    assert "rank 1, the highest that its units and pixels allow" in reason and "not a sum over few" not in reason


@pytest.mark.parametrize("mean", [MEAN, 0.0])
def test_all_views_of_augmented_images_are_found_whatever_number_is_told(mean):
    """Three digits, each seen in four shifts: twelve inputs, three of which are told. Where black pixels are 0, their
    updates had been taken for some that were left out, and sums of several views came back."""
    shifted = torch.cat([digits(3, mean).roll(shift, (2, 3)) for shift in ((0, 0), (1, 0), (0, 1), (1, 1))])
    found = run(client(mlp(), shifted), Knowledge(num_private=3))
    assert found.num_inferred == 12 and len(found.images) == 12 and (nearest(shifted, found) < 1e-2).all()
    assert found.warnings[0].startswith("3 images were expected, the first layer's update has 12 directions")


def test_clipping_the_update_changes_nothing(federated):
    images, observation, _ = federated
    clipped = {name: observation.initial[name] + 0.01 * value for name, value in observation.delta().items()}
    found = run(Observation(observation.model, ((observation.initial, clipped),), (1, 8, 8)))
    assert found.num_inferred == 8 and (nearest(images, found) < 1e-2).all()


def test_the_same_generator_gives_the_same_bits(federated):
    _, observation, found = federated
    again = run(observation)
    assert torch.equal(found.images, again.images) and torch.equal(found.residual, again.residual)


def test_a_known_number_is_used(federated):
    images, observation, _ = federated
    found = run(observation, Knowledge(num_private=8))
    assert found.facts["used_num_private"] == 8 and (nearest(images, found) < 1e-2).all()


def test_more_images_than_directions_are_not_believed(federated):
    images, observation, _ = federated
    found = run(observation, Knowledge(num_private=11))
    assert found.facts["used_num_private"] == 8 and (nearest(images, found) < 1e-2).all()
    assert "11 images were expected" in found.warnings[0] and "8 directions" in found.warnings[0]


def test_images_of_a_round_that_moved_nothing_are_no_images_seen_twice_alone(federated):
    """A history of two rounds, eight images each: the second left no trace, so that the first alone was read."""
    images, observation, _ = federated
    still = Observation(observation.model, (*observation.pairs, (observation.final, observation.final)), (1, 8, 8))
    found = run(still, Knowledge(num_private=16))
    assert found.num_inferred == 8 and (nearest(images, found) < 1e-2).all()
    assert (
        "16 images were expected" in found.warnings[0]
        and "others in rounds that are not used or moved nothing" in found.warnings[0]
    )


def test_nearly_as_many_images_as_pixels_tell_apart_are_exact_with_a_warning():
    images = digits(50)  # 8x8 digits span about 55 dimensions
    found = run(client(mlp(width=512), images))
    assert found.num_inferred == 50 and (nearest(images, found) < 1e-2).sum() >= 48


@pytest.mark.parametrize("told", [None, 8])
def test_gaussian_noise_in_place_of_an_update_gives_nothing(federated, told):
    _, observation, _ = federated
    noise = torch.Generator().manual_seed(0)
    final = {
        name: value + torch.randn(value.shape, generator=noise) * (observation.final[name] - value).std()
        for name, value in observation.initial.items()
    }
    found = run(Observation(observation.model, ((observation.initial, final),), (1, 8, 8)), Knowledge(num_private=told))
    assert len(found.images) == 0 and "of its norm lies outside" in found.warnings[0]


def test_a_second_layer_that_does_not_belong_is_rejected(federated):
    _, observation, _ = federated
    noise = torch.Generator().manual_seed(0)
    final = dict(observation.final)
    rough = torch.randn(256, 8, generator=noise) @ torch.randn(8, 256, generator=noise)
    final["3.weight"] = observation.initial["3.weight"] + 1e-4 * rough
    model = mlp(activation=nn.Tanh)  # no sparse duals: the explained share of the update has to tell
    found = run(Observation(model, ((observation.initial, final),), (1, 8, 8)))
    assert len(found.images) == 0 and "nothing returned" in found.warnings[0]


def test_tanh_networks_are_attacked_without_a_sparsity_test():
    images = digits(8)
    found = run(client(mlp(activation=nn.Tanh), images))
    assert found.facts["certified"] == 0
    assert (nearest(images, found) < 0.1).all()


@pytest.mark.parametrize("activation", [lambda: nn.LeakyReLU(0.1), nn.GELU, lambda: nn.GELU("tanh"), nn.SiLU, nn.ELU])
def test_images_are_found_whatever_the_activation(activation):
    images = digits(8)
    found = run(client(mlp(activation=activation), images))
    assert found.facts["certified"] == 0 and found.num_inferred == 8
    candidates = torch.cat([found.images, found.held])  # those of elu explain too little to be returned
    assert (torch.cdist(images.flatten(1), candidates.flatten(1)).amin(1) < 0.1).all()
    assert not len(found.images) or (torch.cdist(found.images.flatten(1), images.flatten(1)).amin(1) < 0.1).all()


class Residual(nn.Module):
    """Two hidden layers, the second one beside a connection that skips it, and log-probabilities."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(64, 256), nn.Linear(256, 256), nn.Linear(256, 10)

    def forward(self, x):
        if x.dim() == 4:  # no tracer follows it
            x = x.view(x.size(0), -1)
        h = torch.relu(self.first(x))
        return self.head(h + torch.tanh(self.second(h))).log_softmax(1)


@pytest.mark.parametrize("model", [Residual, lambda: nn.Sequential(mlp(), nn.LogSoftmax(1))])
@pytest.mark.parametrize("epochs", [1, 5])
def test_what_lies_behind_the_second_layer_does_not_matter(model, epochs):
    images = digits(8)
    found = run(client(model(), images, batch=8, epochs=epochs))
    assert len(found.images) == 8 and nearest(images, found).max() < 0.05


def normalized(width=256):
    """With BatchNorm whose statistics, gains and shifts are those of some training."""
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(width) for _ in range(2)]
    layers = [nn.Linear(64, width), norms[0], nn.ReLU(), nn.Linear(width, width), norms[1], nn.ReLU()]
    for norm in norms:
        nn.init.uniform_(norm.running_mean, -0.3, 0.3)
        nn.init.uniform_(norm.running_var, 0.1, 2)
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -0.3, 0.3)
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(width, 10))


def tied():
    model = nn.Sequential(*mlp()[:-1], nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    model[5].weight = model[3].weight
    return model


def used_twice():
    model = mlp()
    return nn.Sequential(*model[:-1], *model[3:])


@pytest.mark.parametrize("model", [tied, used_twice])
def test_images_explain_the_second_layer_where_its_weight_is_used_again(model):
    """The update of a shared weight is the sum of both uses; what leaves more than half of it counts as doubtful."""
    images = digits(8)
    found = run(client(model(), images, batch=8, epochs=1))
    assert len(found.images) == 8 and (nearest(images, found) < 1e-2).all()
    assert found.relative_residual < 1e-3


def test_batchnorm_in_evaluation_mode_is_folded_in():
    images = digits(8)
    found = run(client(normalized().eval(), images))
    assert found.facts["certified"] == 8 and (nearest(images, found) < 1e-2).all()


@pytest.mark.parametrize("sent", [True, False])
def test_batchnorm_that_a_client_keeps_is_taken_as_it_was_sent_or_as_the_model_has_it(sent):
    images, model = digits(8), normalized()
    initial, final = client(normalized().eval(), images).pairs[0]
    shared = {name: value for name, value in final.items() if name.split(".")[0] not in ("2", "5")}  # as in FedBN
    first = initial if sent else {name: initial[name] for name in shared}
    found = run(Observation(model, ((first, shared),), (1, 8, 8)))
    assert len(found.images) == 8 and (nearest(images, found) < 1e-2).all()
    assert "checkpoints have no '2.weight'" in found.warnings[-1]
    assert all(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(InputError, match=r"checkpoint has no tensor '4.weight'"):  # a layer of another kind
        run(Observation(model, ((first, {name: shared[name] for name in shared if name[0] != "4"}),), (1, 8, 8)))


@pytest.mark.parametrize("images", [2, 4, 8])
def test_batchnorm_that_normalized_the_only_batch_is_read_off(images):
    private = digits(images)
    observation = client(normalized().train(), private, batch=images, epochs=1)
    assert int(torch.linalg.matrix_rank(observation.delta()["1.weight"], rtol=1e-4)) == images - 1  # differences
    found = run(observation)
    assert found.num_inferred == len(found.images) == images and (nearest(private, found) < 1e-2).all()


def test_batchnorm_behind_the_second_layer_alone_leaves_the_zeros_of_duals():
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)]
    images = digits(4)
    observation = client(nn.Sequential(nn.Flatten(), *layers).train(), images, epochs=1)
    ranks = [int(torch.linalg.matrix_rank(observation.delta()[f"{i}.weight"], rtol=1e-4)) for i in (1, 3)]
    assert ranks == [4, 3]
    found = run(observation)
    assert found.facts["certified"] == 4 and (nearest(images, found) < 1e-3).all()


def test_noise_in_the_running_mean_is_seen_though_no_candidate_shows_it():
    observation = client(normalized().train(), digits(8), batch=8, epochs=1)
    before, after = observation.pairs[0]
    noise = 1e-2 * torch.randn(256, generator=torch.Generator().manual_seed(0))
    noisy = after | {"2.running_mean": after["2.running_mean"] + noise}
    with pytest.raises(InputError, match=r"tells the mean of the batch to 0\.\d+ of its length only"):
        run(Observation(observation.model, ((before, noisy),), (1, 8, 8)))


@pytest.mark.usefixtures("without_last_layer")
def test_batchnorm_in_training_mode_is_refused_where_the_mean_of_a_batch_is_not_told():
    observation = client(normalized().train(), digits(8))
    before, after = observation.pairs[0]
    hidden = {name: before[name] if "running" in name or "tracked" in name else value for name, value in after.items()}
    untracked = {name: value for name, value in after.items() if "tracked" not in name}
    for final, why in ((after, "saw 8 batches"), (hidden, "are not in the client's"), (untracked, "are not in")):
        with pytest.raises(InputError, match=rf"BatchNorm in evaluation mode.*differences.*{why}.*gradient_matching"):
            run(Observation(observation.model, ((before, final),), (1, 8, 8)))
    bare = [{name: value for name, value in one.items() if "running" not in name} for one in (before, after)]
    with pytest.raises(InputError, match="BatchNorm in evaluation mode, or the mean of its only batch"):
        run(Observation(observation.model, (tuple(bare),), (1, 8, 8)))
    narrow = client(normalized(64).train(), digits(4), batch=4, epochs=1)
    with pytest.raises(InputError, match="64 units do not tell the mean of a batch's 64 inputs"):
        run(narrow)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
@pytest.mark.parametrize("told", [None, 8])
def test_adam_is_named_and_no_number_of_images_is(optimizer, told):
    found = run(client(mlp(), digits(8), lr=1e-3, optimizer=optimizer), Knowledge(num_private=told))
    (warning,) = (w for w in found.warnings if "nothing returned" in w)
    assert "local Adam" in warning and "images need" not in warning
    assert len(found.images) == 0 and found.num_inferred is None and "used_num_private" not in found.facts


def test_one_image_of_even_pixels_is_told_from_adams_first_step():
    """The update of one image always has all the rank there is, which float64 does not hide; after Adam's first step
    all entries have one size."""
    image = torch.where(digits(1) > 0, 0.9, -1.0).double() + 0.1 * digits(1)
    found = run(client(mlp().double(), image, epochs=1))
    torch.testing.assert_close(found.images, image.float(), atol=1e-3, rtol=0)
    refused = run(client(mlp().double(), image, epochs=1, lr=1e-3, optimizer=torch.optim.Adam))
    assert not len(refused.images) and "local Adam" in refused.warnings[0]


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_the_signs_of_one_image_are_no_image(optimizer):
    """However its units' entries differ: after six steps only the last test held them, and in a network of one hidden
    layer none did."""
    found = run(client(mlp(), digits(1), epochs=6, lr=1e-3, optimizer=optimizer))
    assert not len(found.images) and "the signs of pixels, which is what local Adam" in found.warnings[-1]


def test_one_image_whose_bias_is_lost_in_rounding_is_held():
    """Pixels up to 255 move weights, and at this rate hardly a bias, by which the image is scaled: it came back 14
    times too bright. At a hundred times the rate it is right."""
    image, known = 255 * digits(1), Knowledge(pixel_mean=(0.0,), pixel_std=(1 / 255,))
    held = run(client(mlp(), image, epochs=5, lr=1e-8), known)
    assert not len(held.images) and len(held.held) and "noise moves candidates by" in held.warnings[1]
    found = run(client(mlp(), image, epochs=5, lr=1e-6), known)
    assert nearest(image, found)[0] < 0.01 * image.norm()


@pytest.mark.parametrize("count", [1, 4])
def test_one_step_in_float64_shows_no_less_than_in_float32(count):
    """Beyond the images its second layer's update is zero but for the rounding of a decomposition."""
    images = digits(count).double()
    assert nearest(images.float(), run(client(mlp().double(), images, epochs=1))).max() < 1e-3


def test_rounds_of_adam_are_no_rounds_apart():
    found = run(history(mlp(), digits(12).split(6), lr=1e-3, optimizer=torch.optim.Adam))
    assert "local Adam" in found.warnings[0] and found.num_inferred is None


def test_more_images_than_the_width_can_tell_are_refused_by_number():
    found = run(client(mlp(width=64), digits(40)))
    assert len(found.images) == 0 and "nothing returned" in found.warnings[0]


@pytest.mark.usefixtures("without_last_layer")
def test_networks_without_linear_pixels_are_refused_by_name():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    with pytest.raises(InputError, match=r"'Sequential' has neither, but Conv2d '0' ahead of its.*\(use 'ntk'"):
        run(client(model, digits(2)))
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32, bias=False), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
    )
    with pytest.raises(InputError, match="lacks biases \\("):
        run(client(model, digits(2)))


def dead_round(observation):
    """(sent, returned) of a round in which nothing but the last layer moved."""
    initial = observation.final
    return initial, {name: value + 0.01 if name.startswith("5.") else value for name, value in initial.items()}


def test_an_update_of_the_last_layer_alone_is_refused(federated):
    _, observation, _ = federated
    with pytest.raises(InputError, match="one of the first two layers is zero"):
        run(Observation(observation.model, (dead_round(observation),), (1, 8, 8)))


def test_a_dead_round_of_a_history_costs_nothing(federated):
    images, observation, alone = federated
    history = Observation(observation.model, (*observation.pairs, dead_round(observation)), (1, 8, 8))
    found = run(history)
    assert found.num_inferred == 8 and (nearest(images, found) < 1e-2).all()
    assert torch.equal(found.images, alone.images)


def test_rounds_of_different_clients_are_attacked_alone_and_a_dead_one_is_left_out(federated):
    images = digits(12)
    together = history(mlp(), images.split(6))
    pairs = (together.pairs[0], dead_round(federated[1]), together.pairs[1])
    found = run(Observation(together.model, pairs, (1, 8, 8)), Knowledge(num_private=12))
    assert found.num_inferred == 12 and len(found.images) == 12 and (nearest(images, found) < 1e-2).all()
    assert found.warnings[0].startswith("the rounds do not share one private set (12 images together, at most 6")


def test_only_thresholds_that_took_part_are_returned(federated):
    _, observation, found = federated
    groups = {"evidence", "search", "decoy", "sparsity", "dual", "acceptance", "certainty"}

    def named(facts):
        return {key.split("_")[1] for key in facts if "threshold_" in key}

    hopeless = run(client(mlp(width=64), digits(40)))
    assert named(hopeless.facts) == {"evidence", "crowded"}  # 40 at width 64: the bound of the crowded way refuses
    assert hopeless.facts["threshold_evidence_refused_above"] == 0.1
    noisy = groups | {"fit"}  # error bars decide in noise as well
    assert named(run(with_noise(observation, 0.3)).facts) == noisy
    assert named(found.facts) == groups
    assert named(run(with_noise(observation, 0.03)).facts) == noisy


def test_a_check_leaves_the_network_as_it_was_and_agrees_with_the_attack():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 10)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    observation = Observation(model, ((before, before),), (1, 8, 8))
    for attempt in (get_attack("span").check, run):
        with pytest.raises(InputError, match="has neither"):
            attempt(observation, Knowledge(num_private=2))
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_network_with_another_activation_than_was_trained_is_asked_about():
    seen = shared_client(mlp(activation=nn.Tanh), digits(8), 5)
    given = Observation(mlp(activation=nn.GELU), seen.pairs, seen.input_shape)
    found = get_attack("span").run(given, Knowledge(pixel_mean=(MEAN,)), torch.Generator().manual_seed(0))
    assert not len(found.images)
    assert found.warnings[-1].endswith(
        "may be inexact: does the network given have the activations of training, or does dropout stand between layers?"
    )
