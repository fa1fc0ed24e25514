"""One attack outside a run, on any two checkpoints, or once more on a recorded observation; needs no private image."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks import InputError, Knowledge, Observation, Reconstruction
from attacks.interface.errors import nearest
from attacks.update.pixel_mean import infer_pixel_mean
from clients.config import ModelConfig
from clients.models.factory import construct, outputs_of
from simulator.results.schema import CANDIDATES
from simulator.results.storage import load_state, make_knowledge, make_out, write_atomically, write_json
from simulator.scenario.sections import AttackConfig
from simulator.scenario.yaml_source import parse_value


def observe_pair(model: str | None, initial: Path | None, final: Path | None, shape: str | None) -> Observation:
    """An observation of two safetensors state dicts.

    model: package.module:factory or FILE.py:factory. shape: "1,28,28", of an input image.
    """
    if model is None or initial is None or final is None or shape is None:
        flags = {"--model": model, "--initial": initial, "--final": final, "--shape": shape}
        missing = ", ".join(flag for flag, value in flags.items() if value is None)
        raise InputError(f"which update? Give --run RUN, or {missing} beside what was given")
    parts = shape.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--shape {shape!r}: write channels,height,width, e.g. 1,28,28")
    size = (int(parts[0]), int(parts[1]), int(parts[2]))
    module = construct(ModelConfig(name=model), size, outputs=0)
    outputs_of(module, model, size)
    return Observation(module, ((load_state(initial), load_state(final)),), size, round=1, client=0)


def parse_knowledge(items: list[str]) -> Knowledge:
    """Knowledge from --know key=value items; values are YAML."""
    given: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or key not in Knowledge.names():
            raise InputError(f"--know {item!r}: write FIELD=VALUE{nearest(key, Knowledge.names())}")
        given[key] = parse_value(text)
    return make_knowledge(given)


def parse_options(name: str, items: list[str]) -> AttackConfig:
    """The attack with its --option key=value items."""
    options: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals:
            raise InputError(f"--option {item!r}: write NAME=VALUE")
        options[key] = parse_value(text)
    config = AttackConfig.model_construct(name=name, label=name, options=options)
    config.make()
    return config


def write_result(out: Path, attack: str, found: Reconstruction, knowledge: Knowledge, pixels: bool) -> None:
    """reconstructions.npz and facts.json.

    pixels: images in [0, 1], as a run stores them; otherwise in the model's own input space, since two checkpoints
    alone do not tell what was subtracted before training.
    """
    make_out(out)
    images = found.pixels() if pixels else found.images
    np.savez_compressed(out / "reconstructions.npz", images=images.numpy(), residual=found.residual.numpy())
    facts = {
        "attack": attack,
        "num_inferred": found.num_inferred,
        "num_reconstructed": len(found.images),
        "relative_residual": found.relative_residual,
        "pixel_mean": found.pixel_mean,
        "knowledge": knowledge.given(),
        "seconds": round(found.seconds, 3),
        "warnings": found.warnings,
        **found.facts,
    }
    write_json(out / "facts.json", facts)


def load_candidates(path: Path, called: str = "candidates") -> Tensor:
    """`images` of an npz file, (Q, C, H, W) float32. called: how errors call them."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            held = list(arrays)
            images = arrays["images"] if "images" in held else None
    except FileNotFoundError:
        raise InputError(f"{called} {str(path)!r} do not exist") from None
    except (OSError, ValueError, TypeError):
        raise InputError(
            f"{called} {str(path)!r} are no npz file: write one with numpy.savez(FILE, images=…)"
        ) from None
    if images is None:
        raise InputError(f"{called} {str(path)!r} hold {', '.join(held) or 'nothing'}, no array `images`")
    if not len(images):
        raise InputError(f"{called} {str(path)!r}: `images` is empty: give at least one")
    if images.ndim != 4 or not np.issubdtype(images.dtype, np.floating):
        raise InputError(
            f"{called} {str(path)!r}: `images` is {images.dtype} {images.shape}, it has to be float "
            "(number, channels, height, width)"
        )
    if not np.isfinite(images).all():
        raise InputError(f"{called} {str(path)!r}: `images` holds values that are not finite")
    return torch.from_numpy(images.astype(np.float32))


def to_input_space(images: Tensor, observation: Observation, knowledge: Knowledge) -> Tensor:
    """Images in [0, 1] as the clients of a run saw them, by the mean that the adversary knows or infers."""
    mean = knowledge.pixel_mean or infer_pixel_mean(observation)
    if mean is None:
        raise InputError("pixel_mean is unknown and the update does not tell it: add --know pixel_mean=…")
    if len(mean) != images.shape[1]:
        raise InputError(f"images have {images.shape[1]} channels, pixel_mean has {len(mean)} values")
    return images - torch.tensor(mean).view(1, -1, 1, 1)


def write_membership(out: Path, residual: Tensor) -> None:
    """membership.csv: index, residual ρ, and the score −log ρ, higher for members."""
    make_out(out)
    scores = {"index": range(len(residual)), "residual": residual.numpy(), "score": -residual.log().numpy()}
    frame = CANDIDATES.frame(scores)
    write_atomically(out / "membership.csv", frame.to_csv(index=False))
