"""Every attack, registered because it is imported here, and what `attacks` offers to those who run attacks."""

from attacks.base import ATTACKS, Attack, Reconstruction, get_attack, register
from attacks.baselines import BestPublic, MeanImage, RandomPublic
from attacks.gradient_matching.attack import GradientMatchingAttack
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.interface.torch_tools import torch_generator
from attacks.kkt import KKTAttack
from attacks.ntk.attack import NTKAttack
from attacks.span.attack import SpanAttack

__all__ = [
    "ATTACKS",
    "Attack",
    "BestPublic",
    "GradientMatchingAttack",
    "InputError",
    "KKTAttack",
    "Knowledge",
    "MeanImage",
    "NTKAttack",
    "Observation",
    "RandomPublic",
    "Reconstruction",
    "SpanAttack",
    "get_attack",
    "register",
    "torch_generator",
]
