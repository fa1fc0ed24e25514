import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge, Observation, get_attack
from attacks.baselines import first_layer_residual, gradient_residual
from tests.attacks.conftest import MEAN, client, digits, generator, mlp, nearest


def observed(images, steps=3, convolutional=False):
    """A client with these images and a small network."""
    if not convolutional:
        return client(mlp(32, depth=1), images, steps)
    torch.manual_seed(0)
    return client(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 10)), images, steps)


def run(name, observation, knowledge, seed=0):
    return get_attack(name).run(observation, knowledge, generator(seed))


PUBLIC = digits(30, start=10)  # 30 images, of which the client has the first three
KNOWLEDGE = Knowledge(pixel_mean=(MEAN,), public_images=PUBLIC)


def test_the_mean_image():
    observation = observed(digits(3))
    found = run("mean_image", observation, KNOWLEDGE)
    assert torch.allclose(found.images, PUBLIC.mean(0, keepdim=True))
    uniform = run("mean_image", observation, Knowledge(pixel_mean=(MEAN,)))
    assert torch.equal(uniform.pixels(), torch.full((1, 1, 8, 8), 0.3))


def test_random_public_images_are_as_many_as_inferred_and_distinct():
    found = run("random_public", observed(digits(5)), KNOWLEDGE)
    assert found.num_inferred == 5 and len(found.images) == 5
    distance = torch.cdist(found.images.flatten(1), PUBLIC.flatten(1))
    assert (distance.min(1).values == 0).all() and distance.argmin(1).unique().numel() == 5
    other = run("random_public", observed(digits(5)), KNOWLEDGE, seed=1)
    assert not torch.equal(found.images, other.images)


@pytest.mark.parametrize("convolutional", [False, True])
def test_the_best_public_images_are_those_the_client_has(convolutional):
    count = 1 if convolutional else 3
    observation = observed(PUBLIC[:count], convolutional=convolutional)
    knowledge = Knowledge(num_private=count, pixel_mean=(MEAN,), public_images=PUBLIC)
    found = run("best_public", observation, knowledge)
    assert nearest(PUBLIC[:count], found).max() == 0
    assert (found.residual.diff() >= 0).all()


def test_residuals_of_members_vanish():
    observation = observed(PUBLIC[:3])
    rho = first_layer_residual(observation, PUBLIC, 3)
    assert rho[:3].max() < 1e-9 and rho[3:].min() > 1e-2
    # one step on one image: Δθ is a combination of its ∇f_k
    convolutional = observed(PUBLIC[:1], steps=1, convolutional=True)
    assert first_layer_residual(convolutional, PUBLIC, 1) is None
    outside = gradient_residual(convolutional, PUBLIC)
    assert outside[0] < 1e-9 and outside[1:].min() > 1e-3


def test_the_gradient_residual_against_least_squares():
    observation = observed(PUBLIC[:2], steps=2, convolutional=True)
    image, model = PUBLIC[5:6], observation.model
    model.load_state_dict(observation.initial)
    gradients = [torch.autograd.grad(model(image)[0, k], list(model.parameters())) for k in range(10)]
    rows = torch.stack([torch.cat([g.flatten() for g in gradient]) for gradient in gradients]).double()
    target = torch.cat([value.flatten() for value in observation.delta().values()])
    missed = target - rows.T @ torch.linalg.lstsq(rows.T, target[:, None]).solution[:, 0]
    expected = float(missed.square().sum() / target.square().sum())
    assert float(gradient_residual(observation, image)) == pytest.approx(expected, rel=1e-5)


def test_too_few_public_images_are_said():
    found = run("random_public", observed(digits(5)), Knowledge(num_private=50, public_images=PUBLIC))
    assert len(found.images) == 30 and "50 images wanted, 30 are public" in found.warnings


def test_a_zero_update_fits_nothing():
    with pytest.raises(InputError, match="update is zero"):
        run("best_public", observed(digits(2), steps=0), Knowledge(num_private=2, public_images=PUBLIC))


@pytest.mark.parametrize("name", ["random_public", "best_public"])
def test_public_images_are_needed_by_name(name):
    with pytest.raises(InputError, match="public_images"):
        run(name, observed(digits(2)), Knowledge())
    with pytest.raises(InputError, match=r"shape \(3, 1, 4, 4\)"):
        run(name, observed(digits(2)), Knowledge(public_images=torch.zeros(3, 1, 4, 4)))


def test_where_the_first_layer_did_not_move_the_gradients_of_the_others_tell():
    observation = observed(digits(1), steps=1)
    initial, final = observation.pairs[0]
    final = {name: initial[name] if name.startswith("1.") else value for name, value in final.items()}
    still = Observation(observation.model, ((initial, final),), (1, 8, 8))
    public = torch.cat([digits(40)[10:], digits(1)])
    found = run("best_public", still, Knowledge(num_private=1, pixel_mean=(MEAN,), public_images=public))
    assert torch.equal(found.images, digits(1))


@pytest.mark.parametrize("name", ["mean_image", "span", "ntk", "random_public"])
def test_a_mean_of_other_channels_is_refused_by_every_attack(name):
    with pytest.raises(InputError, match="pixel_mean has 2 values, the images have 1 channels"):
        run(name, observed(digits(2)), Knowledge(pixel_mean=(0.1, 0.2), public_images=PUBLIC))
