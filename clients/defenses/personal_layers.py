"""Layers that stay with the client: a personal head (FedPer, Arivazhagan et al. 2019) or body (LG-FedAvg, Liang et al.
2020), or local normalization (FedBN, Li et al. 2021).

The client trains the whole network and sends the rest of it; what it keeps goes on from round to round. The global
checkpoint has these layers as the federation started with them, so `test_accuracy`, which is of that checkpoint, is not
what a client gets from its own network.
"""

import fnmatch
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from attacks.interface.errors import InputError, nearest
from attacks.interface.observation import State
from clients.defenses.base import Defense, DefenseContext, Encoding, Metrics, TrainingSet, register
from clients.defenses.memory import as_text, from_text

OWN = "own"  # the client's values of its layers, in the defense's memory


@register
@dataclass(frozen=True)
class PersonalLayers(Defense):
    """patterns: names of the parameters that are kept, with * and ?; default: those of the last layer, as FedPer."""

    name: ClassVar[str] = "personal_layers"

    patterns: list[str] | None = None

    def check(self, context: DefenseContext) -> None:
        names = trained(context.model)
        for pattern in self.patterns or []:
            if not fnmatch.filter(names, pattern):
                near = nearest(pattern, names)
                raise InputError(f"defense 'personal_layers': {pattern!r} matches no trained parameter{near}")
        if len(self.own(context.model)) == len(names):
            raise InputError("defense 'personal_layers' keeps every parameter: name fewer of them in patterns")

    def own(self, model: nn.Module) -> list[str]:
        """Names of the parameters that the client keeps."""
        names = trained(model)
        patterns = self.patterns if self.patterns is not None else [f"{names[-1].rpartition('.')[0]}.*"]
        return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]

    def prepare_data(self, data: TrainingSet, context: DefenseContext) -> tuple[TrainingSet, Metrics]:
        with torch.no_grad():  # before anything, a linearization too, starts from the network
            for name, value in from_text(context.memory[OWN]).items() if OWN in context.memory else ():
                context.model.get_parameter(name).copy_(value)
        return data, {}

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        own = [name for name in self.own(context.model) if name in delta]
        values = {name: context.model.get_parameter(name).detach() for name in own}
        if values and all(bool(value.isfinite().all()) for value in values.values()):
            context.memory[OWN] = as_text(values)
        return {name: torch.zeros_like(value) if name in own else value for name, value in delta.items()}, {}

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        sizes = {name: value.numel() for name, value in context.model.state_dict().items() if value.is_floating_point()}
        share = sum(sizes[name] for name in self.own(context.model)) / sum(sizes.values())
        return Encoding(encoding.fraction * (1 - share), encoding.bits, encoding.indexed)


def trained(model: nn.Module) -> list[str]:
    """Names of the parameters that clients train."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]
