"""The image of a client of one, through convolutions with max pooling: `find_image`.

One step on one image gives away its features h and the signal δ at them exactly, and with every convolution's update
one equation for each weight: ΔW = Σ_w δ_w (patch at the winner of window w)ᵀ (`PooledLayer`). All of it is linear in
the input of a layer once the winners of its pooling are known, and the second layer of a small network has more
equations than inputs. What is unknown is which position wins each window.

**Statistical linearization** (`posteriors`; the iterated posterior linearization filter of García-Fernández, Svensson,
Morelande and Särkkä 2015). The input has a Gaussian prior. Every observation is replaced by the linear one that is
best on average over samples of the present posterior, whose slope is the mean derivative (Stein's lemma), and what is
left by chance counts as noise. The posterior under these is Gaussian again. As it narrows, winners become certain and
the noise vanishes, so nothing has to be annealed. The derivative has two parts. A position counts for the probability
that it wins its window. And the update jumps where the winner changes: a higher entry is likelier to win, which brings
its patch in the place of the others' (`PooledLayer.turns`). The second is how an update tells which position won;
without it half of the searches stall.

**From the features down.** The last layer's input is found first, exactly if at all: its own update certifies it. With
it the winners and so the signals at the layer before are known, down to the image. That one has fewer equations than
pixels: the posterior mean under a prior of photographs is the answer. The prior learns from each posterior where edges
are and how colours go together (`Gaussian.learned`). A decoy without edges, so one that comes back less well than
photographs, says whether images come back.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import one_hot

from attacks.base import Progress
from attacks.interface.observation import State
from attacks.networks.probing import probe, random_images
from attacks.span.feature_space.network import FeatureNetwork
from attacks.span.maps.inversion import PixelSpace
from attacks.span.thresholds import SINGLE_IMAGE


@dataclass(frozen=True)
class PooledLayer:
    """A convolution, a ReLU and max pooling over windows that do not overlap.

    name: of the convolution.
    weight: (O, T), T entries of a patch.
    bias: (O,).
    patches: (Q, T), indices into the flattened input of the patch at each output position; index D stands for the zero
        around the image.
    windows: (P, K), the output positions in each window.
    shape: (C, H, W) of the input.
    """

    name: str
    weight: Tensor
    bias: Tensor
    patches: Tensor
    windows: Tensor
    shape: tuple[int, ...]

    @property
    def inputs(self) -> int:
        """D = C · H · W."""
        return self.shape[0] * self.shape[1] * self.shape[2]

    def forward(self, inputs: Tensor, signals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (winner (M, O, P), pooled (M, O, P) before the ReLU, update (M, O, T)) for inputs (M, D).

        winner: its place in the window, 0 to K − 1. update: the change of the weights if `signals` (O, P) arrive at the
        outputs of the pooling.
        """
        patches = functional.pad(inputs, (0, 1))[:, self.patches]
        given = (patches @ self.weight.T + self.bias)[:, self.windows]
        pooled, winner = (part.mT for part in given.max(2))
        places = self.windows[torch.arange(len(self.windows), device=inputs.device), winner]
        spread = inputs.new_zeros(*winner.shape[:2], len(self.patches))
        spread.scatter_add_(2, places, signals.expand_as(pooled))
        return winner, pooled, spread @ patches

    def rows(self, shares: Tensor, signals: Tensor) -> tuple[Tensor, Tensor]:
        """Return the linear maps from the input to the outputs of the pooling, without bias, (O, P, D), and to the
        update, (O, T, D). shares: (O, P, K), the weight of each position in its window."""
        channels, count = shares.shape[:2]
        pooled = shares.new_zeros(channels, count, self.inputs + 1)
        places = self.patches[self.windows].flatten(1)
        values = (shares[..., None] * self.weight[:, None, None]).flatten(2)
        pooled.scatter_add_(2, places.expand(channels, -1, -1), values)
        spread = shares.new_zeros(channels, len(self.patches))
        spread.scatter_add_(1, self.windows.flatten().expand(channels, -1), (shares * signals[..., None]).flatten(1))
        update = shares.new_zeros(channels, self.patches.shape[1], self.inputs + 1)
        places = self.patches.T.expand(channels, -1, -1)
        update.scatter_add_(2, places, spread[:, None].expand_as(places).contiguous())
        return pooled[..., :-1], update[..., :-1]

    def turns(self, inputs: Tensor, winner: Tensor, signals: Tensor) -> Tensor:
        """Return the slope (O, T, D) of the update on average over inputs (M, D) that comes of changes of the winner
        (M, O, P): the regression of who wins on a window's entries, times the patch that each position brings."""
        patches = functional.pad(inputs, (0, 1))[:, self.patches]
        given = (patches @ self.weight.T)[:, self.windows].movedim(3, 1)  # (M, O, P, K)
        given = given - given.mean(0)
        squares, wins = (
            torch.einsum("mopk,mopl->opkl", part, given) for part in (given, one_hot(winner, given.shape[3]).double())
        )
        least = SINGLE_IMAGE.ridge * squares.diagonal(dim1=2, dim2=3).mean(2) + SINGLE_IMAGE.tiny
        likelier = torch.linalg.solve(squares + least[..., None].expand(wins.shape[:3]).diag_embed(), wins, left=False)
        brought = torch.einsum("pkt,opkl->otpl", patches.mean(0)[self.windows], signals[..., None, None] * likelier)
        places = self.patches[self.windows].flatten(0, 1)
        slopes = []
        for weight, part in zip(self.weight, brought.flatten(2), strict=True):
            entries = part.new_zeros(len(places), self.inputs + 1).scatter_add_(1, places, weight.expand(places.shape))
            slopes.append(part @ entries[:, :-1])
        return torch.stack(slopes)

    def back(self, inputs: Tensor, signals: Tensor) -> Tensor:
        """Return the signals (D,) at inputs (D,) if `signals` (O, P) arrive at the nonzero outputs of the pooling."""
        winner, pooled, _ = self.forward(inputs[None], signals)
        shares = one_hot(winner[0], self.windows.shape[1]).double() * (pooled[0] > 0)[..., None]
        return torch.einsum("op,opd->d", signals, self.rows(shares, signals)[0])


def pooled_layers(network: FeatureNetwork, state: State, shape: tuple[int, int, int]) -> list[PooledLayer] | None:
    """Return the layers from images (C, H, W) to the network's features, in order, in float64 on the CPU. None unless
    the body is a chain of such layers and of nothing else."""
    state = {name: value.cpu() for name, value in state.items()}
    convolutions = {name: m for name, m in network.model.named_modules() if isinstance(m, nn.Conv2d)}
    images = random_images(shape)
    features = network.features(state, images.to(state[f"{network.layers[0]}.weight"]))
    _, seen = probe(network.model, images, convolutions, state)
    names = [name for name, _, _ in seen]
    if not seen or len(set(names)) < len(names) or not torch.equal(seen[0][1], images.to(seen[0][1])):
        return None
    layers = []
    for (name, fed, given), after in zip(seen, [*(fed for _, fed, _ in seen[1:]), features], strict=True):
        module, side = convolutions[name], _window(given, after)
        plain = module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
        if side is None or not plain or module.bias is None:
            return None
        layers.append(_layer(name, module, state, fed.shape[1:], given.shape[2:], side))
    return layers


def _window(given: Tensor, after: Tensor) -> int | None:
    """Return the side of the pooling windows that make `after` of a ReLU of `given`, 1 without pooling; else None."""
    for side in range(1, min(given.shape[2:]) + 1):
        pooled = functional.max_pool2d(given.relu(), side)
        if pooled[0].numel() == after[0].numel() and torch.allclose(pooled.flatten(1), after.flatten(1), atol=1e-5):
            return side
    return None


def _layer(name: str, module: nn.Conv2d, state: State, shape: torch.Size, given: torch.Size, side: int) -> PooledLayer:
    weight, bias = (state[f"{name}.{part}"].double() for part in ("weight", "bias"))
    places = 1 + torch.arange(shape.numel(), dtype=torch.float64).reshape(1, *shape)
    assert not isinstance(module.padding, str)  # refused by `pooled_layers`
    patches = functional.unfold(places, module.kernel_size, module.dilation, module.padding, module.stride)
    patches = patches[0].T.long() - 1
    patches[patches < 0] = shape.numel()  # the zero around the image
    height, width = (length // side for length in given)
    positions = torch.arange(given.numel()).reshape(given)[: height * side, : width * side]
    windows = positions.reshape(height, side, width, side).permute(0, 2, 1, 3).reshape(height * width, side**2)
    return PooledLayer(name, weight.flatten(1), bias, patches, windows, tuple(shape))


@dataclass(frozen=True)
class Gaussian:
    """A normal distribution.

    mean: (D,).
    precision: (D, D), the inverse of its covariance.
    drawn: (M, D), samples.
    shape: (C, H, W) if it is one of photographs, else None.
    """

    mean: Tensor
    precision: Tensor
    drawn: Tensor
    shape: tuple[int, int, int] | None = None

    @classmethod
    def of(cls, drawn: Tensor) -> "Gaussian":
        """Make the one with the mean and the covariance of samples (M, D)."""
        variance = drawn.var(0).mean()
        ridge = SINGLE_IMAGE.ridge * variance * torch.eye(drawn.shape[1]).to(drawn)
        return cls(drawn.mean(0), torch.cholesky_inverse(torch.linalg.cholesky(drawn.T.cov() + ridge)), drawn)

    def learned(self, drawn: Tensor) -> "Gaussian":
        """Return the one of photographs whose neighbouring pixels differ as those of samples (M, D) do: nearly all by
        little and, at edges, a few by much (each difference has a variance of its own), in colours of one covariance.
        One that is not of photographs stays as it is."""
        if self.shape is None:
            return self
        own, channels = SINGLE_IMAGE, self.shape[0]
        unit = torch.eye(drawn.shape[1] // channels).to(drawn).view(-1, *self.shape[1:])
        steps = torch.cat([unit.diff(dim=1).flatten(1), unit.diff(dim=2).flatten(1)], 1)
        differences = drawn.view(len(drawn), channels, -1) @ steps  # (M, C, E)
        weights = differences.new_ones(differences.shape[2])
        for _ in range(own.edge_steps):
            colors = torch.einsum("mce,e,mde->cd", differences, weights, differences)
            colors = colors / colors.diagonal().mean() + own.least_color * torch.eye(channels).to(colors)
            of_color = torch.linalg.inv(colors)
            squares = torch.einsum("mce,cd,mde->e", differences, of_color, differences) / (channels * len(drawn))
            weights = (squares + own.least_edge * squares.mean()) ** -own.edge_power
        of_place = steps * (weights / (weights * squares).mean()) @ steps.T
        of_place = of_place + own.ridge * of_place.diagonal().mean() * torch.eye(len(of_place)).to(of_place)
        return replace(self, precision=torch.kron(of_color.contiguous(), of_place))


def photographs(pixels: PixelSpace, length: float, count: int, generator: torch.Generator) -> Gaussian:
    """Make a prior of photographs (C, H, W): correlations that fall exponentially with the distance, and colours near
    to grey. length: over which they do, in widths of the image. count: of samples."""
    channels, height, width = pixels.shape
    own = SINGLE_IMAGE
    rows, columns = (torch.arange(size, dtype=torch.float64) for size in (height, width))
    places = torch.cartesian_prod(rows, columns)
    along = (-torch.cdist(places, places) / (length * max(height, width))).exp()
    along += own.grain * torch.eye(len(along)).to(along)
    grey = torch.ones(channels, channels, dtype=torch.float64)
    color = (channels * torch.eye(channels).to(grey) - grey) / max(1, channels - 1)
    across = (pixels.range * own.deviation) ** 2 * (grey + own.color_share * color)
    of_color, of_place = (torch.linalg.cholesky(part) for part in (across, along))
    precision = torch.kron(torch.cholesky_inverse(of_color), torch.cholesky_inverse(of_place))
    mean = pixels.middle.double().expand(1, *pixels.shape).flatten()
    drawn = torch.randn(count, channels, len(along), dtype=torch.float64, generator=generator)
    return Gaussian(mean, precision, mean + (of_color @ drawn @ of_place.T).flatten(1), pixels.shape)


@dataclass(frozen=True)
class ObservedLayer:
    """What is known of a layer.

    pooled: (O, P), behind its ReLU and pooling.
    variance: (O, P), of their errors.
    signals: (O, P), at these outputs.
    update: (O, T).
    """

    pooled: Tensor
    variance: Tensor
    signals: Tensor
    update: Tensor

    @property
    def open(self) -> Tensor:
        """(O, P) bool: outputs that the ReLU let through for certain."""
        own = SINGLE_IMAGE
        return self.pooled > (own.zero * self.pooled.max()).clamp_min(own.certain * self.variance.sqrt())


class Posterior(NamedTuple):
    """A normal posterior of a layer's input.

    mean: (D,), of a layer's input.
    variance: (D,).
    misfit: ‖update of the mean − update‖ / ‖update‖.
    """

    mean: Tensor
    variance: Tensor
    misfit: float


def posteriors(
    layer: PooledLayer, observed: ObservedLayer, prior: Gaussian, count: int, generator: torch.Generator
) -> Iterator[Posterior]:
    """Yield what is known of the input after each linearization, over `count` samples."""
    own, samples, shares, turns = SINGLE_IMAGE, prior.drawn[:count], None, None
    is_open = observed.open
    signals = observed.signals * is_open
    size = observed.update.square().mean(1)
    missed_pooled, missed_update = size.new_zeros(()), torch.zeros_like(size)
    while True:
        winner, pooled, update = layer.forward(samples, signals)
        # an output that is shut counts only where it might be open: what the ReLU passes on
        passes = is_open | (pooled > 0)
        drawn = (one_hot(winner, layer.windows.shape[1]) * passes[..., None]).double().mean(0)
        shares = drawn if shares is None else drawn.lerp(shares, own.damping)
        now = layer.turns(samples, winner, signals)
        turns = now if turns is None else now.lerp(turns, own.damping)
        to_pooled, to_update = layer.rows(shares, signals)
        to_update += turns
        kept = is_open | (shares.sum(2) > own.least_open)
        left = (pooled * passes)[:, kept] - samples @ to_pooled[kept].T
        noise = left.var(0)
        # where the mean missed more than the noise explains, there was more noise
        noise = noise * (missed_pooled / (own.trust * noise.mean()).clamp_min(own.tiny)).clamp_min(1)
        noise = noise + observed.variance[kept] + (own.rounding * observed.pooled.max()) ** 2
        wanted = (observed.pooled[kept] - left.mean(0))[:, None]
        rows = [torch.cat([to_pooled[kept], wanted], 1) / noise.sqrt()[:, None]]
        for channel in signals.any(1).nonzero().flatten():
            left = update[:, channel] - samples @ to_update[channel].T
            least = own.rounding**2 * size[channel] + own.tiny * size.max()
            triangle = torch.linalg.cholesky(_noise(left, missed_update[channel], least))
            row = torch.cat([to_update[channel], (observed.update[channel] - left.mean(0))[:, None]], 1)
            rows.append(torch.linalg.solve_triangular(triangle, row, upper=False))
        scaled, wanted = torch.cat(rows).split([layer.inputs, 1], 1)
        pull = prior.precision @ prior.mean[:, None] + scaled.T @ wanted
        triangle = torch.linalg.cholesky(prior.precision + scaled.T @ scaled)
        mean = torch.cholesky_solve(pull, triangle)[:, 0]
        drawn = torch.randn(len(mean), count, generator=generator).to(mean)
        samples = mean + torch.linalg.solve_triangular(triangle.T, drawn, upper=True).T
        prior = prior.learned(samples)
        _, pooled, update = layer.forward(mean[None], signals)
        missed_pooled = (pooled[0] - observed.pooled)[is_open].square().mean()
        missed_update = (update[0] - observed.update).square().mean(1)
        yield Posterior(mean, samples.var(0), float((missed_update.sum() / size.sum()).sqrt()))


def _noise(left: Tensor, missed: Tensor, least: Tensor) -> Tensor:
    """Return the covariance (T, T) of what is left (M, T) by chance, more where the mean squared miss shows more, and
    at least that of rounding."""
    own = SINGLE_IMAGE
    noise = left.T.cov()
    diagonal = noise.diagonal()
    noise = noise + own.shrinkage * (diagonal.diag() - noise)
    noise = noise * (missed / (own.trust * diagonal.mean() + least)).clamp_min(1)
    return noise + least * torch.eye(len(noise)).to(noise)


@dataclass(frozen=True)
class FoundImage:
    """The image that a search came to, and how far it is to be trusted.

    image: (1, C, H, W), None where a layer's input was not found.
    layer: the convolution to whose input the search came.
    misfit: what that leaves of its update.
    decoy_misfit: what a decoy d leaves of its own.
    decoy_error: ‖x − d‖ / ‖d − its mean colour‖ of the image x to which it came back. This and the last are nan where
        no image was sought.
    """

    image: Tensor | None
    layer: str
    misfit: float
    decoy_misfit: float = float("nan")
    decoy_error: float = float("nan")

    @property
    def trusted(self) -> bool:
        """Whether the image may be returned: it explains the update, as well as a decoy explains its own, and the decoy
        came back. A decoy comes from the very prior of the search, so that it comes back more easily than the image."""
        own = SINGLE_IMAGE
        explained = self.misfit < min(own.most_left, own.most_excess * self.decoy_misfit)
        return self.image is not None and explained and self.decoy_error**2 < own.most_energy_lost


def find_image(
    layers: list[PooledLayer],
    delta: State,
    initial: State,
    head: str,
    pixels: PixelSpace,
    generator: torch.Generator,
    *,
    progress: Progress,
) -> FoundImage:
    """Find the image that one step was made on, on the CPU. layers: the first one first. delta: the update. initial:
    the parameters that were sent. head: the fully connected layer behind the last of the layers."""
    weight, moved, bias = (
        part.double().cpu() for part in (initial[f"{head}.weight"], delta[f"{head}.weight"], delta[f"{head}.bias"])
    )
    features, at_features = (bias @ moved / bias.square().sum()).clamp_min(0), bias @ weight
    updates = [delta[f"{layer.name}.weight"].double().cpu().flatten(1) for layer in layers]
    own = SINGLE_IMAGE
    drawn = photographs(pixels, own.length_of_maps, own.map_images, generator).drawn
    fed = [pixels.inside(drawn.float().view(-1, *pixels.shape)).flatten(1).double()]
    for layer in layers[:-1]:
        fed.append(torch.cat([_outputs(layer, part).flatten(1) for part in fed[-1].split(own.image_samples)]))
    last = layers[-1]
    observed = _observed(last, features, torch.zeros_like(features), at_features, updates[-1])
    for number in range(len(layers) - 1, 0, -1):
        layer = layers[number]
        best = _maps(layer, observed, Gaussian.of(fed[number]), generator, progress)
        if best.misfit > own.most_misfit:
            return FoundImage(None, layer.name, best.misfit)
        signals, before = layer.back(best.mean, observed.signals), number - 1
        observed = _observed(layers[before], best.mean.clamp_min(0), best.variance, signals, updates[before])
    prior = photographs(pixels, own.length, own.image_samples + 1, generator)

    def image_of(observed: ObservedLayer) -> tuple[Tensor, float]:
        found = posteriors(layers[0], observed, prior, own.image_samples, generator)
        *_, (mean, _, misfit) = _reported(islice(found, own.image_steps), own.image_steps, progress)
        return pixels.inside(mean.view(1, *pixels.shape)), misfit

    image, misfit = image_of(observed)
    decoy = pixels.inside(_like(image, prior.drawn[-1].view_as(image)))
    back, of_decoy = image_of(_seen(layers, decoy, at_features))
    lost = (back - decoy).norm() / (decoy - decoy.mean((2, 3), keepdim=True)).norm().clamp_min(own.tiny)
    return FoundImage(image.float(), layers[0].name, misfit, of_decoy, float(lost))


def _maps(
    layer: PooledLayer, observed: ObservedLayer, prior: Gaussian, generator: torch.Generator, progress: Progress
) -> Posterior:
    """Return the posterior of least misfit; behind the first that leaves nothing, the next one, whose variance is that
    of certain winners."""
    own = SINGLE_IMAGE
    found = islice(posteriors(layer, observed, prior, own.map_samples, generator), own.map_steps)
    best: Posterior | None = None
    for now in _reported(found, own.map_steps, progress):
        if best is not None and best.misfit < own.exact:
            return now if now.misfit < own.most_misfit else best
        if best is None or now.misfit < best.misfit:
            best = now
    assert best is not None
    return best


def _reported(found: Iterator[Posterior], steps: int, progress: Progress) -> Iterator[Posterior]:
    for step, posterior in enumerate(found):
        progress(step, steps, posterior.misfit)
        yield posterior


def _observed(layer: PooledLayer, pooled: Tensor, variance: Tensor, signals: Tensor, update: Tensor) -> ObservedLayer:
    """Make the layer's observation of flat outputs, of their variances and of the signals at them, (O · P,) each."""
    shape = len(layer.weight), -1
    return ObservedLayer(pooled.view(shape), variance.view(shape), signals.view(shape), update)


def _outputs(layer: PooledLayer, inputs: Tensor) -> Tensor:
    """Return the outputs (M, O, P) of the layer for inputs (M, D)."""
    return layer.forward(inputs, inputs.new_zeros(len(layer.weight), len(layer.windows)))[1].clamp_min(0)


def _like(image: Tensor, drawn: Tensor) -> Tensor:
    """Return one that was drawn, (1, C, H, W), with the mean colour and the contrast of an image."""
    color, drawn = image.mean((2, 3), keepdim=True), drawn - drawn.mean((2, 3), keepdim=True)
    return color + (image - color).norm() / drawn.norm() * drawn


def _seen(layers: list[PooledLayer], image: Tensor, signals: Tensor) -> ObservedLayer:
    """Return what the first layer would show of an image (1, C, H, W) whose features get the signals (D,)."""
    fed = [image.flatten()]
    for layer in layers:
        fed.append(_outputs(layer, fed[-1][None]).flatten())
    for layer, inputs in zip(layers[:0:-1], fed[-2:0:-1], strict=True):
        signals = layer.back(inputs, signals.view(len(layer.weight), -1))
    shaped = (signals * (fed[1] > 0)).view(len(layers[0].weight), -1)
    update = layers[0].forward(fed[0][None], shaped)[2][0]
    return _observed(layers[0], fed[1], torch.zeros_like(fed[1]), signals, update)
