"""Networks of one hidden layer: duals of two values."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import Knowledge, Observation
from attacks.interface.errors import InputError
from attacks.span.own_units import OwnUnits
from attacks.span.sparse_duals import DualSpace
from attacks.span.variants.one_hidden import FoundDuals, two_valued
from attacks.update.spectrum import Spectrum
from tests.attacks.conftest import client as shared_client
from tests.attacks.conftest import digits, in_bfloat16, nearest
from tests.attacks.span.conftest import SHAPE, client, history, run

EXACT = 1e-2  # L2; two digits are 2.5 apart and more


def network(width=256, outputs=10, activation=nn.ReLU):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), activation(), nn.Linear(width, outputs))


def changed(observation, change):
    """The observation with the first layer's update [ΔW | Δb] (W, 65) that `change` makes of it."""
    ((sent, returned),) = observation.pairs
    new = change(
        torch.cat([returned["1.weight"] - sent["1.weight"], (returned["1.bias"] - sent["1.bias"])[:, None]], 1)
    )
    first = {"1.weight": sent["1.weight"] + new[:, :-1], "1.bias": sent["1.bias"] + new[:, -1]}
    return Observation(observation.model, ((sent, {**returned, **first}),), SHAPE)


@pytest.mark.parametrize("count", [1, 2, 12, 40])
def test_one_step_gives_every_image(count):
    found = run(client(network(), digits(count), batch=count, epochs=1))
    assert len(found.images) == found.num_inferred == count
    assert nearest(digits(count), found).max() < EXACT and found.residual.median() < 0.001


@pytest.mark.parametrize("count", [1, 4, 40])
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("factors", [(3.0, 1.0), (0.5, 2.0)])
def test_images_of_another_size_are_held(count, epochs, factors):
    """As LARS and clipping tensor by tensor make them, whose weights learn at other rates than their biases: they had
    come back three times as large, or half as large. Without biases at first, nothing but the output layer tells."""
    model = network()
    for layer in (model[1], model[3]):
        nn.init.zeros_(layer.bias)
    observation = client(model, digits(count), batch=count, epochs=epochs)
    ((sent, returned),) = observation.pairs
    rates = {"1.weight": factors[0], "3.weight": factors[1]}
    other = {name: sent[name] + rates.get(name, 1.0) * (returned[name] - sent[name]) for name in sent}
    found = run(Observation(observation.model, ((sent, other),), SHAPE))
    assert len(found.images) == 0 and "holds them at another size" in " ".join(found.warnings)
    away = torch.cdist(factors[0] * digits(count).flatten(1), found.held.flatten(1))
    assert away.min(1).values.max() < 5 * EXACT


def test_log_probabilities_at_the_outputs_change_nothing():
    found = run(client(nn.Sequential(network(), nn.LogSoftmax(1)), digits(12), batch=12, epochs=1))
    assert len(found.images) == 12 and nearest(digits(12), found).max() < EXACT


def test_many_classes_few_of_which_are_there():
    found = run(client(network(outputs=100), digits(12), batch=12, epochs=1))
    assert len(found.images) == 12 and nearest(digits(12), found).max() < EXACT


def test_batches_over_epochs_give_every_image():
    found = run(client(network(), digits(12), batch=4, epochs=3))
    assert len(found.images) == 12 and nearest(digits(12), found).max() < EXACT


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_body_whose_output_layer_stays_with_the_client(rounds):
    """Its second layer is no output layer: no signal is a prediction less a label. Two rounds broke it."""
    torch.manual_seed(0)
    model = nn.Sequential(network(outputs=96), nn.ReLU(), nn.Linear(96, 10))  # behind the body: what is not sent
    pairs = history(model, [digits(12)] * rounds, lr=0.2).pairs
    of_body = [[{name[2:]: one[name] for name in one if name.startswith("0.")} for one in pair] for pair in pairs]
    found = run(Observation(nn.Sequential(*model[0], nn.ReLU()), tuple(map(tuple, of_body)), SHAPE))
    assert len(found.images) == 12 and nearest(digits(12), found).max() < EXACT


def test_one_output_is_enough():
    model, images = network(outputs=1), digits(8)
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    step = torch.optim.SGD(model.parameters(), lr=0.1)
    F.binary_cross_entropy_with_logits(model(images)[:, 0], torch.arange(8) % 2.0).backward()
    step.step()
    found = run(Observation(model, ((sent, model.state_dict()),), SHAPE))
    assert len(found.images) == 8 and nearest(images, found).max() < EXACT


def test_batchnorm_that_rests_is_folded_in():
    model = network()
    model.insert(2, nn.BatchNorm1d(256))
    torch.nn.init.uniform_(model[2].weight, 0.5, 2)
    found = run(client(model.eval(), digits(8), batch=8, epochs=1))
    assert len(found.images) == 8 and nearest(digits(8), found).max() < EXACT


def test_batchnorm_of_a_batch_is_refused_as_it_leaves_no_zeros():
    model = network()
    model.insert(2, nn.BatchNorm1d(256))
    with pytest.raises(InputError, match="'Sequential' normalized by the batch, so that every image leaves a trace"):
        run(client(model.train(), digits(8), batch=8, epochs=1))


def test_of_several_rounds_the_first_is_used_and_said_so():
    found = run(history(network(), digits(12).split(6), batch=6, epochs=1))
    assert len(found.images) == 6 and nearest(digits(6), found).max() < EXACT
    assert "only round 1 of 2 is used" in found.warnings


def test_mixtures_of_duals_are_held():
    """Five images whose duals no unit leaves out: rows of an update that are random mixtures."""

    def mixed(update):
        return update @ torch.linalg.pinv(update) @ torch.randn(len(update), 5) @ torch.randn(5, update.shape[1])

    torch.manual_seed(1)
    found = run(changed(client(network(), digits(8), batch=8, epochs=1), mixed))
    (warning,) = (w for w in found.warnings if "nothing returned" in w)
    assert not len(found.images) and "0 of 5 duals were found" in warning


def test_noise_that_leaves_zeros_apart_gives_every_image():
    noisy = changed(
        client(network(), digits(8), batch=8, epochs=1), lambda new: new + 0.005 * new.std() * torch.randn_like(new)
    )
    found = run(noisy, Knowledge(num_private=8))
    assert len(found.images) == 8 and nearest(digits(8), found).max() < 0.1


def mixed_precision(model, labels, steps, start=0):
    """A client that trains in bfloat16, as `torch.autocast` does it, and its images."""
    images = digits(len(labels), start=start)
    with in_bfloat16(model):
        return shared_client(model, images, steps, labels), images


@pytest.mark.parametrize("steps", [1, 5])
def test_mixed_precision_gives_every_image_to_its_rounding(steps):
    observation, images = mixed_precision(network(512), torch.arange(8), steps)
    found = run(observation)
    # bfloat16 has 8 significant bits: it rounds a number by 2^-9 of it at most, and the gradient anew
    assert len(found.images) == 8 and (nearest(images, found) < 2**-8 * images.flatten(1).norm(dim=1)).all()


@pytest.mark.parametrize("seed", [0, 6])
def test_mixtures_that_rounding_hides_are_held(seed):
    """Sixteen images of a narrow layer: in bfloat16 mixtures have as many zeros as duals have."""
    torch.manual_seed(seed)
    labels = torch.randint(0, 10, (16,))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    observation, images = mixed_precision(model, labels, 10, start=37 * seed)
    found = run(observation, Knowledge(pixel_mean=(0.3,), pixel_std=(1.0,)))
    far = torch.cdist(found.images.flatten(1), images.flatten(1)).amin(1) if len(found.images) else torch.zeros(0)
    assert (far < 0.8).all()  # 20 dB
    assert len(found.images) + len(found.held) >= 14


@pytest.mark.usefixtures("without_last_layer")
def test_other_activations_are_refused_by_name():
    with pytest.raises(InputError, match=r"one of ReLU.*'Sequential' has one of tanh"):
        run(client(network(activation=nn.Tanh), digits(2)))
    with pytest.raises(InputError, match="has no hidden layer"):
        run(client(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), digits(2)))


def test_a_vector_of_two_known_values_is_found_in_a_random_space():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 200, generator=generator, dtype=torch.float64)
    signal = torch.tensor([1.0, -0.4, -0.6], dtype=torch.float64)
    dual = (torch.rand(200, generator=generator) < 0.5) * (signal @ outputs)
    others = torch.randn(200, 9, generator=generator, dtype=torch.float64)
    left = torch.linalg.qr(torch.cat([others, dual[:, None]], 1))[0]
    found, miss = two_valued(left, outputs, signal, torch.randn(20, 10, generator=generator), (40, 15))
    best = found[miss.argmin()]
    assert miss.min() < 1e-6
    assert torch.allclose((left @ best).abs(), dual.abs() / dual.norm(), atol=1e-4)


@pytest.mark.parametrize(("wrong", "complete"), [(False, True), (True, False)])
def test_a_mixture_among_the_duals_is_seen_by_an_image_with_units_of_its_own(wrong, complete):
    """Of six duals the last one is its sum with the fifth: as many as images, and all images would change."""
    images, observation = digits(6).flatten(1).double(), client(network(), digits(6), batch=6, epochs=1)
    ((sent, returned),) = observation.pairs
    first, last = (torch.cat([s["1.weight"], s["1.bias"][:, None]], 1).double() for s in (sent, returned))
    space = DualSpace.of(first, last, Spectrum.of(last - first), 6)
    duals = torch.linalg.pinv(space.coordinates(images)).T
    if wrong:
        duals[5] = duals[4] + duals[5]
    own = OwnUnits(images[4:5], space.left.new_zeros(1, len(space.left)), space.values[:1])
    directions, nothing = duals[[4, 0, 1, 2, 3, 5]], duals.new_zeros(6, 20)
    found = FoundDuals(space, torch.nn.functional.normalize(directions), nothing, nothing[:, 0], own)
    assert found.missing == 0 and found.complete is complete
