"""Reconstruction attacks on pairs of checkpoints, and their scores. Needs torch, numpy, scipy and scikit-image only.

observation = Observation(model, pairs=((initial, final),), input_shape=(1, 28, 28))
found = get_attack("ntk", iterations=4000).run(observation, Knowledge(), generator)
"""

from attacks.baselines import BestPublic, MeanImage, RandomPublic
from attacks.gradient_matching.attack import GradientMatchingAttack
from attacks.interface.attack import ATTACKS, Attack, Reconstruction, get_attack, register
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.interface.seeding import torch_generator
from attacks.kkt.attack import KKTAttack
from attacks.ntk.attack import NTKAttack
from attacks.scoring.images import Pool
from attacks.scoring.leakage import LeakageScore, score
from attacks.span.attack import SpanAttack

__all__ = [
    "ATTACKS",
    "Attack",
    "BestPublic",
    "GradientMatchingAttack",
    "InputError",
    "KKTAttack",
    "Knowledge",
    "LeakageScore",
    "MeanImage",
    "NTKAttack",
    "Observation",
    "Pool",
    "RandomPublic",
    "Reconstruction",
    "SpanAttack",
    "get_attack",
    "register",
    "score",
    "torch_generator",
]
