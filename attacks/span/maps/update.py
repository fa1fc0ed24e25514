"""What the update of a pair of layers tells: the spans of the patches they saw, and the number of images.

Under SGD the update of a convolution is ΔW = Σ_t Σ_n Σ_p δ_np(t) (U_p F_n(t))ᵀ over steps t, images n and positions p.
One step gives rank N·P, with a gap of four to five orders of magnitude behind it in float32; BatchNorm in training mode
takes one off, as the signals δ of a channel then add up to zero over the batch, and leaves differences of patches.
Several steps add the directions in which maps moved: the gap closes, and what the rows then hold best are the maps
somewhere on the way from the parameters sent to those returned: near the middle for plain SGD, nearer to those sent
with momentum, under which early gradients count more and early steps are short (`MapUpdate.on_the_way`).

Momentum changes nothing else: Δθ is still a sum over gradients. Weight decay is taken off first, as its share of Δθ is
the parameters themselves and has full rank (`attacks.update.spectrum`).

`at_parameters_sent` takes maps back from there: where the image is known well enough by its own way, maps(x; sent) −
maps(x; seen); elsewhere by the way that maps of other images went, a linear function of them at every position.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad, relu

from attacks.interface.errors import InputError
from attacks.interface.observation import Observation, State
from attacks.interface.torch_tools import cast_state
from attacks.span.maps.network import MapNetwork, batch_statistics, batches_seen
from attacks.span.maps.patches import PatchSpan
from attacks.span.stages import Refusal
from attacks.span.thresholds import MAP_KERNEL, MAP_SEARCH
from attacks.update.spectrum import Spectrum, decay_factor, without_decay

ROUNDING = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class MapUpdate:
    """The evidence for the maps of private images at one pair of layers.

    sent: the parameters and statistics at which maps are returned.
    returned: the parameters that came back.
    seen: those at which maps are sought: `sent` for one step, else a place on the way between the two.
    holds: the span of the patches of maps.
    tests: that of what the second layer was fed.
    count: N, where the rank of one step shows it.
    batch: how many images each of several batches had, where the rank shows that the patches of all of them, in
        training mode, stand above rounding.
    ranks: of the two updates.
    training_mode: whether BatchNorm normalized by the batch.
    left: ‖Δ − Δ_r‖ / ‖Δ‖ of the first update, r half of its rank.
    decay: κ, to which weight decay shrank the parameters, 1 without.
    warnings: on what was left out or undone.
    """

    network: MapNetwork
    sent: State
    returned: State
    seen: State
    holds: PatchSpan
    tests: PatchSpan
    count: int | None
    batch: int | None
    ranks: tuple[int, int]
    training_mode: bool
    left: float
    decay: float = 1.0
    warnings: tuple[str, ...] = ()

    def on_the_way(self, part: float | Tensor) -> "MapUpdate":
        """Return the same with maps sought at that part of the way, 0 where parameters were sent and 1 where they came
        back; statistics stay as they are. Differentiable in `part`."""
        moved = {name: self.sent[name] + part * (end - self.sent[name]) for name, end in self.returned.items()}
        return replace(self, seen={**self.sent, **moved})

    def to(self, dtype: torch.dtype) -> "MapUpdate":
        """Return the same in another precision."""
        device = self.holds.filters.device
        sent, returned, seen = (cast_state(state, device, dtype) for state in (self.sent, self.returned, self.seen))
        holds, tests = self.holds.to(dtype), self.tests.to(dtype)
        return replace(self, sent=sent, returned=returned, seen=seen, holds=holds, tests=tests)

    @property
    def single_step(self) -> bool:
        """Whether the update is one step's, as a gap at the number of patches shows."""
        return self.count is not None

    @property
    def whole(self) -> bool:
        """Whether a gap shows where the spans of all patches end."""
        return self.single_step or self.batch is not None

    @property
    def refusal(self) -> Refusal | None:
        """Why a search makes no sense."""
        if self.whole or self.left <= MAP_KERNEL.most_left:
            return None
        return Refusal(
            f"nothing returned: half of the rank of the update of {self.network.first!r} leaves {self.left:.2g} of it: "
            f"more than {self.network.most_images} images, local Adam, many steps or noise"
        )

    @property
    def most_images(self) -> int:
        """The largest number of images whose maps could be told apart here."""
        return self.count or self.network.most_images


@dataclass(frozen=True)
class _Ranks:
    """Of the updates of a pair.

    rows: the right singular vectors of each group up to the rank.
    count: how many images a batch had, where the rank shows it.
    batches: how many batches that were, 1 unless the patches of all of them stand above rounding.
    one_less: whether the rank is one less for each batch than its patches.
    left: what half of the rank leaves of the first update.
    """

    rows: tuple[Tensor, Tensor]
    count: int | None
    batches: int
    one_less: bool
    left: float


def read_update(observation: Observation, networks: Sequence[MapNetwork]) -> MapUpdate:
    """Read the evidence at the earliest pair of layers, given in order of use, whose rank shows the number of images
    and whose second layer can test as many, else whose update half of its rank explains. Raises InputError where no
    pair moved."""
    observation, warnings = observation.one_round()
    model = observation.model
    device = next(model.parameters()).device
    initial, final = (cast_state(state, device, torch.float32) for state in observation.pairs[0])
    pairs = moved_pairs(networks, observation)
    delta, decay = _without_decay(observation, pairs[-1])
    if decay < 1:
        warnings = (*warnings, f"weight decay was undone: parameters shrank by {1 - decay:.2g} in all")
    spectra = {pair.first: _spectra(pair, pair.first, delta) for pair in pairs}
    spectra |= {pair.second: _spectra(pair, pair.second, delta) for pair in pairs if pair.second not in spectra}
    batches = batches_seen(initial, final)
    ranks = [_ranks(pair, spectra, final, batches) for pair in pairs]
    pair, found = min(zip(pairs, ranks, strict=True), key=lambda one: _preference(one[0], one[1], list(spectra)))
    # over several steps N is not known yet; a batch has two images at least
    normalized = batch_statistics(model, initial, final, observation.input_shape, found.count or 2)
    sent, training_mode = normalized or initial, normalized is not None or found.one_less
    rows = [part.float().to(device) for part in found.rows]
    fed = pair.between(sent, torch.zeros(1, *pair.shape, device=device))
    sizes = (pair.shape[1:], (fed.shape[2], fed.shape[3]))
    spans = [
        PatchSpan.of(pair.convolution(name), part, size, training_mode)
        for name, part, size in zip((pair.first, pair.second), rows, sizes, strict=True)
    ]
    update = MapUpdate(
        network=pair,
        sent=sent,
        returned={name: final[name] for name in observation.trainable},
        seen=sent,
        holds=spans[0],
        tests=spans[1],
        count=found.count if found.batches == 1 else None,
        batch=found.count if found.batches > 1 else None,
        ranks=(rows[0].shape[1], rows[1].shape[1]),
        training_mode=training_mode,
        left=found.left,
        decay=decay,
        warnings=warnings,
    )
    return update if update.single_step else update.on_the_way(MAP_SEARCH.way)


def _preference(pair: MapNetwork, ranks: "_Ranks", firsts: list[str]) -> tuple[bool, bool, bool, int, int]:
    """Return a key that is lowest for the pair that is used. firsts: names of layers, in the order of use."""
    spare = pair.spare((ranks.count or 1) * ranks.batches)
    return ranks.count is None, spare <= 0, ranks.left > MAP_KERNEL.most_left, firsts.index(pair.first), -spare


def moved_pairs(networks: Sequence[MapNetwork], observation: Observation) -> list[MapNetwork]:
    """Return the pairs both of whose convolutions moved. Raises InputError where there is none."""
    delta = observation.delta()
    moved = {name for name in delta if bool(delta[name].any())}
    pairs = [pair for pair in networks if {f"{pair.first}.weight", f"{pair.second}.weight"} <= moved]
    if not pairs:
        raise InputError("span: no convolution of more output channels than positions moved with a layer that tests it")
    return pairs


def _without_decay(observation: Observation, pair: MapNetwork) -> tuple[State, float]:
    """Return (Δθ without weight decay, in float64, and κ, one for all parameters, read off the first convolution)."""
    initial, final = observation.pairs[0]
    weight = f"{pair.first}.weight"
    factor = decay_factor(initial[weight].flatten(1), final[weight].flatten(1), MAP_KERNEL.image_free)
    undone = {name: without_decay(initial[name], final[name], factor) for name in observation.trainable}
    return {name: end - initial[name].double() for name, end in undone.items()}, factor


def _ranks(pair: MapNetwork, found: dict[str, list[Spectrum]], final: State, batches: int) -> _Ranks:
    """Return the rows of both updates, cut behind a gap that shows a whole number of images, else at rounding. The
    second layer tells N where the first one's least patches stand no higher than rounding, which hides its gap. found:
    the spectra of layers by name. batches: as BatchNorm counts them."""
    names, positions = (pair.first, pair.second), (pair.positions, pair.tested_positions)
    spectra = [found[name] for name in names]
    noises = [rounding_of(final[f"{name}.weight"]) for name in names]
    ranks = [max(patch_rank(one, noise) for one in group) for group, noise in zip(spectra, noises, strict=True)]
    images, tested = map(_images, ranks, positions)
    if images is None or tested == (images[0], 0):
        images = tested
    count, less = images or (0, 0)
    # BatchNorm takes one off for each: four batches of 16 patches have 60, where 15 images of four would have 59
    apart = batches > 1 and ranks[0] > 0 and (ranks[0] / batches + 1) % pair.positions == 0
    if apart:
        count, less = (ranks[0] // batches + 1) // pair.positions, 1
    batches = batches if apart else 1
    patches = batches * (count * pair.positions - less)
    shown = 0 < patches < pair.most_rank and all(_is_rounding(one, patches, noises[0]) for one in spectra[0])
    if shown:
        ranks[0] = patches
    rows = []
    for rank, group, noise in zip(ranks, spectra, noises, strict=True):
        if not (shown and rank):  # what rounding does not hide, and no more than is worth its cost
            rank = min(max(int((spectrum.values > noise).sum()) for spectrum in group), MAP_KERNEL.most_rows)
        kept = [spectrum.vectors[:rank] for spectrum in group]
        rows.append(torch.stack([pad(own, (0, 0, 0, rank - len(own))) for own in kept]))
    left = max(spectrum.relative_residual(len(spectrum.values) // 2) for spectrum in spectra[0])
    return _Ranks((rows[0], rows[1]), count if shown else None, batches if shown else 1, shown and less == 1, left)


def _images(rank: int, positions: int) -> tuple[int, int] | None:
    """Return (N, 0) or (N, 1) where a rank is that of the patches of N images or one less; None where it is neither."""
    return next(
        (((rank + less) // positions, less) for less in (0, 1) if rank and (rank + less) % positions == 0), None
    )


def _spectra(pair: MapNetwork, name: str, delta: State) -> list[Spectrum]:
    """Return the spectrum of a layer's update, group by group."""
    update = delta[f"{name}.weight"]
    groups = pair.convolution(name).groups
    return [Spectrum.of(part) for part in update.flatten(1).view(groups, len(update) // groups, -1)]


def patch_rank(spectrum: Spectrum, rounding: float) -> int:
    """Return the rank in front of the widest gap that ends at rounding, of the parameters and of the sums, or of a
    lesser one behind which all is noise; else 0."""
    if len(spectrum.values) < 2:
        return 0
    values = spectrum.values.clamp_min(rounding + ROUNDING * float(spectrum.values[0]))
    ratios = values[:-1] / values[1:]
    gap = int(ratios.argmax())
    if _is_rounding(spectrum, gap + 1, rounding) and ratios[gap] > MAP_KERNEL.clear_gap:
        return gap + 1
    rank = spectrum.above_noise()
    return rank if spectrum.ends_at_noise(rank) and _is_rounding(spectrum, rank, rounding) else 0


def _is_rounding(spectrum: Spectrum, rank: int, rounding: float) -> bool:
    """Return whether all beyond a rank is rounding, of the parameters and of the sums."""
    largest = rounding + ROUNDING * float(spectrum.values[0])
    return bool((spectrum.values[rank:] < MAP_KERNEL.floor * largest).all())


def rounding_of(weight: Tensor) -> float:
    """Return the largest singular value that float32's rounding leaves in an update of a convolution (O, C, k, k)."""
    rows, columns = len(weight), weight[0].numel()
    deviation = float(weight.square().mean().sqrt()) * ROUNDING / 12**0.5
    return deviation * (rows**0.5 + columns**0.5)


@torch.no_grad()
def at_parameters_sent(update: MapUpdate, maps: Tensor, images: Tensor, trusted: Tensor, decoys: Tensor) -> Tensor:
    """Compute maps (M, C, H, W) at `update.sent` from those at `update.seen`. images: (M, C, H, W), what they were
    inverted to, and trusted: (M,) bool, where that may be relied on. decoys: (D, C, H, W), images of nobody."""
    before, after = (update.network.maps(state, decoys) for state in (update.seen, update.sent))
    moved = maps + _linear(before, after - before, maps)
    followed = maps + update.network.maps(update.sent, images) - update.network.maps(update.seen, images)
    found = torch.where(trusted[:, None, None, None], followed, moved)
    return relu(found) if update.network.nonnegative else found


def _linear(before: Tensor, moved: Tensor, maps: Tensor) -> Tensor:
    """Predict by how much maps (M, C, H, W) move, from a ridge regression over all positions of others (D, C, H, W)."""
    inputs, outputs, wanted = (part.movedim(1, 3).double() for part in (before, moved, maps))
    inputs, wanted = (torch.cat([part, torch.ones_like(part[..., :1])], 3) for part in (inputs, wanted))
    inputs, outputs = inputs.flatten(0, 2), outputs.flatten(0, 2)
    gram = inputs.T @ inputs
    gram += MAP_SEARCH.ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return (wanted @ torch.linalg.solve(gram, inputs.T @ outputs)).movedim(3, 1).to(maps)
