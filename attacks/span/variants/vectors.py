"""Private vectors of single convolutions behind a ReLU, where no pair of layers tells maps.

That is so in a small MobileNet, whose widenings are fed more positions than channels. What such a convolution
was fed, patches or pixels of maps, are the vertices of a cone (`attacks.span.feature_space.cone`): told after one step
of SGD, without their places in the image. Where all pixels of a 1x1 projection are found behind a depthwise
convolution, they are put together to maps (`attacks.span.maps.projections`).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import Facts, Progress, Reconstruction
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.span.feature_space.cone import cone_vectors
from attacks.span.maps.inversion import PixelSpace
from attacks.span.maps.network import VectorLayer, find_vector_layers
from attacks.span.maps.places import Arranged
from attacks.span.maps.projections import find_projection, put_together
from attacks.span.maps.update import patch_rank, rounding_of
from attacks.span.stages import Acceptance, Refusal, Variant
from attacks.span.thresholds import CONE, PLACES, constants_of
from attacks.update.spectrum import Spectrum, layer_update

Vectors = tuple[Tensor, int]
"""What `cone_vectors` finds at one layer: vectors (F, D), and how many of them, the first ones, are certified."""


@dataclass(frozen=True)
class VectorUpdate:
    """Layers whose updates show how many vectors they were fed.

    rows: of each, (R, D + 1), as `cone_vectors` takes them.
    count: N, which all of them show; None where there are none.
    """

    layers: tuple[VectorLayer, ...]
    rows: tuple[Tensor, ...]
    count: int | None
    most_images: int
    warnings: tuple[str, ...] = ()

    @property
    def refusal(self) -> Refusal | None:
        """Why there is nothing to search."""
        if self.count is not None:
            return None
        return Refusal(
            "nothing returned: no convolution behind a ReLU has an update whose rank is that of whole images, as after "
            f"one step of SGD on at most {self.most_images} images ('ntk' needs no such rank)"
        )


@dataclass(frozen=True)
class VectorVariant(Variant[VectorUpdate, tuple[Vectors, ...]]):
    """Private vectors of single convolutions behind a ReLU after one step of SGD, put together to maps where they can.

    Only the first round whose update is not zero is used. Nothing has to be known; public_images stand for images of
    nobody beside synthetic ones. The result holds vectors of the layer that gave up the largest share; where it has no
    bias, their sums are 1.
    """

    observation: Observation
    knowledge: Knowledge
    layers: tuple[VectorLayer, ...]

    def read(self, generator: torch.Generator) -> VectorUpdate:
        """Read the rows of every layer whose rank is that of whole images, and the same number as most of them."""
        observation, warnings = self.observation.one_round()
        delta = observation.delta()
        _, final = observation.pairs[0]
        shown: dict[int, list[tuple[VectorLayer, Tensor]]] = {}
        for layer in self.layers:
            update = layer_update(delta, layer.name)
            spectrum = Spectrum.of(update)
            rank = patch_rank(spectrum, rounding_of(final[f"{layer.name}.weight"].to(update.device, torch.float32)))
            # signals that depend on one another leave sums of vectors, nonnegative ones too: a rank that is not whole
            if 0 < rank < layer.most_rank and rank % layer.positions == 0:
                rows = spectrum.vectors[:rank]
                if update.shape[1] == layer.module.weight[0].numel():
                    rows = torch.cat([rows, rows.sum(1, keepdim=True)], 1)
                shown.setdefault(rank // layer.positions, []).append((layer, rows))
        most = max((layer.most_rank - 1) // layer.positions for layer in self.layers)
        if not shown:
            return VectorUpdate((), (), None, most, warnings)
        count = max(shown, key=lambda number: len(shown[number]))
        layers, spans = zip(*shown[count], strict=True)
        return VectorUpdate(layers, spans, count, most, warnings)

    def search(self, evidence: VectorUpdate, generator: torch.Generator, progress: Progress) -> tuple[Vectors, ...]:
        """Find the vectors of every layer."""
        found = list[Vectors]()
        for done, rows in enumerate(evidence.rows):
            progress(done, len(evidence.rows), math.nan)
            found.append(cone_vectors(rows, generator))
        progress(len(evidence.rows), len(evidence.rows), math.nan)
        return tuple(found)

    def accept(
        self, evidence: VectorUpdate, candidates: tuple[Vectors, ...], generator: torch.Generator, progress: Progress
    ) -> Acceptance:
        """Accept what the layer was fed of which the largest share is certified, the more of them the better."""
        numbers = [number for _, number in candidates]
        shares = [(number / len(rows), number) for number, rows in zip(numbers, evidence.rows, strict=True)]
        best = max(range(len(shares)), key=shares.__getitem__)
        layer, (vectors, certified) = evidence.layers[best], candidates[best]
        counts = {f"vectors_{one.name}": float(number) for one, number in zip(evidence.layers, numbers, strict=True)}
        facts: Facts = {**constants_of(CONE), **counts, "layer": layer.name, "rank": float(len(evidence.rows[best]))}
        nothing, features = vectors.new_zeros(0), vectors[:certified].float()
        count = f"{certified} of {len(evidence.rows[best])}"
        said = f"no image is returned: {count} vectors that {layer.name!r} was fed are certified"
        together: tuple[Tensor, Arranged] | str = "not all of them were found"
        if len(vectors) == len(evidence.rows[best]):
            together = self._together(layer, vectors, generator)
        if isinstance(together, str):
            reason = f"{said}, but not where in an image they belong: {together}"
            return Acceptance(nothing, nothing, reason, facts=facts, features=features)
        maps, arranged = together
        facts |= constants_of(PLACES) | {
            "maps_accepted": float(len(maps)),
            "places_margin": float(arranged.margin.min()),
            "places_misfit": arranged.misfit,
        }
        reason = f"{said}, and put together to {len(maps)} of {evidence.count} maps"
        return Acceptance(nothing, nothing, reason, facts=facts, features=maps if len(maps) else features)

    def _together(
        self, layer: VectorLayer, vectors: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Arranged] | str:
        """Make the maps of all vectors (F, D) of a layer, or say why there are none."""
        observation, _ = self.observation.one_round()
        model, shape, known = observation.model, observation.input_shape, self.knowledge
        projection = find_projection(model, shape, layer)
        if projection is None or math.prod(projection.size) > PLACES.most_places:
            return "it is no 1x1 projection of a few places behind a depthwise convolution"
        space = PixelSpace(shape, None if known.pixel_mean is None else known.input_bounds(torch.zeros(1)))
        public = torch.zeros(0, *shape) if known.public_images is None else known.public_images.cpu().float()
        synthetic = space.decoys(max(0, PLACES.decoys - len(public)), generator)
        decoys = torch.cat([public[: PLACES.decoys], synthetic])
        return put_together(projection, observation.pairs[0], vectors, decoys, generator)

    def report(self, evidence: VectorUpdate, acceptance: Acceptance) -> Reconstruction:
        """Return no images, and maps or vectors as features."""
        return acceptance.reported(self.observation.input_shape, evidence.warnings, num_inferred=evidence.count)


def vector_layers_of(observation: Observation) -> tuple[VectorLayer, ...]:
    """Find the convolutions behind a ReLU that moved and may tell the vectors they are fed."""
    found = find_vector_layers(observation.model, observation.input_shape)
    return tuple(layer for layer in found if f"{layer.name}.weight" in observation.moved)
