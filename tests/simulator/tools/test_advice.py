"""Which attack `diagnose` says to try first, and why the others do not do."""

import torch
from torch import nn

from attacks import Knowledge, Observation, get_attack
from attacks.interface.torch_tools import torch_generator
from attacks.kernel.regime import Linearity, OnImages, UpdateFacts
from simulator.tools.diagnosis import advice, own_images, whose_images
from tests.attacks.span.variants.test_patch_embedding import SHAPE as PICTURE
from tests.attacks.span.variants.test_patch_embedding import Timm
from tests.simulator.audit.recorded import NORMALIZATION, SHAPE, digits, network, trained


def advised(model, start, end, **told):
    observation = Observation(model, ((start, end),), SHAPE)
    generator, inputs = torch_generator(0, "test"), NORMALIZATION.inputs(digits(3)[0])
    found = Linearity(UpdateFacts.of(observation, generator), OnImages.of(observation, inputs, generator, points=()))
    return advice(observation, Knowledge(**told), found)


def start_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_span_is_named_where_the_first_layer_shows_the_images():
    model = network(64)
    start = start_of(model)
    first, span, ntk, gradients = advised(model, start, trained(model, start, 0))
    assert first == "Try `span` first."
    assert span.startswith("span: works where training was plain SGD") and "clear rank 10, so 10 images span it" in span
    assert ntk.startswith("ntk: can be tried") and gradients.startswith("gradient_matching: does not run")
    assert "needs learning_rate" in gradients


def test_behind_dropout_span_is_said_to_hold_what_it_finds():
    torch.manual_seed(0)
    hidden = [(nn.Linear(into, 256), nn.ReLU(), nn.Dropout(0.2)) for into in (64, 256)]
    model = nn.Sequential(nn.Flatten(), *hidden[0], *hidden[1], nn.Linear(256, 10))
    start, images = start_of(model), NORMALIZATION.inputs(digits(4)[0])
    descent = torch.optim.SGD(model.parameters(), lr=0.05)
    nn.functional.cross_entropy(model(images), torch.arange(len(images))).backward()
    descent.step()
    model.zero_grad()
    first, span, *_ = advised(model, start, start_of(model))
    observation = Observation(model, ((start, start_of(model)),), SHAPE)
    found = get_attack("span").run(observation, Knowledge(), torch_generator(0, "test"))
    assert torch.cdist(images.flatten(1), found.held.flatten(1)).amin(1).max() < 0.01 and not len(found.images)
    assert first == "Try `span` first." and span.endswith("may hold what it finds, just as exact, and return nothing")


def test_two_networks_that_have_nothing_to_do_with_each_other_promise_nothing_to_span():
    model, other = network(64), network(64)
    for parameter in other.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    first, span, *_ = advised(model, start_of(model), start_of(other))
    assert "`span`" not in first and "promises little: the first layer's update has no clear rank" in span


def test_an_update_of_zero_is_said_to_be_one():
    model = network(64)
    (said,) = advised(model, start_of(model), start_of(model))
    assert said.startswith("The update is zero")


def transformer_diagnosed(count):
    """(how many of the private and of foreign images are the update's, what is said of it, the advice) after three
    steps on `count` images."""
    model, images = Timm(), torch.rand((count, *PICTURE), generator=torch.Generator().manual_seed(0))
    start = start_of(model)
    descent = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(3):
        descent.zero_grad()
        nn.functional.cross_entropy(model(images), torch.arange(count)).backward()
        descent.step()
    observation = Observation(model, ((start, start_of(model)),), PICTURE)
    generator = torch_generator(0, "test")
    found = Linearity(UpdateFacts.of(observation, generator), OnImages.of(observation, images, generator, points=()))
    own, foreign = (own_images(observation, one) for one in (images, 1 - images))
    return own, foreign, whose_images(own, count, found), advice(observation, Knowledge(), found)


def test_the_image_of_a_vision_transformer_is_promised_after_any_number_of_steps_and_recognized():
    own, foreign, whose, (first, span, *_) = transformer_diagnosed(1)
    assert (own, foreign) == (1, 0) and whose.startswith("The image is among those")
    assert first == "Try `span` first." and "however long the training" in span and "one local step" not in span


def test_of_a_vision_transformer_with_three_images_span_is_not_promised():
    own, foreign, whose, (first, span, *_) = transformer_diagnosed(3)
    assert own is None and foreign is None and "no linear layer sees whole images" in whose
    assert "`span`" not in first and "gives no image of this update, only those of clients of one image" in span


def test_of_a_vision_transformer_with_two_images_a_search_is_promised_and_not_run():
    *_, (first, span, *_) = transformer_diagnosed(2)
    assert first == "Try `span` first." and "can be tried: the update shows 2 images" in span
