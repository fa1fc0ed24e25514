"""Reconstruction attacks on pairs of checkpoints, and their scores. Needs torch, numpy, scipy and scikit-image only.

observation = Observation(model, pairs=((initial, final),), input_shape=(1, 28, 28))
found = get_attack("ntk", iterations=4000).reconstruct(observation, Knowledge(), generator)
"""

from attacks import gradient_matching as gradient_matching  # each attack registers itself when imported
from attacks import guesses as guesses
from attacks import kkt as kkt
from attacks import ntk as ntk
from attacks import span as span
from attacks.base import ATTACKS, Attack, Reconstruction, get_attack, register
from attacks.errors import InputError
from attacks.observation import Knowledge, Observation
from attacks.scoring import LeakageScore, Pool, score
from attacks.seeding import torch_generator

__all__ = [
    "ATTACKS",
    "Attack",
    "InputError",
    "Knowledge",
    "LeakageScore",
    "Observation",
    "Pool",
    "Reconstruction",
    "get_attack",
    "register",
    "score",
    "torch_generator",
]
