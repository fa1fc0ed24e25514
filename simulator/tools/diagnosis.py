"""`fedspill diagnose`: is an update in the kernel regime, and which attack promises most, in plain words?"""

import math
from dataclasses import asdict
from pathlib import Path

import torch
from rich import box
from rich.table import Table
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from attacks import ATTACKS, InputError, Knowledge, Observation, Reconstruction, get_attack, torch_generator
from attacks.interface.torch_tools import choose_device
from attacks.kernel.regime import KERNEL_REGIME, Linearity, OnImages, UpdateFacts
from attacks.membership import MembershipTest
from attacks.networks.vision_transformer import find_patch_embedding
from attacks.span.variants.patch_embedding import PatchVariant
from attacks.span.variants.several_patches import several_of
from attacks.update.spectrum import infer_image_count
from simulator.evaluation.candidate_images import spanned, spans_images, to_input_space
from simulator.evaluation.image_files import read_truth
from simulator.evaluation.truth import Truth
from simulator.results.disk import json_text, make_out, write_atomically
from simulator.results.keys import ObservationKey
from simulator.results.schema import LAYERS
from simulator.rundir.run import Run

ORDER = ("span", "ntk", "gradient_matching")


def advice(observation: Observation, knowledge: Knowledge, found: Linearity) -> list[str]:
    """Return lines: which attack to try first, then each attack with a reason."""
    if found.update.delta_linf == 0:
        return ["The update is zero: the client returned what it was sent, and no attack finds anything."]
    refusals = {name: _refusal(name, observation, knowledge) for name in ORDER}
    works = {name for name, refused in refusals.items() if not refused}
    read = None if refusals["span"] else read_patches(observation)
    if read is not None and not (len(read.images) or _is_searched(read)):
        works.discard("span")
    said = {
        "span": refusals["span"] or _span(observation, found, read),
        "ntk": refusals["ntk"] or f"can be tried: {found.verdict}",
        "gradient_matching": refusals["gradient_matching"]
        or "can be tried: it simulates the local steps that it was told, and suits one or a few of them",
    }
    best = _best(works, found)
    head = f"Try `{best}` first." if best else "No attack promises much here; what follows says why."
    return [head, *(f"{name}: {text}" for name, text in said.items())]


def _refusal(name: str, observation: Observation, knowledge: Knowledge) -> str:
    """Return why the attack does not run on this network with this knowledge; "" if it does."""
    try:
        ATTACKS[name]().check(observation, knowledge)
    except InputError as error:
        return f"does not run: {error}"
    return ""


def _best(works: set[str], found: Linearity) -> str | None:
    if "span" in works and (found.update.images_layer is None or found.update.has_rank):
        return "span"
    if "ntk" in works and found.verdict == KERNEL_REGIME:
        return "ntk"
    return "gradient_matching" if "gradient_matching" in works else None


def read_patches(observation: Observation) -> Reconstruction | None:
    """Return what `span` reads off a vision transformer, a least squares that is no dearer than a promise of it; their
    number alone where the update shows several images, which have to be searched. None of other networks, and of an
    update that it refuses."""
    patches = find_patch_embedding(observation.model, observation.input_shape)
    if patches is None or not {patches.weight, patches.positions} <= set(observation.trainable):
        return None
    generator = torch_generator(0, "diagnosis")
    try:
        shown = PatchVariant(observation, patches).read(generator)
        if shown.refusal is None and (shown.count or 1) > 1 and several_of(observation, patches):
            nothing = torch.zeros(0, *observation.input_shape)
            return Reconstruction(nothing, torch.zeros(0), num_inferred=shown.count)
        return get_attack("span").run(observation, Knowledge(), generator)
    except InputError:
        return None


def _is_searched(read: Reconstruction) -> bool:
    """Whether several images are shown, which `span` searches."""
    return not read.warnings and (read.num_inferred or 0) > 1


def _span(observation: Observation, found: Linearity, read: Reconstruction | None) -> str:
    """Say what the spectrum of the update promises `span`. read: what it has read off patches already, if it does."""
    if read is not None and len(read.images):
        return (
            "works: the update is that of one image, which the patch embedding and the positions give exactly, however "
            "long the training"
        )
    if read is not None and _is_searched(read):
        return (
            f"can be tried: the update shows {read.num_inferred} images, put together from their tokens: "
            "exact after one local step, nothing after several"
        )
    if read is not None:
        reasons = [one for one in read.warnings if one.startswith("nothing returned")]
        return f"gives no image of this update, only those of clients of one image: {'; '.join(reasons)}"
    count = infer_image_count(observation)
    if count is None or found.update.images_layer is None:
        return (
            "can be tried: layers lie between the images and the first linear one, so it looks for them through these; "
            "exact after one local step, less sure after several"
        )
    if found.update.has_rank:
        drops = any(isinstance(module, _DropoutNd) and module.p > 0 for module in observation.model.modules())
        held = "; behind dropout it may hold what it finds, just as exact, and return nothing" if drops else ""
        return (
            f"works where training was plain SGD: the first layer's update has the clear rank {count.count}, so "
            f"{count.count} images span it, and they are searched in that span; exact, however long the training "
            f"and however far from the kernel regime{held}"
        )
    return (
        "promises little: the first layer's update has no clear rank (local Adam, weight decay or noise, or more "
        "images than the layer has units or pixels)"
    )


ROWS = {
    "delta_l2": "‖Δθ‖₂",
    "delta_linf": "‖Δθ‖∞",
    "hessian_norm": "‖H‖₂, largest",
    "kernel_distance": "kernel distance, θ₀ to θ_f",
    "linearization_error": "‖f − f_lin‖ / ‖f − f_θ₀‖",
    "remainder": "|f − f_lin|, largest",
    "bound": "½ ‖H‖₂ ‖Δθ‖₂²",
    "unexplained": "left by the images' gradients",
    "linear_output": "linear output layer",
}
VIEWS = {
    "adversary": "As an attacker can measure it, without the private images",
    "evaluator": "As the holder of the data can measure it, on the private images",
}


def measure_regime(observation: Observation, images: Tensor, complete: bool, seed: int = 0) -> Linearity:
    """Measure the last round's update on images (N, C, H, W), in the model's input space. complete: whether these are
    all private ones."""
    if images.ndim != 4 or tuple(images.shape[1:]) != observation.input_shape or not len(images):
        expected = f"(number, {', '.join(map(str, observation.input_shape))})"
        raise InputError(f"diagnose: images have shape {tuple(images.shape)}, expected {expected}")
    generator = torch_generator(seed, "diagnosis", observation.round, observation.client)
    observation = observation.on(choose_device("auto"))
    try:
        on_images = OnImages.of(observation, images, generator, complete=complete)
        return Linearity(UpdateFacts.of(observation, generator), on_images)
    except RuntimeError as error:  # a model that cannot be batched or differentiated twice
        name, reason = type(observation.model).__name__, str(error).splitlines()[0]
        raise InputError(f"diagnose: model {name!r} cannot be measured: {reason}") from None


def private_images(record: Run, observation: Observation, cell: str) -> Tensor:
    """Read the private images behind an observation, in the model's input space, for the evaluator alone."""
    if cell not in record.cells:
        raise InputError("--evaluator reads a scenario's private images, an audit has none: give --images PATH")
    key = ObservationKey.of(vars(observation))
    clients = record.store(cell).recorded(key).clients
    truth = Truth.of(record.cells[cell].scenario, clients, clients)
    return truth.normalization.inputs(truth.private)


def adversary_images(
    file: Path | None, observation: Observation, knowledge: Knowledge, in_pixels: bool
) -> tuple[Tensor, str]:
    """Return (images of the file, or the public ones of the adversary, in the model's input space; their origin).
    in_pixels: whether the file has pixels in [0, 1]."""
    if file is not None:
        images = read_truth(file, observation.input_shape, "images", in_pixels).images
        return to_input_space(images, observation, knowledge) if in_pixels else images, str(file)
    if knowledge.public_images is None:
        evaluator = ", or --evaluator to measure on the private ones" if in_pixels else ""
        raise InputError(f"diagnose needs images to measure on: --images PATH (public or reconstructed){evaluator}")
    return knowledge.public_images, "public images"


def own_images(observation: Observation, inputs: Tensor) -> int | None:
    """Return how many of the images (N, C, H, W), in the model's input space, the update was computed on, by the row
    space of its layers; None if it does not span them, or its first layer sees patches of more than one image."""
    read = read_patches(observation)
    known = Knowledge(num_private=1) if read is not None and len(read.images) else Knowledge()
    if known.num_private is None and not spans_images(observation):
        return None
    try:
        residual = MembershipTest.of(observation, known).residual(inputs)
    except InputError:
        return None
    return spanned(residual)


def whose_images(own: int | None, number: int, found: Linearity) -> str:
    """Say whether the images of a measurement are those of the update."""
    if own is None and found.update.images_layer is None:
        return (
            "It is unknown whether these images were trained on: no linear layer sees whole images, so the ranks above "
            "do not tell; `fedspill member` may."
        )
    if own is None:
        return (
            "It is unknown whether these images were trained on: the first layer's update has no clear rank, or spans "
            "differences of images alone, as ahead of BatchNorm; `fedspill member` may tell."
        )
    if own == number:
        which = "The image is" if number == 1 else f"All {number} images are"
        return f"{which} among those that the update was computed on, by what it spans."
    which = f"{own} of the {number} images are" if own else f"None of the {number} images is"
    return (
        f"{'The image is not' if number == 1 else which} among those that the update was computed on, by what it "
        "spans: what is measured on foreign images is an estimate for images like them, and not what the private ones "
        "would give."
    )


def write_diagnosis(out: Path, found: Linearity, view: str, source: str, own: int | None) -> None:
    """Write diagnose.json, with every number, `view` (adversary or evaluator), the `source` of the images and how many
    of them are the update's own; and layers.csv, with one row per layer."""
    make_out(out)
    facts = {"view": view, "source": source, "own_images": own, **found.facts()}
    write_atomically(out / "diagnose.json", json_text(facts))
    layers = [asdict(layer) for layer in found.update.layers]
    frame = LAYERS.frame([{"clear": layer.pop("has_spectral_gap"), **layer} for layer in layers])
    write_atomically(out / "layers.csv", frame.to_csv(index=False))


def diagnosis_tables(found: Linearity) -> list[Table]:
    """Make tables of the numbers and the layers, for a terminal of 80 columns."""
    numbers = Table(box=box.SIMPLE, show_edge=False, show_header=False)
    numbers.add_column(overflow="fold")
    numbers.add_column(justify="right", overflow="fold")
    facts = found.facts()
    for name, label in ROWS.items():
        numbers.add_row(label, _text(facts[name]))
    layers = Table(box=box.SIMPLE, show_edge=False)
    for name in ("layer", "shape", "‖Δ‖₂", "‖Δ‖∞", "rank", "gap"):
        layers.add_column(name, justify="left" if name == "layer" else "right", overflow="fold")
    for layer in found.update.layers:
        rank = f"{layer.rank}" if layer.has_spectral_gap else f"{layer.rank}, not clear"
        shape = f"{layer.rows} × {layer.columns}"
        layers.add_row(layer.name, shape, _text(layer.l2), _text(layer.linf), rank, _text(layer.gap))
    return [numbers, layers]


def _text(value: float | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if math.isnan(value) else f"{value:.3g}"
