"""The attack interface: one frozen dataclass of options per attack, registered by name; and restarts of one attack."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor

from attacks.interface.errors import InputError, counted
from attacks.interface.knowledge import Knowledge
from attacks.interface.normalization import Normalization, Pictures
from attacks.interface.observation import Observation
from attacks.interface.options import check_known, check_values
from attacks.interface.plugins import Registry, hook_of, subclass_of
from attacks.interface.torch_tools import choose_device, exact_convolutions, without_subnormals
from attacks.networks.probing import let_gradients_through
from attacks.update.private_set import (
    check_knowledge,
    check_num_private_available,
    doubt_of_scale,
    infer_private_set,
    mean_of_found,
)

Progress = Callable[[int, int, float], None]
"""Called with (iterations done, iterations in all, current loss)."""

Facts = dict[str, float | str]
"""What an attack measured, by name, and the names of the layers it measured at."""

CONSTANT = "threshold_"  # how the name of a fact begins that nobody measured: a tuned constant that took part


def silent(done: int, total: int, loss: float) -> None:
    """Ignore the progress."""


@dataclass(frozen=True)
class Reconstruction:
    """What an attack returns: candidates for private images, best first once `Attack.run` has ranked them.

    images: (M, C, H, W) in the model's input space.
    residual: (M,), lower is surer; each attack says what it is.
    pixel_mean, pixel_std: pixels in [0, 1] are `images` · std + mean, as the attacker knows or infers it; where an
        attack leaves the mean empty, `Attack.run` fills it in as far as it is known, and an empty std is 1.
    duals: (V, M, K) for V kernels and K outputs, where the attack has them.
    num_inferred: the number of private images that the update shows.
    guessed: whether that is a guess.
    relative_residual: ‖Δθ − Σ‖ / ‖Δθ‖.
    loss_trace: (iteration, loss) pairs.
    facts: what the attack measured on its way, by name.
    held: (H, C, H, W), like `images`: further candidates, which the attack does not vouch for; they are scored, too.
    groups: (M,) from 0, which images are views of one, where more are returned than there are private images.
    features: (F, …), what was recovered of private images inside the network, at the parameters sent, the best first.
    """

    images: Tensor
    residual: Tensor
    pixel_mean: tuple[float, ...] = ()
    pixel_std: tuple[float, ...] = ()
    duals: Tensor | None = None
    num_inferred: int | None = None
    guessed: bool = False
    relative_residual: float = float("nan")
    loss_trace: tuple[tuple[int, float], ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    facts: Facts = field(default_factory=dict)
    held: Tensor | None = None
    groups: Tensor | None = None
    features: Tensor | None = None

    def pixels(self, clamped: bool = True) -> Tensor:
        """Bring images to pixels in [0, 1], (M, C, H, W). clamped: False keeps what a wrong `pixel_mean` moved outside.

        Where no `pixel_mean` is known, nothing is added and nothing clamped: they are off by that mean.
        """
        return self._pixels(self.images, clamped)

    def held_pixels(self, clamped: bool = True) -> Tensor:
        """Bring the candidates held back to pixels, likewise: (H, C, H, W)."""
        return self._pixels(self.images[:0] if self.held is None else self.held, clamped)

    def _pixels(self, inputs: Tensor, clamped: bool) -> Tensor:
        pixels = Normalization(self.pixel_mean, self.pixel_std).pixels(inputs.cpu())
        return pixels.clamp(0, 1) if clamped and self.pixel_mean else pixels

    @property
    def measured(self) -> Facts:
        """Those of `facts` that the attack measured."""
        return {name: value for name, value in self.facts.items() if not name.startswith(CONSTANT)}

    @property
    def constants(self) -> Facts:
        """Those of `facts` that are tuned constants."""
        return {name: value for name, value in self.facts.items() if name.startswith(CONSTANT)}

    def show(self, most: int = 20) -> Pictures:
        """Show the first images, in a notebook or a file, each above its residual."""
        strips = [("images", self.pixels()[:most])]
        if self.held is not None and len(self.held):
            strips.append(("held back", self.held_pixels()[:most]))
        captions = tuple(f"{value:.2g}" for value in self.residual[:most].tolist())
        more = (f"{len(self.images) - most} more images are not shown",) if len(self.images) > most else ()
        return Pictures(self._counted(), tuple(strips), captions, (*more, *self.warnings))

    def __repr__(self) -> str:
        return f"Reconstruction({self._counted()})"

    def _repr_html_(self) -> str:
        return self.show()._repr_html_()

    def _counted(self) -> str:
        """Count what there is, in words."""
        held = "" if self.held is None or not len(self.held) else f", {len(self.held)} held back"
        inferred = "" if self.num_inferred is None else f", {self.num_inferred} private ones inferred"
        span = f", residuals {self.residual.min():.2g} to {self.residual.max():.2g}" if len(self.images) else ""
        size = " × ".join(map(str, self.images.shape[1:]))
        images = counted(len(self.images), "image")
        return f"{images} of {size}{held}{inferred}{span}, {self.seconds:.1f} s"

    @property
    def num_features(self) -> int:
        """F, 0 without features."""
        return 0 if self.features is None else len(self.features)

    def ranked(self) -> "Reconstruction":
        """Rank the candidates, smallest residual first, on the CPU; images, residuals and duals in float32."""
        order = self.residual.detach().cpu().argsort(stable=True)
        return replace(
            self,
            images=self.images.detach().float().cpu()[order],
            residual=self.residual.detach().float().cpu()[order],
            duals=None if self.duals is None else self.duals.detach().float().cpu()[:, order],
            held=None if self.held is None else self.held.detach().float().cpu(),
            groups=None if self.groups is None else self.groups.cpu()[order],
            features=None if self.features is None else self.features.detach().float().cpu(),
        )


class Attack(ABC):
    """One attack: a frozen dataclass whose fields are its options. It sees an observation and its knowledge only.

    Callers use `run`, which is the same for every attack. docs/howto/extending.md has a complete attack of one's own;
    tests/attacks/test_common.py runs over it.
    """

    kind: ClassVar[str] = "attack"
    name: ClassVar[str]
    vouches: ClassVar[bool] = False
    """Whether it returns those images alone that passed a test of its own against decoys, and holds all others back."""
    infers: ClassVar[tuple[str, ...]] = ()
    """Those of num_private and pixel_mean that `run` infers, or assumes with a warning, where they are not told:
    `reconstruct` then finds them in its `knowledge`."""

    def __post_init__(self) -> None:
        """Raise InputError for an option that is out of its range."""
        check_values(self)

    def run(
        self,
        observation: Observation,
        knowledge: Knowledge,
        generator: torch.Generator,
        progress: Progress = silent,
    ) -> Reconstruction:
        """Check, attack, and complete the result.

        generator: of every random number that the attack draws, on the CPU.

        Returns the candidates with the smallest residual first, on the CPU, images in float32. The caller's network is
        neither moved nor changed. Raises InputError where the attack cannot run.
        """
        start = time.perf_counter()
        self.check(observation, knowledge)
        knowledge = self.with_options(knowledge)
        told, shown, warnings = infer_private_set(observation, knowledge, self.infers)
        own = observation.with_own_model(choose_device(getattr(self, "device", "cpu")))
        if let_gradients_through(own.model, own.input_shape):
            own = replace(own)  # other parameters count as trained
        with exact_convolutions(), without_subnormals():
            found = self._ranked(self.reconstruct(own, told, generator, progress), observation.input_shape)
        warnings += found.warnings
        if observation.kept:
            warnings.append(
                f"checkpoints have no {observation.kept[0]!r}: BatchNorm that clients keep (FedBN) is taken to be as "
                "it was sent, else as the model given has it, if they were made with that model at all"
            )
        mean = found.pixel_mean
        if not mean:
            held = found.images[:0] if found.held is None else found.held
            mean, unsure = mean_of_found(observation, knowledge, found.images if len(found.images) else held)
            warnings += unsure
        if self.vouches and mean:
            warnings += doubt_of_scale(found.images, mean, knowledge)
        nothing = not (len(found.images) or found.num_features)
        return replace(
            found,
            pixel_mean=mean,
            pixel_std=knowledge.pixel_std or (),
            num_inferred=shown.count if found.num_inferred is None and shown is not None else found.num_inferred,
            guessed=found.guessed or nothing or (shown is not None and not shown.has_spectral_gap),
            warnings=tuple(warnings),
            seconds=time.perf_counter() - start,
        )

    def _ranked(self, made: Reconstruction, shape: tuple[int, int, int]) -> Reconstruction:
        hook = hook_of(self, "reconstruct")
        try:
            if made.residual.shape != made.images.shape[:1]:  # ranking would leave images out
                raise InputError(f"residual is {tuple(made.residual.shape)}, it has to be ({len(made.images)},)")
            found = made.ranked()
        except Exception as error:  # whatever a class of the user's has returned
            raise InputError(f"{hook} has to return a Reconstruction: {error}") from error
        for images in (found.images, *(() if found.held is None else (found.held,))):
            if tuple(images.shape) != (len(images), *shape):
                wanted = ", ".join(map(str, ("M", *shape)))
                raise InputError(f"{hook} returned images of shape {tuple(images.shape)}, not ({wanted})")
        if not torch.isfinite(found.images).all():
            raise InputError(f"{hook} returned images with NaN or Inf in them")
        return found

    def check(self, observation: Observation, knowledge: Knowledge) -> None:
        """Raise InputError where `run` would refuse this network with this knowledge; no update is looked at."""
        check_knowledge(observation, knowledge)
        self.check_requirements(observation, knowledge)
        if "num_private" in self.infers:
            check_num_private_available(self.name, observation, self.with_options(knowledge))

    def check_requirements(self, observation: Observation, knowledge: Knowledge) -> None:
        """Raise InputError where this attack cannot run, for reasons of its own."""
        return

    def with_options(self, knowledge: Knowledge) -> Knowledge:
        """Add to the knowledge what the attack's options say of the private set, for attacks that have such options."""
        return knowledge

    @abstractmethod
    def reconstruct(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Progress
    ) -> Reconstruction:
        """Attack a checked observation, whose network is the attack's own, on its device and in evaluation mode.

        Returns candidates in any order, on any device. Raises InputError where the update tells nothing.
        """


ATTACKS: Registry[type[Attack]] = Registry("attack", "fedspill.attacks", subclass_of(Attack))
AttackClass = TypeVar("AttackClass", bound=type[Attack])


def register(attack: AttackClass) -> AttackClass:
    """Register an attack by its `name`; a class decorator. Raises InputError where another attack has that name."""
    ATTACKS.add(attack)
    return attack


def check_options(name: str, options: Iterable[str]) -> None:
    """Raise InputError, with the nearest valid name, for an unknown attack or option."""
    check_known(f"attack {name!r}", options, option_names(name))


def option_names(name: str) -> list[str]:
    """List the options of an attack, which are the fields of its dataclass."""
    return [option.name for option in fields(cast(Any, ATTACKS.find(name)))]


def get_attack(name: str, **options: object) -> Attack:
    """Make the attack called `name` with these options; also one of an installed package, or at an import path."""
    check_options(name, options)
    return ATTACKS.find(name)(**options)


ReportLoss = Callable[[int, float], None]
"""Called with (iterations done, current loss) by one start."""


@dataclass(frozen=True)
class Solution:
    """The end of one start.

    images: (M, C, H, W).
    residual: by which starts are compared.
    trace: (iteration, loss) pairs.
    """

    images: Tensor
    residual: float
    trace: tuple[tuple[int, float], ...]


Solved = TypeVar("Solved", bound=Solution)


def best_of_restarts(
    restarts: int, iterations: int, solve: Callable[[ReportLoss], Solved], progress: Progress
) -> Solved:
    """Solve from `restarts` starts and return the solution with the smallest residual; NaN is the last choice."""

    def report(start: int) -> ReportLoss:
        return lambda done, loss: progress(start * iterations + done, restarts * iterations, loss)

    solutions = [solve(report(start)) for start in range(restarts)]
    return min(solutions, key=lambda solution: (math.isnan(solution.residual), solution.residual))
