"""An attack outside a run, on any two checkpoints; it needs no private image."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attacks import InputError, Knowledge, Observation, Reconstruction
from attacks.interface.errors import nearest
from attacks.interface.own_code import allow_code
from clients.config import ModelConfig
from clients.models.checkpoint_file import read_checkpoint
from clients.models.factory import construct, outputs_of
from simulator.audit.images import Shape
from simulator.audit.plan import per_channel
from simulator.results.disk import make_out
from simulator.results.formats import write_json
from simulator.scenario.knowledge_values import make_knowledge
from simulator.scenario.sections import AttackConfig
from simulator.scenario.yaml_source import parse_value


def observe_pair(model: str | None, initial: Path | None, final: Path | None, shape: str | None) -> Observation:
    """An observation of two checkpoints, of any format that `read_checkpoint` knows.

    model: package.module:factory or FILE.py:factory. shape: "1,28,28", of an input image.
    """
    if model is None or initial is None or final is None or shape is None:
        flags = {"--model": model, "--initial": initial, "--final": final, "--shape": shape}
        missing = ", ".join(flag for flag, value in flags.items() if value is None)
        raise InputError(f"which update? Give --run RUN, or {missing} beside what was given")
    size = parse_shape(shape)
    allow_code(model)  # it was typed
    module = construct(ModelConfig(name=model), size, outputs=0)
    outputs_of(module, model, size)
    like = module.state_dict()
    pair = read_checkpoint(initial, like), read_checkpoint(final, like)
    return Observation(module, (pair,), size, round=1, client=0)


def normalized(knowledge: Knowledge, mean: str | None, std: str | None, shape: Shape) -> Knowledge:
    """The knowledge with what --mean and --std say; what --know says of the same comes first."""
    means, stds = parse_numbers("--mean", mean), parse_numbers("--std", std)
    if not means and not stds:
        return knowledge
    return replace(
        knowledge,
        pixel_mean=knowledge.pixel_mean or per_channel(means or (0.0,), shape),
        pixel_std=knowledge.pixel_std or per_channel(stds, shape) or None,
        pixel_range=knowledge.pixel_range or (0.0, 1.0),
    )


def parse_numbers(option: str, text: str | None) -> tuple[float, ...]:
    """`0.5` or `0.4914,0.4822,0.4465`; nothing where the option is not given."""
    try:
        return tuple(float(part) for part in text.split(",")) if text is not None else ()
    except ValueError:
        raise InputError(f"{option} {text!r}: write one number, or one for each channel, e.g. 0.49,0.48,0.45") from None


def parse_shape(text: str) -> tuple[int, int, int]:
    """(1, 28, 28) of the text 1,28,28."""
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--shape {text!r}: write channels,height,width, e.g. 1,28,28")
    return int(parts[0]), int(parts[1]), int(parts[2])


def parse_knowledge(items: list[str]) -> Knowledge:
    """Knowledge from --know key=value items."""
    return make_knowledge(parse_fields(items))


def parse_fields(items: list[str]) -> dict[str, Any]:
    """Fields of knowledge from --know key=value items. Values are YAML; "0.4,0.5" is a list as "[0.4, 0.5]" is."""
    for item in items:
        key, equals, _ = item.partition("=")
        if not equals or key not in Knowledge.names():
            raise InputError(f"--know {item!r}: write FIELD=VALUE{nearest(key, Knowledge.names())}")
    listed = re.compile(r"([^=]+)=(-?[\d.][^\[\],]*(?:,[^\[\],]+)+)")
    return _parse([listed.sub(r"\1=[\2]", item) for item in items])


def parse_options(name: str, items: list[str]) -> AttackConfig:
    """The attack with its --option key=value items."""
    for item in items:
        if "=" not in item:
            raise InputError(f"--option {item!r}: write NAME=VALUE")
    config = AttackConfig.model_construct(name=name, label=name, options=_parse(items))
    config.make()
    return config


def _parse(items: list[str]) -> dict[str, Any]:
    """key=value items, whose values are YAML."""
    return {key: parse_value(text) for key, _, text in (item.partition("=") for item in items)}


def write_result(out: Path, attack: str, found: Reconstruction, knowledge: Knowledge, pixels: bool) -> None:
    """reconstructions.npz and facts.json.

    pixels: images in [0, 1], as a run stores them; otherwise in the model's own input space, since two checkpoints
    alone do not tell what was subtracted before training.
    """
    make_out(out)
    images, held = found.images, found.images[:0] if found.held is None else found.held
    if pixels:
        images, held = found.pixels(), found.held_pixels()
    arrays = {"images": images, "residual": found.residual, "held": held}
    if found.features is not None:
        arrays["features"] = found.features
    np.savez_compressed(
        out / "reconstructions.npz", allow_pickle=False, **{name: array.numpy() for name, array in arrays.items()}
    )
    facts = {
        "attack": attack,
        "num_inferred": found.num_inferred,
        "num_reconstructed": len(found.images),
        "num_held": len(held),
        "relative_residual": found.relative_residual,
        "pixel_mean": found.pixel_mean,
        "knowledge": knowledge.given(),
        "seconds": round(found.seconds, 3),
        "warnings": found.warnings,
        **found.facts,
    }
    write_json(out / "facts.json", facts)
