"""Both objectives against explicit per-sample gradients, against each other, and on updates with known duals."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.networks.products import break_even_rank, compress, low_rank
from attacks.ntk.mlp_objective import DenseObjective, LayerDelta
from attacks.ntk.objective import (
    AutogradObjective,
    backward_in_batches,
    gradient_sum_in_batches,
    make_objective,
    relative_residual,
    relative_residual_without,
)

SHAPE = (1, 4, 4)


def mlp(activation: type[nn.Module] = nn.ReLU, outputs: int = 1, bias: bool = True, width: int = 9) -> nn.Sequential:
    layers = nn.Linear(16, width, bias), activation(), nn.Linear(width, 8, bias), activation()
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(8, outputs, bias)).double()


class LeNet(nn.Module):
    """Two convolutions with functional ReLU, one of them in place, and a linear head."""

    def __init__(self, outputs: int):
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 2, 2), nn.Linear(2, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x), inplace=True)
        return self.head(torch.relu(self.second(x)).flatten(1))


def random_state(model: nn.Module, scale: float = 0.5) -> dict[str, Tensor]:
    return {name: scale * torch.randn_like(value) for name, value in model.named_parameters()}


def starting_point(count: int, outputs: int, views: int, dtype=torch.float64) -> tuple[Tensor, Tensor]:
    images, duals = torch.randn(count, *SHAPE, dtype=dtype), torch.randn(views, count, outputs, dtype=dtype)
    return images.requires_grad_(), duals.requires_grad_()


def smoothed(model: nn.Module, beta: float | None) -> nn.Module:
    if beta is None or not isinstance(model, nn.Sequential):
        return model
    return nn.Sequential(*(nn.Softplus(beta, 40) if isinstance(m, nn.ReLU) else m for m in model))


def per_sample_sum(model: nn.Module, views, images: Tensor, duals: Tensor) -> dict[str, Tensor]:
    total = {name: torch.zeros_like(value) for name, value in views[0].items()}
    for view, dual in zip(views, duals.detach(), strict=True):
        leaves = {name: value.clone().requires_grad_() for name, value in view.items()}
        for image, row in zip(images.detach(), dual, strict=True):
            for k, alpha in enumerate(row):
                output = torch.func.functional_call(model, leaves, (image[None],))[0, k]
                for name, grad in zip(leaves, torch.autograd.grad(output, list(leaves.values())), strict=True):
                    total[name] += alpha * grad
    return total


def gradients(objective, images: Tensor, duals: Tensor, beta: float | None) -> tuple[Tensor, Tensor, Tensor]:
    loss = objective.loss(images, duals, beta)
    return loss.detach(), *torch.autograd.grad(loss, (images, duals))


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    ("network", "beta", "double_backward", "kind"),
    [
        (mlp, None, False, DenseObjective),
        (mlp, 15.0, False, DenseObjective),
        (mlp, None, True, AutogradObjective),
        (mlp, 15.0, True, AutogradObjective),
        (LeNet, None, False, AutogradObjective),  # by double backward without being told to
    ],
)
@pytest.mark.parametrize("views", [1, 2])
def test_gradient_sum_is_the_sum_over_samples_outputs_and_views(network, beta, double_backward, kind, views):
    torch.manual_seed(0)
    model = network(outputs=3).double()
    states = [random_state(model) for _ in range(views)]
    images, duals = starting_point(5, 3, views)
    objective = make_objective(model, SHAPE, random_state(model), states, double_backward)
    assert isinstance(objective, kind)
    found = objective.gradient_sum(images, duals, beta)
    expected = per_sample_sum(smoothed(model, beta), states, images, duals)
    assert found.keys() == expected.keys()
    assert all((found[name] - expected[name]).abs().max() < 1e-12 for name in expected)


def test_functional_relu_of_a_convolutional_net_is_smoothed():
    torch.manual_seed(2)
    model = LeNet(outputs=1).double()
    objective = AutogradObjective(model, random_state(model), [random_state(model)])
    images, duals = starting_point(3, 1, 1)
    assert torch.autograd.gradcheck(lambda *at: objective.loss(*at, 15.0), (images, duals))


@pytest.mark.parametrize("count", [2, 40], ids=["grams", "residual"])
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(
    ("activation", "beta"),
    [(nn.ReLU, None), (nn.ReLU, 20.0), (nn.Tanh, None), (nn.Sigmoid, None), (nn.Softplus, None)],
)
def test_closed_form_and_double_backward_agree(activation, beta, outputs, views, count):
    torch.manual_seed(3)
    model = mlp(activation, outputs, width=32)
    delta, states = random_state(model), [random_state(model) for _ in range(views)]
    images, duals = starting_point(count, outputs, views)
    dense, double = (make_objective(model, SHAPE, delta, states, flag) for flag in (False, True))
    assert (dense.updates[0].gram_product(count * views) is not None) == (count == 2)
    for found, expected in zip(
        gradients(dense, images, duals, beta), gradients(double, images, duals, beta), strict=True
    ):
        assert relative(found, expected) < 1e-12


@pytest.mark.parametrize(
    "trained",
    [["1.weight"], ["1.bias"], ["3.weight", "3.bias"], ["5.weight"], ["5.bias"], ["1.weight", "5.bias"]],
    ids=lambda names: "+".join(names),
)
def test_frozen_layers_leave_the_sum(trained):
    torch.manual_seed(4)
    model = mlp()
    delta = {name: value for name, value in random_state(model).items() if name in trained}
    images, duals = starting_point(3, 1, 2)
    states = [random_state(model), random_state(model)]
    dense, double = (make_objective(model, SHAPE, delta, states, flag) for flag in (False, True))
    assert sorted(dense.gradient_sum(images, duals, None)) == sorted(trained)
    loss, *found = gradients(dense, images, duals, 20.0)
    expected_loss = double.loss(images, duals, 20.0)
    expected = torch.autograd.grad(expected_loss, (images, duals), materialize_grads=True)
    assert relative(loss, expected_loss.detach()) < 1e-12
    assert all((a - b).abs().max() < 1e-12 * float(loss) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("count", [2, 40], ids=["grams", "residual"])
def test_layers_without_bias(count):
    torch.manual_seed(5)
    model = mlp(bias=False, width=32)
    delta, states = random_state(model), [random_state(model)]
    images, duals = starting_point(count, 1, 1)
    dense, double = (make_objective(model, SHAPE, delta, states, flag) for flag in (False, True))
    for found, expected in zip(
        gradients(dense, images, duals, 20.0), gradients(double, images, duals, 20.0), strict=True
    ):
        assert relative(found, expected) < 1e-12


def test_gradients_of_the_closed_form_are_finite_differences():
    torch.manual_seed(6)
    model = mlp(outputs=2)
    objective = make_objective(model, SHAPE, random_state(model), [random_state(model), random_state(model)])
    direction = random_state(model)
    images, duals = starting_point(3, 2, 2)
    assert torch.autograd.gradcheck(lambda *at: objective.loss(*at, 15.0), (images, duals))
    assert torch.autograd.gradcheck(lambda *at: objective.inner(direction, *at, 15.0), (images, duals))


def test_low_rank_update_gives_the_loss_of_the_full_one():
    """A hidden layer of 200 x 200 whose Δ has rank 6, with rounding noise of a float32 checkpoint."""
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 1)
    )
    states = [{name: 0.1 * torch.randn_like(value) for name, value in model.named_parameters()}]
    delta = {name: 0.1 * torch.randn_like(value) for name, value in model.named_parameters()}
    delta["3.weight"] = torch.randn(200, 6) @ torch.randn(6, 200) + 1e-6 * torch.randn(200, 200)
    images, duals = starting_point(20, 1, 1, torch.float32)
    dense, double = (make_objective(model, SHAPE, delta, states, flag) for flag in (False, True))
    found = gradients(dense, images, duals, 20.0)
    assert dense.updates[1].gram_product(20).rank == 6
    for value, expected in zip(found, gradients(double, images, duals, 20.0), strict=True):
        assert relative(value, expected) < 1e-5


def test_the_rank_is_the_smallest_that_meets_the_tolerance():
    u, v = (torch.linalg.qr(torch.randn(n, 100, dtype=torch.float64)).Q for n in (300, 200))
    values = 10.0 ** -torch.arange(100, dtype=torch.float64)
    left, right = low_rank((u * values) @ v.T, 3e-5, 60)
    assert left.shape == (300, 5) and right.shape == (200, 5)
    error = torch.linalg.matrix_norm((u * values) @ v.T - left @ right.T, 2)
    assert abs(float(error) - 1e-5) < 1e-9
    assert low_rank(torch.randn(200, 200), 1e-5, 50) is None
    assert low_rank(torch.full((100, 100), torch.nan), 1e-5, 50) is None


def test_every_form_of_a_product_is_the_plain_one():
    weight = torch.randn(700, 3) @ torch.randn(3, 600)
    x, y = torch.randn(11, 600), torch.randn(11, 700)
    full = torch.randn(700, 600)
    for matrix, rank in ((weight, 3), (full, break_even_rank(full.shape))):
        product = compress(matrix)
        assert relative(product.forward(x), x @ matrix.T) < 1e-5
        assert relative(product.backward(y), y @ matrix) < 1e-5
        assert product.rank == rank


def test_the_form_of_the_loss_follows_the_number_of_candidates():
    full = LayerDelta(torch.randn(512, 256, dtype=torch.float64), None)  # full rank: break-even 512/3 = 171 each
    thin = LayerDelta(torch.randn(512, 4, dtype=torch.float64) @ torch.randn(4, 256, dtype=torch.float64), None)
    assert [full.gram_product(rows) is not None for rows in (85, 86)] == [True, False]
    assert [thin.gram_product(rows) is not None for rows in (251, 252)] == [True, False]


@pytest.mark.parametrize("model", [mlp(nn.Tanh, outputs=2), LeNet(outputs=2).double()], ids=["mlp", "conv"])
def test_the_loss_vanishes_at_the_true_images_and_duals(model):
    torch.manual_seed(8)
    states = [random_state(model), random_state(model)]
    images, duals = starting_point(4, 2, 2)
    delta = per_sample_sum(model, states, images, duals)
    size = sum(float((value**2).sum()) for value in delta.values())
    for double_backward in (False, True):
        objective = make_objective(model, SHAPE, delta, states, double_backward)
        # the closed form is a difference of terms of the size of ‖Δ‖²: a few ulp of it remain
        assert abs(float(objective.loss(images, duals, None).detach())) < (1e-28 if double_backward else 1e-14) * size
        sums = objective.gradient_sum(images, duals, None)
        assert sum(float(((sums[name] - value) ** 2).sum()) for name, value in delta.items()) < 1e-28 * size


def test_linearized_training_moves_the_parameters_by_the_closed_form_duals():
    """f(θ₀) + J(θ − θ₀), trained on 5 images until it has converged, has moved by Jᵀα with α = K⁻¹(y − f_θ₀(X))."""
    torch.manual_seed(9)
    model = mlp(nn.Tanh)
    state = {name: value.detach() for name, value in model.named_parameters()}
    images, targets = (
        torch.randn(5, *SHAPE, dtype=torch.float64),
        torch.tensor([1.0, -1, 1, 1, -1], dtype=torch.float64),
    )
    rows, outputs = [], []
    for image in images:
        output = model(image[None])[0, 0]
        rows.append(torch.cat([grad.flatten() for grad in torch.autograd.grad(output, list(model.parameters()))]))
        outputs.append(output.detach())
    jacobian, residual = torch.stack(rows), targets - torch.stack(outputs)
    kernel = jacobian @ jacobian.T
    spectrum = torch.linalg.eigvalsh(kernel)
    step = 2 / (spectrum[0] + spectrum[-1])
    moved = torch.zeros(jacobian.shape[1], dtype=torch.float64)
    for _ in range(20_000):
        moved += step * jacobian.T @ (residual - jacobian @ moved)
    sizes = [value.numel() for value in state.values()]
    delta = {name: part.view_as(value) for (name, value), part in zip(state.items(), moved.split(sizes), strict=True)}
    duals = torch.linalg.solve(kernel, residual).view(1, 5, 1)
    for double_backward in (False, True):
        objective = make_objective(model, SHAPE, delta, [state], double_backward)
        sums = objective.gradient_sum(images, duals, None)
        assert sum(float(((sums[name] - value) ** 2).sum()) for name, value in delta.items()) < 1e-16 * moved @ moved
        tolerance = 1e-16 if double_backward else 1e-14  # the closed form: a few ulp of ‖Δ‖²
        assert abs(float(objective.loss(images, duals, None).detach())) < tolerance * moved @ moved


@pytest.mark.parametrize("double_backward", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 5, 7, 100])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_batches_give_the_gradients_of_the_full_loss(double_backward, batch_size, dtype, tolerance):
    torch.manual_seed(10)
    model = mlp(outputs=2).to(dtype)
    delta, states = random_state(model), [random_state(model), random_state(model)]
    objective = make_objective(model, SHAPE, delta, states, double_backward)
    images, duals = starting_point(10, 2, 2, dtype)
    loss = backward_in_batches(objective, images, duals, 20.0, batch_size)
    for found, expected in zip((loss, images.grad, duals.grad), gradients(objective, images, duals, 20.0), strict=True):
        assert relative(found, expected) < tolerance


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("rows", [3, 12])
def test_masked_loss_counts_kept_entries_only(dense, rows):
    """Against a sum over single images' gradients with the mask on it, by autograd, and its gradient."""
    torch.manual_seed(0)
    model = mlp(outputs=2)
    state = {name: value.detach() for name, value in model.state_dict().items()}
    delta = {name: torch.randn_like(value) for name, value in state.items()}
    kept = {name: (torch.rand_like(value) < 0.4).double() for name, value in state.items()}
    images, duals = torch.randn(rows, *SHAPE).double().requires_grad_(), torch.randn(1, rows, 2).double()
    objective = make_objective(model, SHAPE, delta, [state], double_backward=not dense, kept=kept)
    assert isinstance(objective, DenseObjective if dense else AutogradObjective)
    sums = dict.fromkeys(delta, 0.0)
    for image, dual in zip(images, duals[0], strict=True):
        outputs = (model(image[None])[0] * dual).sum()
        gradients = torch.autograd.grad(outputs, list(model.parameters()), create_graph=True)
        sums = {name: sums[name] + gradient for name, gradient in zip(sums, gradients, strict=True)}
    expected = sum(((sums[name] - delta[name])[kept[name] == 1] ** 2).sum() for name in delta)
    loss = objective.loss(images, duals, None)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, images)[0] for value in (loss, expected)))
    images.grad = None
    batched = images.detach().clone().requires_grad_()
    total = backward_in_batches(objective, batched, duals.clone().requires_grad_(), None, 2)
    torch.testing.assert_close(total, loss.detach())
    torch.testing.assert_close(batched.grad, torch.autograd.grad(objective.loss(images, duals, None), images)[0])


@pytest.mark.parametrize("double_backward", [False, True])
def test_what_is_judged_in_batches_is_what_is_judged_at_once(double_backward):
    torch.manual_seed(0)
    model = mlp(outputs=2).double()
    objective = make_objective(model, SHAPE, random_state(model), [random_state(model)], double_backward)
    images, duals = (value.detach() for value in starting_point(10, 2, 1, torch.float64))
    whole = gradient_sum_in_batches(objective, images, duals, None, None)
    residual = relative_residual(objective, images, duals)
    without = relative_residual_without(objective, images, duals)
    for batch_size in (1, 3, 10, 100):
        parts = gradient_sum_in_batches(objective, images, duals, None, batch_size)
        assert all(relative(parts[name], whole[name]) < 1e-12 for name in whole)
        assert relative_residual(objective, images, duals, batch_size) == pytest.approx(residual, rel=1e-12)
        assert relative(relative_residual_without(objective, images, duals, batch_size), without) < 1e-12
