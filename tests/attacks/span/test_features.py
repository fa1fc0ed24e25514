import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import InputError, Knowledge, Observation, get_attack
from attacks.span.feature_search import resolved
from attacks.span.feature_space import FeatureProblem, find_feature_network, first_input
from attacks.span.inversion import PixelTest, roughness
from attacks.span.search import AffineSpan, SpanProblem, SpanTest
from attacks.span.sgd_steps import UpdateFactors, after_step, output_jacobian
from attacks.update.pixel_mean import infer_background
from attacks.update.spectrum import Spectrum

MEAN = 0.3  # what the federation subtracts
LR = 0.3


def digits(count):
    from sklearn.datasets import load_digits

    return torch.tensor(load_digits().images[:count] / 16, dtype=torch.float32)[:, None] - MEAN


class Functional(nn.Module):
    """Layers in an order of their own, activations and pooling as functions."""

    def __init__(self, width=128, activation=F.relu, pool=F.avg_pool2d, hidden=2):
        super().__init__()
        torch.manual_seed(0)
        self.activation, self.pool = activation, pool
        self.out = nn.Linear(96 if hidden == 2 else width, 10)
        self.second = nn.Linear(width, 96) if hidden == 2 else None
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.first = nn.Linear(512, width)
        self.deep = nn.Conv2d(16, 32, 3, padding=1)

    def forward(self, x):
        x = self.pool(self.activation(self.conv(x)), 2)
        x = self.activation(self.first(self.activation(self.deep(x)).flatten(1)))
        return self.out(x if self.second is None else self.activation(self.second(x)))


def client(model, images, batch, epochs, lr=LR, optimizer=torch.optim.SGD):
    """A FedAvg client: cross-entropy, the same batches in every epoch."""
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    step = optimizer(model.parameters(), lr=lr)
    labels = torch.arange(len(images)) % 10
    for _ in range(epochs):
        for i in torch.arange(len(images)).split(batch):
            step.zero_grad()
            F.cross_entropy(model(images[i]), labels[i]).backward()
            step.step()
    final = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return Observation(model, ((initial, final),), tuple(images.shape[1:]))


def run(observation, known=6, **options):
    attack = get_attack("span", **{"rounds": 3, "starts": 60, **options})
    return attack.run(observation, Knowledge(num_private=known), torch.Generator().manual_seed(0))


def nearest(images, found):
    return torch.cdist(images.flatten(1), found.images.flatten(1)).min(1).values


@pytest.fixture(scope="module")
def minibatches():
    torch.set_num_threads(1)
    images = digits(6)
    observation = client(Functional(), images, batch=3, epochs=4)
    return images, observation, run(observation)


def factors(observation, rank):
    """U S Vᵀ of the first fully connected layer's update, by the singular value decomposition."""
    delta = observation.delta()
    left, values, rows = torch.linalg.svd(torch.cat([delta["first.weight"], delta["first.bias"][:, None]], 1))
    return UpdateFactors(left[:, :rank], values[:rank], rows[:rank], True)


def test_layers_are_found_by_their_use_not_by_their_order():
    network = find_feature_network(Functional(), (1, 8, 8))
    assert network.layers == ("first", "second", "out") and network.nonnegative
    torch.testing.assert_close(network.activation(torch.tensor([-1.0, 2.0]), None)[0], torch.tensor([0.0, 2.0]))
    smooth = find_feature_network(Functional(activation=torch.tanh), (1, 8, 8))
    assert not smooth.nonnegative
    torch.testing.assert_close(smooth.activation(torch.tensor([0.5]), None)[0], torch.tensor([0.46211716]))
    assert find_feature_network(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), (1, 8, 8)) is None
    assert find_feature_network(nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()), (1, 8, 8)) is None


def test_features_are_what_the_first_fully_connected_layer_is_fed():
    model, images = Functional(), digits(3)
    expected = F.relu(model.deep(F.avg_pool2d(F.relu(model.conv(images)), 2))).flatten(1)
    torch.testing.assert_close(first_input(model, "first", model.state_dict(), images), expected)


def test_feature_gradient_is_that_of_the_penalized_residual():
    generator = torch.Generator().manual_seed(0)
    first, rows = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((12, 10), (4, 13)))
    test = SpanTest(first, torch.linalg.qr(rows.T)[0].T[None], lambda z, beta: (torch.tanh(z), 1 - torch.tanh(z) ** 2))
    span = AffineSpan.of(torch.randn(6, 10, generator=generator, dtype=torch.float64), generator)
    problem = FeatureProblem.of(SpanProblem.of(test, span), span, nonnegative=True)
    point = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    value, gradient = problem.value_and_gradient(point)
    h = span.images(point)
    negative = torch.where(h < 0, h, 0.0)
    torch.testing.assert_close(value, test.residual(h) + (negative**2).sum(1) / (h**2).sum(1))
    for j in range(5):
        shift = 1e-6 * torch.eye(5, dtype=torch.float64)[j]
        ahead, behind = (problem.value_and_gradient(point + sign * shift)[0] for sign in (1, -1))
        torch.testing.assert_close((ahead - behind) / 2e-6, gradient[:, j], rtol=1e-4, atol=1e-7)


def test_pixel_residual_is_the_part_outside_the_rows(minibatches):
    images, observation, _ = minibatches
    network = find_feature_network(observation.model, (1, 8, 8))
    rows = factors(observation, 24).rows
    test = PixelTest(network, observation.initial, rows.float())
    g = torch.cat([network.features(observation.initial, images), torch.ones(6, 1)], 1).detach().double()
    expected = ((g - g @ rows.T @ rows) ** 2).sum(1) / (g**2).sum(1)
    torch.testing.assert_close(test.residual(images, 24).detach().double(), expected, rtol=1e-2, atol=1e-12)
    assert expected[:3].max() < 1e-9 < 1e-5 < expected[3:].min()  # the second batch saw other parameters
    one = PixelTest(network, observation.initial, g[:1].float() / g[:1].norm().float())
    assert one.residual(images[:1], 1) < 1e-12
    known = torch.linalg.qr(g[:1].T)[0].T.float()
    deflated = test.residual(images, 12, known) / test.residual(images, 12)
    assert deflated[0] == pytest.approx(1000, rel=1e-3) and (deflated[1:] >= 1).all() and (deflated[1:] < 100).all()


def test_roughness_is_the_mean_squared_step_between_neighbours():
    image = torch.tensor([[0.0, 1.0], [0.0, 3.0]])[None, None]
    assert roughness(image).tolist() == pytest.approx([(0 + 4) / 2 + (1 + 9) / 2])


def test_duals_of_a_step_are_the_step_size_times_the_loss_gradient(minibatches):
    images, observation, _ = minibatches
    network = find_feature_network(observation.model, (1, 8, 8))
    state = observation.initial
    points = torch.cat([network.features(state, images), torch.ones(6, 1)], 1).detach()
    duals, gradient = factors(observation, 24).duals(output_jacobian(network, state, images), points)
    outputs = torch.func.functional_call(observation.model, state, (images,)).detach().double()
    expected = LR / 3 * (torch.eye(10, dtype=torch.float64)[:6] - outputs.softmax(1))
    torch.testing.assert_close(duals[:3], expected[:3], rtol=1e-2, atol=1e-5)
    assert gradient[:3].max() < 1e-7 and gradient[3:].min() > 1e-3


def test_parameters_after_a_step_are_those_of_sgd():
    model, images = Functional(), digits(3)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    names = tuple(initial)
    duals = LR / 3 * (torch.eye(10)[:3] - model(images).detach().softmax(1))
    expected = client(model, images, batch=3, epochs=1).final
    found = after_step(find_feature_network(model, (1, 8, 8)), initial, names, images, duals)
    for name in names:
        torch.testing.assert_close(found[name], expected[name])


def test_images_of_every_batch_are_found_at_their_own_step(minibatches):
    images, _, found = minibatches
    assert found.images.shape == (6, 1, 8, 8) and found.facts["steps"] == 2 and found.facts["used_num_private"] == 6
    assert (nearest(images, found) < 0.1).all()  # two different digits are 2.5 to 4 apart
    assert (found.residual < found.facts["gradient_threshold"]).all() and (found.residual.diff() >= 0).all()
    assert found.pixel_mean == pytest.approx((MEAN,), abs=0.03)


def test_full_batches_are_found_at_the_initial_parameters():
    images = digits(6)
    found = run(client(Functional(), images, batch=6, epochs=20, lr=0.05))
    assert found.facts["steps"] == 1 and (nearest(images, found) < 0.2).all() and len(found.images) == 6


def test_the_same_generator_gives_the_same_bits(minibatches):
    _, observation, found = minibatches
    again = run(observation)
    assert torch.equal(found.images, again.images) and torch.equal(found.residual, again.residual)


def test_wrong_images_are_vetoed():
    """A max-pool network with one hidden layer: from noise, ρ is driven far below that of impostors, on no image."""
    images = digits(12)
    observation = client(Functional(pool=F.max_pool2d, hidden=1), images, batch=12, epochs=20)
    found = run(observation, known=12, rounds=1)
    assert len(found.images) == 0 or (torch.cdist(found.images.flatten(1), images.flatten(1)).min(1).values < 1).all()
    assert "sought from noise" in found.warnings[0]


def test_local_adam_gives_nothing():
    found = run(client(Functional(), digits(6), 3, 4, lr=1e-3, optimizer=torch.optim.Adam))
    assert len(found.images) == 0 and "nothing returned" in found.warnings[0]


def test_the_number_of_images_is_required_by_name():
    observation = client(Functional(), digits(2), 2, 1)
    with pytest.raises(InputError, match="'span' needs num_private"):
        get_attack("span").check(observation, Knowledge())


def test_an_unchanged_checkpoint_is_refused():
    model = Functional()
    with pytest.raises(InputError, match="update is zero"):
        run(Observation(model, ((model.state_dict(), model.state_dict()),), (1, 8, 8)))


def test_rank_is_that_of_the_summands_or_ends_at_the_noise():
    generator = torch.Generator().manual_seed(0)
    left, right, noise = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((60, 12), (12, 200), (60, 200))
    )
    assert resolved(Spectrum.of(left @ right + 1e-8 * noise)) == (12, True)
    decaying = torch.linalg.qr(left)[0] * 0.5 ** torch.arange(12) @ right
    rank, exact = resolved(Spectrum.of(decaying + 1e-3 * noise))
    assert not exact and 6 <= rank <= 12


def test_background_is_the_most_frequent_value_with_little_below_it():
    images = torch.full((2, 1, 10, 10), -0.4)
    images[:, :, :3] = torch.linspace(-0.4, 0.6, 60).view(2, 1, 3, 10)
    assert infer_background(images) == pytest.approx((0.4,))
    assert infer_background(-images) is None
    assert infer_background(torch.linspace(-0.5, 0.5, 200).view(2, 1, 10, 10)) is None


def test_features_of_few_numbers_are_said_to_tell_little():
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten()]
    head = [nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 10)]
    found = run(client(nn.Sequential(*body, *head), digits(4), 2, 3), known=4, rounds=1)
    assert any("12 features stand for 64 pixels" in warning for warning in found.warnings)
