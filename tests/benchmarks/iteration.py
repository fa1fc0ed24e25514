"""One iteration of the NTK attack and one step of the span search, against the machine's matrix products.

The closed form of a plain MLP's loss is compared with double backward, both with their gradients in images and duals,
on the update of a client that trained on N images until it had fitted them.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attacks.interface.observation import State
from attacks.networks.mlp import ACTIVATIONS
from attacks.ntk.adam_graph import GraphedAdam
from attacks.ntk.objective import Objective, make_objective
from attacks.span.search.problems import AffineSpan, SpanProblem, SpanTest
from simulator.paper.gradient_memory import BETA, SHAPE, random_candidates, relu_mlp
from tests.benchmarks.timing import four_products, product_work, timed

SIZES = [(20, 40, 1024), (20, 40, 256), (100, 200, 1024)]  # private images, candidates, width of both hidden layers
SPANS = [(20, 1024, 300), (100, 1024, 300), (200, 2048, 300)]  # private images, width, starts


def blobs(count: int, generator: torch.Generator) -> Tensor:
    """Smooth random images (count, 1, 28, 28): three Gaussian spots each, minus the mean image."""
    grid = torch.linspace(0, 1, SHAPE[1])
    centers = torch.rand((count, 3, 2, 1), generator=generator)
    widths = 0.05 + 0.15 * torch.rand((count, 3, 1, 1), generator=generator)
    profiles = torch.exp(-(((grid - centers) / widths) ** 2))
    images = torch.einsum("ksy,ksx->kyx", profiles[:, :, 0], profiles[:, :, 1])[:, None]
    return images - images.mean(0)


def trained_update(
    width: int, count: int, device: torch.device, generator: torch.Generator
) -> tuple[nn.Module, State, State]:
    """(model, Δθ, final state) of 200 full-batch steps on `count` images: mean squared error on ±1, momentum 0.9."""
    model, images = relu_mlp(width, generator).to(device), blobs(count, generator).to(device)
    targets = (torch.randint(0, 2, (count, 1), generator=generator) * 2.0 - 1).to(device)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(200):
        optimizer.zero_grad()
        ((model(images) - targets) ** 2).mean().div(2).backward()
        optimizer.step()
    final = {name: value.clone() for name, value in model.state_dict().items()}
    return model, {name: (final[name].double() - initial[name].double()).float() for name in initial}, final


def iteration(objective: Objective, images: Tensor, duals: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(objective.loss(images, duals, BETA), (images, duals))


def whole_step(objective: Objective, images: Tensor, duals: Tensor) -> Callable[[], object]:
    """Loss, gradients and Adam as the attack runs them: on CUDA one graph."""

    def backward(beta: Tensor) -> Tensor:
        loss = objective.loss(images, duals, beta)
        loss.backward(inputs=[images, duals])
        return loss.detach()

    descent = GraphedAdam(backward, [images, duals], [1e-6, 1e-6])
    return lambda: descent.step(BETA, 1.0)


def print_ntk(device: torch.device) -> None:
    """Both forms and the ceiling in turns. Their share of it counts the large products that each cannot do without:
    with the weights, and for double backward also those that form DᵀA and differentiate it."""
    print("One iteration of the NTK attack: loss and gradients; `step` is the closed form with Adam")
    print(
        "  N    M  network          closed form    share  double backward    share   ratio       step          ceiling"
    )
    for num_private, num_candidates, width in SIZES:
        generator = torch.Generator().manual_seed(num_private + width)
        model, delta, final = trained_update(width, num_private, device, generator)
        images, duals = random_candidates(num_candidates, device, generator)
        pair = [make_objective(model, SHAPE, delta, [final], double) for double in (False, True)]
        actions = [*(iteration(objective, images, duals) for objective in pair), four_products(device)]
        closed, double, products, step = timed([*actions, whole_step(pair[0], images, duals)], device)
        ceiling = 4 * product_work() / products
        first, second = (2 * num_candidates * width * fan_in for fan_in in (math.prod(SHAPE), width))
        shares = (2 * first + 4 * second) / closed / ceiling, (5 * first + 7 * second) / double / ceiling
        print(
            f"{num_private:3} {num_candidates:4}  {f'784-{width}-{width}-1':16}"
            f"{closed * 1e3:9.2f} ms {shares[0]:8.0%} {double * 1e3:13.2f} ms {shares[1]:8.0%} {double / closed:7.2f}"
            f" {step * 1e3:7.2f} ms {ceiling / 1e9:6.0f} GF/s"
        )
    print()


def print_span(device: torch.device) -> None:
    """All starts advance in the same products: with the first layer there and back, and the projection."""
    print("One step of the span search: ρ and its gradient")
    print("  N  width  starts       step   share     ceiling")
    for count, width, starts in SPANS:
        generator = torch.Generator().manual_seed(count)
        first, rows = torch.randn((width, 785), generator=generator), torch.randn((width, 785), generator=generator)
        directions = min(4 * count, 2 * width // 5)
        second = torch.linalg.qr(torch.randn((width + 1, directions), generator=generator))[0].T
        test = SpanTest(first.to(device), second[None].to(device).contiguous(), ACTIVATIONS["relu"])
        span = AffineSpan.of(rows[:count].double().to(device), generator)
        problem = SpanProblem.of(test, span)
        points = torch.randn((starts, count - 1), generator=generator).to(device)
        search = functools.partial(problem.value_and_gradient, points)
        step, products = timed([search, four_products(device)], device)
        ceiling = 4 * product_work() / products
        work = 2 * starts * (width + 1) * (2 * (count - 1) + 2 * directions)
        print(
            f"{count:3} {width:6} {starts:7} {step * 1e3:7.2f} ms {work / step / ceiling:7.0%}"
            f" {ceiling / 1e9:6.0f} GF/s"
        )
    print()
