"""Tiny cases of every attack, one or more for each way that it has through its code."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from attacks import ATTACKS, Knowledge, Observation, Reconstruction, get_attack
from attacks.base import option_names
from attacks.span import thresholds
from attacks.span.feature_space.search import FeatureSearch
from attacks.span.maps import search as map_search
from tests.attacks.conftest import MEAN, client, digits, generator, mlp
from tests.attacks.span import conftest as span
from tests.attacks.span.maps import networks as maps
from tests.attacks.span.variants.test_few_features import pooled_client
from tests.attacks.test_common import TOLD, convolutional, observed, plain

Context = contextlib.AbstractContextManager[Any]
COUNTED = ("iterations", "steps", "settle", "polish")
"""Options that say how often a loop runs."""
MAPS = Knowledge(pixel_mean=(MEAN,))


@dataclass(frozen=True)
class Case:
    """One attack on one observation. options: beside those that say how often a loop runs, which are the budget.
    within: called with the budget; what else is made short, or stands in for a search that takes long to find anything.
    """

    attack: str
    observe: Callable[[], Observation]
    knowledge: Knowledge = TOLD
    options: dict[str, Any] = field(default_factory=dict)
    within: Callable[[int], Context] = contextlib.nullcontext

    def run(self, device: str, budget: int) -> Reconstruction:
        """The attack whose loops run so many times."""
        counted = dict.fromkeys(COUNTED, budget) | {"starts": 10, "rounds": 1, "device": device} | self.options
        options = {name: value for name, value in counted.items() if name in option_names(self.attack)}
        with shortened(budget), self.within(budget):
            return get_attack(self.attack, **options).run(self.observe(), self.knowledge, generator())


@contextlib.contextmanager
def shortened(budget: int) -> Iterator[None]:
    """Every `Descent` among the constants of the span attack takes so many steps."""
    with contextlib.ExitStack() as stack:
        for group in thresholds.Thresholds.__subclasses__():
            for name, value in vars(group).items():
                if isinstance(value, thresholds.Descent):
                    stack.enter_context(mock.patch.object(group, name, replace(value, steps=budget)))
        yield


def two_rounds() -> Observation:
    first, second = client(mlp(48), digits(3), 2), client(mlp(48, seed=1), digits(3), 2)
    return replace(first, pairs=(*first.pairs, *second.pairs))


def noisy() -> Observation:
    observation, draw = client(mlp(128), digits(3), 3), generator()
    final = {
        name: value + 0.05 * (value - observation.initial[name]).std() * torch.randn(value.shape, generator=draw)
        for name, value in observation.final.items()
    }
    return replace(observation, pairs=((observation.initial, final),))


def of_maps(**options: Any) -> Observation:
    model = maps.calibrated(maps.plain(), digits(60))
    return Observation(model, (maps.trained(model, digits(2), torch.arange(2), **options),), maps.SHAPE)


def true_images(budget: int) -> Context:
    """Candidates of the search in feature space that are the private images but for a little noise."""

    def candidates(search: FeatureSearch, draw: torch.Generator) -> Tensor:
        found = digits(4) + 1e-3 * torch.randn((4, 1, 8, 8), generator=draw)
        return found.to(search.update.rows.device)[: search.missing]

    return mock.patch.object(FeatureSearch, "_candidates", candidates)


def few_maps(budget: int) -> Context:
    """A short search, whose maps all pass."""
    stack = contextlib.ExitStack()
    for name, value in {"starts": 4, "polish": 2, "rounds": 1, "decoys": 4}.items():
        stack.enter_context(mock.patch.object(thresholds.MAP_SEARCH, name, value))
    for name, value in {"degree": 80, "most_directions": 8}.items():
        stack.enter_context(mock.patch.object(thresholds.MAP_KERNEL, name, value))
    stack.enter_context(mock.patch.object(map_search, "_least_wrong", lambda update, by_chance, decoys: math.inf))
    return stack


def wide() -> Observation:
    return client(mlp(128), digits(6), [torch.arange(3), torch.arange(3, 6)] * 3)


EVERY = {
    f"{name}, {make.__name__}": Case(name, lambda make=make: observed(make()))
    for name in sorted(ATTACKS)
    for make in (plain, convolutional)
    if not (name == "span" and make is convolutional)  # refused; `of_maps` is what it can attack
}
SLOW = {"steps": 20, "settle": 20, "polish": 20, "starts": 30}
CASES = EVERY | {
    "ntk, Algorithm 2": Case(
        "ntk", lambda: observed(plain()), options={"kernel": "hybrid", "batch_size": 2, "smoothness": 0.1}
    ),
    "ntk, path": Case(
        "ntk",
        lambda: observed(convolutional()),
        options={"kernel": "path", "precision": "float64", "smoothness": 0.1, "schedule": "constant"},
    ),
    "ntk, as published": Case(
        "ntk", lambda: observed(plain()), options={"dual_normalization": "mean", "scale_duals": False, "restarts": 2}
    ),
    "ntk, rounds": Case("ntk", two_rounds),
    "ntk, entries left out": Case("ntk", lambda: observed(plain()), replace(TOLD, kept_fraction=0.5)),
    "ntk, tanh": Case("ntk", lambda: observed(mlp(48, nn.Tanh))),
    "kkt, one output": Case("kkt", lambda: observed(plain(1)), options={"precision": "float64"}),
    "gradient_matching, fedleak": Case(
        "gradient_matching", lambda: observed(plain()), options={"variant": "fedleak", "distance": "euclidean"}
    ),
    "gradient_matching, Adam in batches": Case(
        "gradient_matching", lambda: observed(plain()), replace(TOLD, optimizer="adam", batch_size=2, steps=3)
    ),
    "gradient_matching, told batches": Case(
        "gradient_matching",
        lambda: observed(plain()),
        replace(TOLD, labels=(0, 1, 2), batches=((0, 1), (2,)), momentum=0.9, weight_decay=1e-3),
    ),
    "gradient_matching, DLG": Case(
        "gradient_matching",
        lambda: observed(plain(1)),
        replace(TOLD, steps=1),
        options={"optimizer": "lbfgs", "labels": "soft", "order": "fixed", "learning_rate": 1.0, "iterations": 1},
    ),
    "span, batches": Case("span", wide, Knowledge(), SLOW),
    "span, mixtures": Case("span", lambda: observed(plain()), options={"steps": 1, "settle": 1, "polish": 1}),
    "span, tanh": Case("span", lambda: client(mlp(128, nn.Tanh), digits(3)), Knowledge(), SLOW),
    "span, noise": Case("span", noisy, Knowledge(num_private=3, noise_scale=0.05), SLOW),
    "span, quantized": Case("span", lambda: client(mlp(64), digits(3), 3), replace(TOLD, quantization_bits=8)),
    "span, entries left out": Case("span", lambda: client(mlp(64), digits(3), 3), replace(TOLD, kept_fraction=0.5)),
    "span, rounds apart": Case("span", lambda: span.history(span.mlp(128), digits(6).split(3)), Knowledge(), SLOW),
    "span, features": Case(
        "span",
        lambda: span.client(span.Convolutional(), digits(4), 2, 4, lr=0.3),
        Knowledge(num_private=4),
        {"rounds": 3},
        true_images,
    ),
    "span, features sought": Case(
        "span", lambda: span.client(span.Convolutional(), digits(4), 2, 4), Knowledge(num_private=4)
    ),
    "span, one hidden layer": Case(
        "span", lambda: client(mlp(128, depth=1), digits(6, mean=0.0), 1, lr=0.1), Knowledge(), {"starts": 20}
    ),
    "span, few features": Case("span", lambda: pooled_client(2)[0], Knowledge(num_private=2), {"starts": 20}),
    "span, one image behind pooling": Case(
        "span", lambda: pooled_client(1)[0], Knowledge(num_private=1), {"starts": 20}
    ),
    "span, frozen body": Case(
        "span", lambda: span.client(span.with_frozen_body(), digits(3), 3, 5), MAPS, SLOW | {"starts": 50}
    ),
    "span, maps": Case("span", of_maps, MAPS, within=few_maps),
    "span, maps of several steps": Case("span", lambda: of_maps(steps=8, rate=0.05), MAPS, within=few_maps),
}
