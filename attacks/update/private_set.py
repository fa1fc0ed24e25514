"""What an adversary works with where it was not told: inferred from the update, or assumed with a warning."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.networks.probing import find_input_layer
from attacks.update.num_private import infer_image_count
from attacks.update.pixel_mean import infer_pixel_mean


@dataclass(frozen=True)
class Belief:
    """The private set as the adversary believes it to be.

    num_private: told, else inferred. num_inferred: what the first layer's spectrum says, None where it says nothing.
    pixel_mean: per channel, told, else inferred, else 0.5.
    """

    num_private: int
    num_inferred: int | None
    pixel_mean: tuple[float, ...]
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, attack: str, observation: Observation, knowledge: Knowledge) -> "Belief":
        """Raises InputError, in the name of `attack`, where the number of images is neither told nor to be read."""
        warnings = []
        inferred = infer_image_count(observation)
        if inferred is None:
            knowledge.require(attack, "num_private", because="no trained layer sees the images")
        elif not inferred.clear and knowledge.num_private is None:
            warnings.append(
                f"the first layer's spectrum has no clear gap: {inferred.count} private images is a guess "
                "(more images than their effective rank, local Adam, weight decay or noise)"
            )
        count = knowledge.num_private or (inferred.count if inferred is not None else 0)
        mean, unsure = believed_mean(observation, knowledge)
        return cls(max(1, count), None if inferred is None else inferred.count, mean, (*warnings, *unsure))

    def bounds(self, knowledge: Knowledge, like: Tensor) -> tuple[Tensor, Tensor]:
        """(lowest, highest) value of an input, (1, C, 1, 1), of the dtype and on the device of `like`."""
        low, high = knowledge.pixel_range or (0.0, 1.0)
        mean = torch.tensor(self.pixel_mean, dtype=like.dtype, device=like.device).view(1, -1, 1, 1)
        return low - mean, high - mean


def believed_mean(observation: Observation, knowledge: Knowledge) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """(per-channel mean that was subtracted, warnings): told, else inferred, else 0.5.

    Raises InputError where what was told does not fit.
    """
    check_knowledge(observation, knowledge)
    mean = knowledge.pixel_mean or infer_pixel_mean(observation)
    if mean is not None:
        return tuple(mean), ()
    return (0.5,) * observation.input_shape[0], ("pixel_mean is unknown and no pixel tells it: 0.5 was assumed",)


def check_told(attack: str, observation: Observation, knowledge: Knowledge) -> None:
    """Raise InputError where the number of images cannot be known, or where what is told does not fit the network."""
    layer = find_input_layer(observation.model, observation.input_shape)
    if layer is None or layer.weight not in observation.trainable:
        knowledge.require(attack, "num_private", because="no trained layer sees the images")
    check_knowledge(observation, knowledge)


def check_knowledge(observation: Observation, knowledge: Knowledge) -> None:
    """Raise InputError where what the adversary was told does not fit the network under attack, whatever the attack."""
    channels = observation.input_shape[0]
    if knowledge.pixel_mean is not None and len(knowledge.pixel_mean) != channels:
        raise InputError(
            f"knowledge pixel_mean has {len(knowledge.pixel_mean)} values, the images have {channels} channels"
        )
    if knowledge.labels is not None:
        classes = max(2, _outputs(observation))  # one output tells two classes
        if max(knowledge.labels) >= classes:
            raise InputError(
                f"knowledge labels go up to {max(knowledge.labels)}, the network tells {classes} classes apart: "
                f"count them from 0 to {classes - 1}"
            )


def _outputs(observation: Observation) -> int:
    parameter = next(observation.model.parameters())
    with torch.no_grad():
        return observation.model.eval()(torch.zeros(1, *observation.input_shape).to(parameter)).numel()
