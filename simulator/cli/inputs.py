"""Parse options that are typed as text: numbers, knowledge, an attack, an update."""

import math
import re
from dataclasses import replace
from typing import Any

from torch import nn

from attacks import InputError, Knowledge, Observation
from attacks.interface.errors import did_you_mean
from attacks.interface.observation import State, left_with_client, trained_names
from attacks.interface.plugins import allow_code
from clients.config import ModelConfig
from clients.models.checkpoint import read_checkpoint
from clients.models.factory import check_left_out, construct, count_scores
from simulator.audit.plan import attack_of, check_mean, check_order, looks_swapped, per_channel
from simulator.cli.commands import UpdateCommand
from simulator.evaluation.image_files import Shape
from simulator.results.keys import ALL
from simulator.results.storage import make_knowledge
from simulator.rundir.run import Run
from simulator.scenario.sections import AttackConfig
from simulator.scenario.yaml_source import parse_value


def observe(typed: UpdateCommand) -> tuple[Observation, Knowledge, Run | None]:
    """Return (the observation, the knowledge of its adversary, the run that it is of; None for two checkpoints).

    --know replaces what the adversary of a run was told.
    """
    knowledge = make_knowledge(parse_fields(typed.know))
    if typed.run is None:
        observation = _observe_pair(typed)
        return observation, _normalized(knowledge, typed, observation.input_shape), None
    names = ("model", "initial", "final", "shape", "mean", "std")
    if given := ", ".join(f"--{name}" for name in names if getattr(typed, name) is not None):
        raise InputError(f"--run {str(typed.run)!r} brings its model and checkpoints: leave out {given}, or --run")
    record = Run(typed.run)
    threat_model = typed.threat_model or ("observer" if typed.client == ALL else "server")
    observation, granted = record.observation(typed.round, typed.client, threat_model, typed.cell)
    return observation, knowledge if typed.know else granted, record


def _observe_pair(typed: UpdateCommand) -> Observation:
    """Return the observation of two checkpoints, of any format that `read_checkpoint` knows."""
    model, initial, final, shape = typed.model, typed.initial, typed.final, typed.shape
    if model is None or initial is None or final is None or shape is None:
        flags = {"--model": model, "--initial": initial, "--final": final, "--shape": shape}
        missing = ", ".join(flag for flag, value in flags.items() if value is None)
        raise InputError(f"which update? Give --run RUN, or {missing} beside what was given")
    size = parse_shape(shape)
    allow_code(model)  # it was typed
    module = construct(ModelConfig(name=model), size, outputs=0)
    count_scores(module, model, size)
    like = module.state_dict()
    pair = read_checkpoint(initial, like), read_checkpoint(final, like)
    check_model(model, module, {f"--initial {str(initial)!r}": pair[0], f"--final {str(final)!r}": pair[1]})
    check_left_out(module, model, size, pair[0])
    observation = Observation(module, (pair,), size, round=1, client=0)
    if looks_swapped(module, *pair):
        raise InputError(f"--final {str(final)!r} looks less trained than --initial {str(initial)!r}: swap the two")
    return observation


def check_model(name: str, model: nn.Module, states: dict[str, State]) -> None:
    """Raise InputError, naming the files, where checkpoints lack parameters of the model. states: by option."""
    names = [name for name in trained_names(model) if name not in left_with_client(model, list(states.values()))]
    lacking = {typed: [key for key in names if key not in state] for typed, state in states.items()}
    files = [typed for typed, missing in lacking.items() if missing]
    if not files:
        return
    missing, there = lacking[files[0]], list(states[files[0]])
    what = f"{' and '.join(files)} {'have' if len(files) > 1 else 'has'} no tensor {missing[0]!r}"
    others = [key for key in there if key not in names]
    meant = did_you_mean(missing[0], others) if 2 * len(missing) < len(names) else ""  # else no name is meant
    some = meant if "did you mean" in meant else f", but {', '.join(map(repr, there[:3]))}{', …' * (len(there) > 3)}"
    kept = "" if not meant or meant in some else "; where clients keep layers, name a model of the others"
    raise InputError(f"{what}{some}: --model {name!r} is another model than the one that was saved{kept}")


def _normalized(knowledge: Knowledge, typed: UpdateCommand, shape: Shape) -> Knowledge:
    """Return the knowledge with what --mean and --std say; --know has precedence."""
    means, stds = parse_numbers("--mean", typed.mean), parse_numbers("--std", typed.std)
    if not means and not stds:
        return knowledge
    return replace(
        knowledge,
        pixel_mean=knowledge.pixel_mean or per_channel(means or (0.0,), shape),
        pixel_std=knowledge.pixel_std or per_channel(stds, shape) or None,
        pixel_range=knowledge.pixel_range or (0.0, 1.0),
    )


def parse_numbers(option: str, text: str | None) -> tuple[float, ...]:
    """Return the numbers of `0.5` or `0.4914,0.4822,0.4465`; none where the option is not given."""
    try:
        numbers = tuple(float(part) for part in text.split(",")) if text is not None else ()
    except ValueError:
        raise InputError(f"{option} {text!r}: write one number, or one for each channel, e.g. 0.49,0.48,0.45") from None
    if not all(math.isfinite(number) and (number > 0 or option != "--std") for number in numbers):
        raise InputError(f"{option} {text}: {'divide by numbers above 0' if option == '--std' else 'subtract numbers'}")
    if option == "--mean":
        check_mean(numbers, f"{option} {text}")
    return numbers


def parse_shape(text: str) -> Shape:
    """Return (1, 28, 28) for the text 1,28,28."""
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        rows = f"; for rows of a table 1,1,{text.strip()}" if text.strip().isdigit() else ""
        raise InputError(f"--shape {text!r}: write channels,height,width, e.g. 1,28,28{rows}")
    return check_order((int(parts[0]), int(parts[1]), int(parts[2])))


def parse_fields(items: list[str]) -> dict[str, Any]:
    """Return the items FIELD=VALUE of --know by field. Values are YAML; "0.4,0.5" is a list as "[0.4, 0.5]" is."""
    for item in items:
        key, equals, _ = item.partition("=")
        if not equals:
            raise InputError(f"--know {item!r}: write FIELD=VALUE, e.g. num_private=16")
        if key not in (known := Knowledge.names()):
            meant = did_you_mean(key, known).removesuffix(f" (known: {', '.join(known)})")
            raise InputError(f"--know {item!r}: no field {key!r}{meant} (known: {', '.join(known)})")
    listed = re.compile(r"([^=]+)=(-?[\d.][^\[\],]*(?:,[^\[\],]+)+)")
    return _parse([listed.sub(r"\1=[\2]", item) for item in items])


def parse_options(name: str, items: list[str]) -> AttackConfig:
    """Return the attack with the items NAME=VALUE of --option."""
    for item in items:
        if "=" not in item:
            raise InputError(f"--option {item!r}: write NAME=VALUE")
    return attack_of({"name": name, "options": _parse(items)})


def _parse(items: list[str]) -> dict[str, Any]:
    return {key: parse_value(text) for key, _, text in (item.partition("=") for item in items)}


def parse_owners(items: list[str]) -> dict[str, str]:
    """Return the items NODE=FOLDER of --owner by node."""
    for item in items:
        if not all(item.partition("=")):
            raise InputError(f"--owner {item!r}: write NODE=FOLDER, e.g. 0=client_00")
    return {node: folder for node, _, folder in (item.partition("=") for item in items)}
