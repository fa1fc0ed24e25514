import pytest
import torch

from attacks import InputError
from attacks.kernel.empirical import kernel_regression
from attacks.kernel.infinite import InfiniteNTK
from clients.config import ModelConfig
from clients.distillation import DistillOptions, distill
from clients.distillation.methods import balanced_targets, linearized_outputs, linearized_update, reconstruct_few
from clients.models import build_model


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def clusters(count, classes=2):
    """Noisy copies of one image per class, centered: any learner that works tells them apart."""
    centers = torch.randn((classes, 1, 4, 4), generator=generator(7))
    labels = torch.arange(count) % classes
    noise = torch.randn((count, 1, 4, 4), generator=generator(count))
    return centers[labels] + 0.3 * noise, labels


def test_targets_of_the_distilled_set_are_the_codes_of_the_classes_in_turn():
    assert balanced_targets(torch.tensor([[1.0], [-1.0], [1.0]]), 5).tolist() == [[-1], [1], [-1], [1], [-1]]
    codes = balanced_targets(torch.tensor([[0.9, -0.1], [-0.1, 0.9], [0.9, -0.1]]), 2)
    assert codes.argmax(1).tolist() == [1, 0]


@pytest.mark.parametrize("method", ["kip", "rkip"])
@pytest.mark.parametrize("classes", [2, 3])
def test_few_images_predict_all(method, classes):
    images, labels = clusters(30, classes)
    targets = torch.full((30, classes), -0.1).scatter(1, labels[:, None], 0.9)
    targets = targets if classes > 2 else targets[:, 1:].sub(0.4).mul(2)
    options = DistillOptions(method=method, iterations=400, learning_rate=0.01)
    found = distill(images, targets, 2 * classes, generator(), options)
    assert found.images.shape == (2 * classes, 1, 4, 4) and found.targets.shape == (2 * classes, targets.shape[1])
    assert found.trace[-1][1] < 0.5 * found.trace[0][1]
    kernel, new = InfiniteNTK(), clusters(200, classes)
    cross = kernel(new[0].double(), found.images.double())
    outputs = kernel_regression(kernel(found.images.double()), found.targets.double(), cross, 1e-5)
    predicted = outputs.argmax(1) if classes > 2 else (outputs[:, 0] > 0).long()
    assert (predicted == new[1]).double().mean() > 0.9


def test_the_same_generator_gives_the_same_images_and_progress_ends_at_the_last_iteration():
    images, labels = clusters(10)
    targets, calls = 2.0 * labels[:, None] - 1, []
    options = DistillOptions(iterations=150)
    first = distill(images, targets, 4, generator(3), options, progress=lambda *call: calls.append(call[:2]))
    second = distill(images, targets, 4, generator(3), options)
    assert torch.equal(first.images, second.images)
    assert calls == [(0, 150), (100, 150), (150, 150)]


def test_what_is_refused():
    images, targets = torch.zeros(4, 1, 4, 4), torch.ones(4, 1)
    with pytest.raises(InputError, match="size is 5, it has to lie between 1 and the number of images, 4"):
        distill(images, targets, 5, generator())
    with pytest.raises(InputError, match="needs a network"):
        distill(images, targets, 2, generator(), DistillOptions(method="rkip_finite"))
    with pytest.raises(InputError, match="did you mean 'rkip'"):
        DistillOptions(method="rkipp")
    with pytest.raises(InputError, match="iterations is 0"):
        DistillOptions(iterations=0)


def linear_prediction(model, state, final, images):
    """f_θ₀(x) + ∇f_θ₀(x)ᵀ(θ_f − θ₀), by forward-mode differentiation."""
    step = {name: final[name] - state[name] for name in state}
    value, slope = torch.func.jvp(lambda theta: torch.func.functional_call(model, theta, (images,)), (state,), (step,))
    return value + slope


def small_network(outputs):
    model = build_model(ModelConfig(width=64), (1, 4, 4), outputs, seed=1)
    return model, {name: value.detach().double() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("outputs", [1, 3])
def test_linearized_training_to_convergence_fits_every_target(outputs):
    model, state = small_network(outputs)
    images = clusters(10)[0].double()
    targets = torch.randn((10, outputs), generator=generator(), dtype=torch.float64)
    final = linearized_update(model, state, images, targets, ridge=1e-12)
    assert torch.allclose(linear_prediction(model, state, final, images), targets, atol=1e-6)


@pytest.mark.parametrize("outputs", [1, 3])
def test_labels_are_what_the_network_with_the_reconstructed_update_predicts(outputs):
    model, state = small_network(outputs)
    images = clusters(5)[0].double()
    duals = torch.randn((5, outputs), generator=generator(), dtype=torch.float64)
    total = {name: value.clone() for name, value in state.items()}
    for image, dual in zip(images, duals, strict=True):
        theta = {name: value.clone().requires_grad_() for name, value in state.items()}
        output = (torch.func.functional_call(model, theta, (image[None],)).flatten() * dual).sum()
        for name, gradient in zip(theta, torch.autograd.grad(output, list(theta.values())), strict=True):
            total[name] += gradient
    expected = linear_prediction(model, state, total, images)
    assert torch.allclose(linearized_outputs(model, state, images, duals), expected, rtol=1e-10)


def test_few_images_from_a_finite_network():
    images, labels = clusters(12)
    model, _ = small_network(1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = reconstruct_few(
        model, images, 2.0 * labels[:, None] - 1, 4, generator(), DistillOptions("rkip_finite", iterations=800)
    )
    assert found.images.shape == (4, 1, 4, 4) and found.targets.shape == (4, 1)
    assert found.trace[-1][1] < 0.3  # of ‖Δθ‖²: the noise of twelve images cannot be told by four
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    # least squares on the four labels tells the classes apart
    weights = torch.linalg.lstsq(found.images.flatten(1), found.targets).solution
    new, wanted = clusters(100)
    assert (((new.flatten(1) @ weights)[:, 0] > 0).long() == wanted).double().mean() > 0.9
