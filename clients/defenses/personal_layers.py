"""Keep layers with the client.

The client trains the whole network and sends the rest of it. The global checkpoint has these layers as the federation
started with them: `test_accuracy` is not that of a client's own network.
"""

import fnmatch
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from attacks.interface.errors import InputError, did_you_mean
from attacks.interface.observation import State, trained_names
from clients.defenses.base import Defense, DefenseContext, Encoding, Metrics, TrainingSet, as_text, from_text, register

OWN = "own"  # the client's values of its layers, in the defense's memory


@register
@dataclass(frozen=True)
class PersonalLayers(Defense):
    """Keep some layers at the client, which never sends them: by default the last one.

    A personal head (FedPer, Arivazhagan et al. 2019) or body (LG-FedAvg, Liang et al. 2020), or local normalization
    (FedBN, Li et al. 2021; its statistics alone: SiloBN, Andreux et al. 2020).

    patterns: names of what is kept, with * and ?, parameters and statistics of BatchNorm; default: the last layer,
        as FedPer.
    """

    name: ClassVar[str] = "personal_layers"

    patterns: list[str] | None = None

    def check(self, context: DefenseContext) -> None:
        parameters = trained_names(context.model)
        names = [*parameters, *context.statistics]
        for pattern in self.patterns or []:
            if not fnmatch.filter(names, pattern):
                near = did_you_mean(pattern, names)
                raise InputError(f"defense 'personal_layers': {pattern!r} matches nothing that is trained{near}")
        if set(parameters) <= set(self.own(context)):
            raise InputError("defense 'personal_layers' keeps every parameter: name fewer of them in patterns")

    def own(self, context: DefenseContext) -> list[str]:
        """Return the names of the parameters and statistics that the client keeps."""
        names = trained_names(context.model)
        patterns = self.patterns if self.patterns is not None else [f"{names[-1].rpartition('.')[0]}.*"]
        moving = [*names, *context.statistics]
        return [name for name in moving if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]

    def prepare_data(self, data: TrainingSet, context: DefenseContext) -> tuple[TrainingSet, Metrics]:
        network = context.model.state_dict()  # the network's own tensors
        with torch.no_grad():  # before anything, a linearization too, starts from the network
            for name, value in from_text(context.memory[OWN]).items() if OWN in context.memory else ():
                network[name].copy_(value)
        return data, {}

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        own, network = self.own(context), context.model.state_dict()
        values = {name: network[name] for name in own}
        if values and all(bool(value.isfinite().all()) for value in values.values()):
            context.memory[OWN] = as_text(values)
        return {name: torch.zeros_like(value) if name in own else value for name, value in delta.items()}, {}

    def withheld_statistics(self, context: DefenseContext) -> list[str]:
        return [name for name in self.own(context) if name in context.statistics]

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        sizes = {name: value.numel() for name, value in context.model.state_dict().items() if value.is_floating_point()}
        share = sum(sizes.get(name, 0) for name in self.own(context)) / sum(sizes.values())
        return replace(encoding, fraction=encoding.fraction * (1 - share))


def check_no_statistics_sent(defense: Defense, context: DefenseContext) -> None:
    """Raise InputError if statistics of BatchNorm are sent beside an update with a guarantee."""
    config = context.config
    chain = [PersonalLayers(**entry.options) for entry in config.defenses if entry.name == PersonalLayers.name]
    withheld = {name for layers in chain for name in layers.withheld_statistics(context)}
    if sent := [name for name in context.statistics if name not in withheld]:
        raise InputError(
            f"defense {defense.name!r} protects parameters, and statistics of BatchNorm ({sent[0]!r}) would go with "
            "them as they are: set training.batch_norm to eval, or keep them by personal_layers, patterns "
            "['*running_*', '*_tracked']"
        )
