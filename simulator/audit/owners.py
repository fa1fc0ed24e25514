"""Which of the files of a truth is which recorded client's: by name, or else by what the updates themselves tell."""

import re
from collections.abc import Mapping

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from attacks import InputError, Knowledge, Observation
from attacks.interface.normalization import Normalization
from attacks.membership import MembershipScore, MembershipTest
from attacks.update.pixel_mean import infer_pixel_mean
from simulator.audit.images import ImageFiles
from simulator.audit.recording import SeenClient

SURE = 0.75  # AUC of a file's images against those of all others, from which the update tells whose they are


def owners_by_name(files: ImageFiles, clients: Mapping[int, SeenClient]) -> dict[int, int] | None:
    """Client -> number of its file, by what the clients called themselves; None where a client has no name, or no file
    has it. `client_03`, `3` and `03` are the file of client 3."""
    numbered = {_name(file): number for number, file in enumerate(files.names)}
    named = {client: str(seen.name) for client, seen in clients.items() if seen.name is not None}
    found = {client: numbered[name] for client, name in named.items() if name in numbered}
    return found if found and len(found) == len(clients) else None


def _name(file: str) -> str:
    """What a client is called whose file it is: the number at its end without zeros before it, else all of it."""
    number = re.search(r"(\d+)$", file)
    return str(int(number.group(1))) if number else file


def owners_by_update(
    files: ImageFiles,
    seen: Mapping[int, tuple[Observation, Knowledge]],
    normalization: Normalization | None,
) -> dict[int, int] | None:
    """Client -> number of the file whose images its update was rather trained on than on those of other files, one to
    one. seen: an observation of each client, and what is known of it. None where some update does not tell."""
    clients = list(seen)
    costs = np.zeros((len(clients), len(files.names)))
    told = np.zeros_like(costs)
    for row, client in enumerate(clients):
        try:
            residual = _strangeness(files, *seen[client], normalization)
        except InputError:
            return None
        for file in range(len(files.names)):
            own = torch.zeros(len(residual), dtype=torch.bool)
            own[list(files.numbers(file))] = True
            costs[row, file] = float(residual[own].mean())
            told[row, file] = MembershipScore.of(residual[own], residual[~own]).auc
    rows, columns = linear_sum_assignment(costs)
    if len(rows) < len(clients) or (len(files.names) > 1 and not (told[rows, columns] >= SURE).all()):
        return None
    return {clients[row]: int(column) for row, column in zip(rows, columns, strict=True)}


def _strangeness(
    files: ImageFiles, observation: Observation, knowledge: Knowledge, normalization: Normalization | None
) -> torch.Tensor:
    """log ρ of every image, lower for members. InputError where the update tells nothing of the kind."""
    if normalization is None:
        mean = infer_pixel_mean(observation)
        if mean is None:
            raise InputError("the mean of the inputs is not known")
        normalization = Normalization(mean)
    inputs = normalization.inputs(files.images)
    return MembershipTest.of(observation, knowledge, inputs).residual(inputs).log()
