"""Tokens of a vision transformer, put together to images.

The linear layers of a block are fed tokens as LayerNorm made them, u = γ (t − μ) / σ + β, μ and σ the mean and the
deviation of t's entries. With what lies in t (`attacks.networks.token_layers`),

    σ (u − β) = γ (E x + e_p + A h − μ),

which is linear in all that is not known: x, which lies in the row space of the patch embedding's update, h, which lies
in that of the projection's, μ and σ. So a token tells its place p, as other places leave a residual, its patch x, and
what attention added to it, c = A h.

Tokens of one image are told by c: attention made it of the image's own patches, so that with one patch of another image
the network makes another c of all tokens. Patches that are missing are taken for what they are likeliest to be
(`attacks.span.token_fit`).

**Crowded**, with more unknowns than equations, tokens are grouped first: c differs more from image to image than from
token to token. Within an image it is then taken for what it is there on average, as far as decoys tell that.
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attacks.interface.observation import State
from attacks.networks.token_layers import TokenLayers
from attacks.networks.vision_transformer import PatchEmbedding
from attacks.span.thresholds import TOKENS
from attacks.span.token_fit import FittedImage, ImageFit, PatchSpace

NONE = -1  # in place of the index of a token that is missing


@dataclass(frozen=True)
class PlacedTokens:
    """Tokens whose place in an image is known.

    tokens: (J, D), as they were found.
    places: (J,), p.
    patches: (J, k), x in terms of the rows that patches lie in; of a class token 0.
    mixed: (J, D), c.
    """

    tokens: Tensor
    places: Tensor
    patches: Tensor
    mixed: Tensor


@dataclass(frozen=True)
class TokenImages:
    """Images by their patches, and what the network makes of them.

    state: the parameters sent, in float64.
    shape: (C, H, W) of an image.
    space: what patches can be.
    mixed: (r, m), orthonormal rows that h lies in.
    decoys: (M, C, H, W), images of nobody.
    """

    layers: TokenLayers
    embedding: PatchEmbedding
    state: State
    shape: tuple[int, int, int]
    space: PatchSpace
    mixed: Tensor
    decoys: Tensor

    @property
    def numbers(self) -> int:
        """How many numbers the tokens of an image are."""
        return self.layers.count * len(self.state[self.embedding.weight])

    def images(self, points: Tensor) -> Tensor:
        """Return images (M, C, H, W) by their points (M, P, q) in the space."""
        return self.embedding.images(self.space.patches(points), self.shape)

    def points(self, images: Tensor) -> Tensor:
        """Return the points (M, P, q) that are nearest to images (M, C, H, W)."""
        return self.space.points(self.embedding.patches(images) @ self.space.rows.T)

    def placed(self, tokens: Tensor) -> PlacedTokens:
        """Find the places, patches and mixtures of tokens (J, D); leave out those whose place is not certain."""
        known, asked, prior = self._equations
        left = -(tokens - self._norm[1])
        left = torch.cat([left, left.new_zeros(len(left), len(prior))], 1)
        basis = torch.linalg.qr(asked)[0]
        outside, rest = (part - part @ basis @ basis.T for part in (left, known))
        sizes = -(outside @ rest.T) / outside.square().sum(1, keepdim=True)  # σ of each token at each place
        missed = (sizes[..., None] * outside[:, None] + rest).norm(dim=2) / rest.norm(dim=1)
        ordered, places = missed.sort(1)
        sure = (ordered[:, 0] < TOKENS.sure * ordered[:, 1]) & (sizes.gather(1, places[:, :1])[:, 0] > 0)
        places, left = places[sure, 0], left[sure]
        right = -(sizes[sure].gather(1, places[:, None]) * left + known[places])
        solved = torch.linalg.lstsq(asked, right.T).solution.T
        number = len(self.space.rows)
        of_patches = torch.isin(places, self.layers.rows.to(places.device))
        mixed = solved[:, number:-1] @ self._projection.T + self._bias
        return PlacedTokens(tokens[sure], places, solved[:, :number] * of_patches[:, None], mixed)

    def put_together(self, tokens: Tensor, count: int, generator: torch.Generator) -> tuple[PlacedTokens, Tensor]:
        """Find the places and patches of tokens (J, D), and which of them make one of `count` images, (N, T) indices of
        the former, `NONE` where one is missing. There are none where patches have as many unknowns as tokens numbers.
        """
        open_ended = len(self.space.rows) + TOKENS.spare > len(self.state[self.embedding.weight])
        if self.crowded and len(tokens) and not open_ended:
            return self._crowded(tokens, count, generator)
        placed = self.placed(tokens[:0] if open_ended else tokens)
        return placed, self.grouped(placed, count, generator) if len(placed.places) else self._empty(count)

    @property
    def crowded(self) -> bool:
        """Whether there are more unknowns than a token tells."""
        return len(self.space.rows) + len(self.mixed) + TOKENS.spare > len(self.state[self.embedding.weight])

    def grouped(self, placed: PlacedTokens, count: int, generator: torch.Generator) -> Tensor:
        """Group tokens to `count` images, (N, T) indices of `placed`, `NONE` where one is missing. The network makes of
        these images most nearly the c that their tokens have; tokens of a place are exchanged from several starts."""
        starts = [self._by_mixture(placed, count)]
        starts += [self._at_random(placed, count, generator) for _ in range(TOKENS.starts)]
        found = [self._exchanged(placed, start) for start in starts]
        return min(found, key=lambda one: one[1])[0]

    def of_groups(self, placed: PlacedTokens, groups: Tensor) -> Tensor:
        """Return the points (N, P, q) of images by their tokens (N, T), those of missing patches as they are likeliest
        beside the others."""
        chosen = groups[:, self.layers.rows.to(groups.device)]
        points = self.space.points(placed.patches[chosen.clamp_min(0)])
        filled = [self.space.filled(*image) for image in zip(points, chosen == NONE, strict=True)]
        return torch.stack(filled)

    def likeliest(self, placed: PlacedTokens, group: Tensor, generator: torch.Generator) -> FittedImage:
        """Find the image of which tokens are `group` (T,), but for a few that it misses by far: they are another's."""
        while True:
            there = (group != NONE).nonzero()[:, 0]
            tokens = placed.tokens[group[there]]
            fit = ImageFit(self.space, tokens, partial(self._fed, places=there))
            missing = group[self.layers.rows.to(group.device)] == NONE
            found = fit.likeliest(self.of_groups(placed, group[None])[0], missing, generator)
            foreign = found.noise > TOKENS.own * float(tokens.square().mean().sqrt())
            if not foreign.any() or 2 * int(foreign.sum()) >= len(there):
                return found
            group = group.index_fill(0, there[foreign], NONE)

    @torch.no_grad()
    def _fed(self, points: Tensor, places: Tensor) -> Tensor:
        """Return what the first layer is fed in places (J,) of images by their points (M, P, q): (M, J, D)."""
        return self.layers.run(self.state, self.images(points)).first[:, places]

    def _exchanged(self, placed: PlacedTokens, groups: Tensor) -> tuple[Tensor, float]:
        """Exchange tokens of the same place between images while that lowers the misfit; return both."""
        pairs = torch.combinations(torch.arange(len(groups)))
        for _ in range(TOKENS.sweeps if len(pairs) else 0):
            before, misfit = groups.clone(), self._misfit(placed, groups)
            for place in range(groups.shape[1]):
                tried = groups[pairs]
                tried[:, :, place] = tried[:, :, place].flip(1)
                new = self._misfit(placed, tried.flatten(0, 1)).view(len(pairs), 2)
                gain = misfit[pairs].sum(1) - new.sum(1)
                best = int(gain.argmax())
                if gain[best] > TOKENS.least_gain * misfit.sum():
                    groups[pairs[best]], misfit[pairs[best]] = tried[best], new[best]
            if torch.equal(groups, before):
                break
        return groups, float(self._misfit(placed, groups).sum())

    @torch.no_grad()
    def _misfit(self, placed: PlacedTokens, groups: Tensor) -> Tensor:
        """Compute ‖c − c of the network‖² (N,) of images by their tokens (N, T), summed over those that are there."""
        made = self.layers.run(self.state, self.images(self.of_groups(placed, groups))).mixed
        apart = (made - placed.mixed[groups.clamp_min(0)]).square().sum(2)
        return (apart * (groups != NONE)).sum(1)

    def _by_mixture(self, placed: PlacedTokens, count: int) -> Tensor:
        """Group tokens (N, T) so that those of an image have similar mixtures."""
        number = self.layers.count
        groups = self._empty(count)
        members = [(placed.places == place).nonzero()[:, 0][:count] for place in range(number)]
        for place in sorted(range(number), key=lambda place: -len(members[place])):
            own, there = members[place], groups != NONE
            sums = (placed.mixed[groups.clamp_min(0)] * there[..., None]).sum(1)
            centres = sums / there.sum(1, keepdim=True).clamp_min(1)
            tokens, images = linear_sum_assignment(torch.cdist(placed.mixed[own], centres).cpu().numpy())
            groups[torch.as_tensor(images), place] = own[torch.as_tensor(tokens)]
        return groups

    def _at_random(self, placed: PlacedTokens, count: int, generator: torch.Generator) -> Tensor:
        groups = self._empty(count)
        for place in range(groups.shape[1]):
            own = (placed.places == place).nonzero()[:, 0][:count]
            groups[torch.randperm(count, generator=generator)[: len(own)], place] = own
        return groups

    def _crowded(self, tokens: Tensor, count: int, generator: torch.Generator) -> tuple[PlacedTokens, Tensor]:
        """Group tokens by what of c no patch and no μ can reach, then find their patches with the c of their group."""
        fixed, mixed = self._decoy_tokens
        scale, shift = self._norm
        mean = mixed.mean((0, 1))
        known = scale * (fixed + mixed.mean(0) - mean)
        between = scale * (mixed.mean(1) - mean)
        within = scale * (mixed - mixed.mean(1, keepdim=True) - mixed.mean(0) + mean).flatten(0, 1)
        reach = scale[:, None] * torch.cat([self._embedded, self._embedded.new_ones(len(scale), 1)], 1)
        outside = torch.linalg.svd(reach)[0][:, reach.shape[1] :]
        seen = outside @ _whitening(within @ outside)
        points, number = (tokens - shift) @ seen, len(fixed)
        prior = (scale * mean) @ seen
        found = [_clusters(points, known @ seen, float(prior.norm()), count, generator) for _ in range(TOKENS.clusters)]
        own, slots, centres, _ = min(found, key=lambda one: one[3])
        images, places = slots // number, slots % number
        # what is seen of an image's c says the rest, as it does of decoys; noise is what its tokens leave of the mean
        spread = between.T @ between / len(between)
        noise = torch.eye(seen.shape[1], dtype=seen.dtype, device=seen.device) / number
        lifted = scale * mean + (centres - prior) @ torch.linalg.solve(seen.T @ spread @ seen + noise, seen.T @ spread)
        right = -(known[places] + lifted[images])
        asked = torch.cat([reach.expand(len(own), -1, -1), (shift - tokens[own])[..., None]], 2)
        patches = torch.linalg.lstsq(asked, right[..., None]).solution[:, : len(self.space.rows), 0]
        of_patches = torch.isin(places, self.layers.rows.to(places.device))
        groups = self._empty(count)
        groups[images, places] = torch.arange(len(own), device=own.device)
        return PlacedTokens(tokens[own], places, patches * of_patches[:, None], lifted[images] / scale), groups

    def _empty(self, count: int) -> Tensor:
        return torch.full((count, self.layers.count), NONE, dtype=torch.long, device=self.space.rows.device)

    @cached_property
    def _embedded(self) -> Tensor:
        """E of the rows that patches lie in, (D, k)."""
        return self.state[self.embedding.weight].flatten(1) @ self.space.rows.T

    @cached_property
    def _norm(self) -> tuple[Tensor, Tensor]:
        """γ and β (D,)."""
        weight, bias = (self.state.get(f"{self.layers.names[1]}.{part}") for part in ("weight", "bias"))
        width = len(self.state[self.embedding.weight])
        one = self.decoys.new_ones(width)
        return one if weight is None else weight, 0 * one if bias is None else bias

    @cached_property
    def _projection(self) -> Tensor:
        """A of the rows that h lies in, (D, r)."""
        return self.state[f"{self.layers.projection}.weight"] @ self.mixed.T

    @cached_property
    def _bias(self) -> Tensor:
        """That of A, (D,), which is a part of c."""
        bias = self.state.get(f"{self.layers.projection}.bias")
        return self._projection.new_zeros(len(self._projection)) if bias is None else bias

    @cached_property
    def _decoy_tokens(self) -> tuple[Tensor, Tensor]:
        """What decoys' tokens consist of: (e_p and biases (T, D), A h (M, T, D))."""
        with torch.no_grad():
            tokens = self.layers.run(self.state, self.decoys)
        rest = tokens.before - tokens.mixed
        rest[:, self.layers.rows.to(rest.device)] -= self.embedding.embedded(self.state, self.decoys)
        return rest.mean(0) + self._bias, tokens.mixed - self._bias

    @cached_property
    def _equations(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what is known at each place (T, D + r), what the unknowns (x, h, μ) are multiplied by (D + r, k + r +
        1), and the latter's last rows (r, r): what h is for decoys, as of so many equations more, in their spread."""
        (fixed, mixed), scale = self._decoy_tokens, self._norm[0]
        inverse = torch.linalg.pinv(self._projection)
        parts = mixed @ inverse.T
        means = parts.mean(0)
        spread = (parts - means).flatten(0, 1)
        values, axes = torch.linalg.eigh(spread.T @ spread / len(spread))
        deviation = values.clamp_min(TOKENS.least_spread * values.max()).sqrt()
        noise = TOKENS.noise * float((scale * (fixed + mixed)).square().mean().sqrt())
        prior = noise * (axes / deviation).T
        width, number = self._embedded.shape
        asked = torch.cat([self._embedded, self._projection, -scale.new_ones(width, 1)], 1) * scale[:, None]
        below = torch.cat([prior.new_zeros(len(prior), number), prior, prior.new_zeros(len(prior), 1)], 1)
        known = torch.cat([scale * fixed, -(means @ prior.T)], 1)
        return known, torch.cat([asked, below]), prior


def _whitening(spread: Tensor) -> Tensor:
    """Return a matrix (q, q) that makes rows (M, q) of zero mean as long in all directions."""
    values, axes = torch.linalg.eigh(spread.T @ spread / len(spread))
    return axes / values.clamp_min(TOKENS.least_within * values.max()).sqrt()


def _clusters(
    points: Tensor, known: Tensor, length: float, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Assign points y (J, q) to the places (T, q) of `count` images, σ y = place + centre of its image, one to each at
    most: (points (J',), slots (J',) of N·T, centres (N, q), what they leave). length: of centres at first."""
    ways, squares = torch.nn.functional.normalize(points, dim=1), points.square().sum(1, keepdim=True)
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    while len(chosen) < count:
        apart = (1 - ways @ ways[chosen].T).amin(1).clamp_min(TOKENS.least_gain)
        chosen.append(int(torch.multinomial(apart.cpu(), 1, generator=generator)))
    centres, left = length * ways[chosen], math.inf
    while True:
        targets = (centres[:, None] + known).flatten(0, 1)
        along = points @ targets.T
        sizes = (along / squares).clamp_min(0)
        costs = targets.square().sum(1) - 2 * sizes * along + sizes.square() * squares
        own, slots = (
            torch.as_tensor(part, device=points.device) for part in linear_sum_assignment(costs.cpu().numpy())
        )
        total = float(costs[own, slots].sum())
        if total > left * (1 - TOKENS.least_gain):
            return own, slots, centres, left
        images, left = slots // len(known), total
        seen = sizes[own, slots, None] * points[own] - known[slots % len(known)]
        sums = torch.zeros_like(centres).index_add(0, images, seen)
        centres = sums / torch.bincount(images, minlength=count).clamp_min(1)[:, None]
