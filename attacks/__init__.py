"""Reconstruction attacks on pairs of checkpoints, and their scores. Needs torch, numpy, scipy and scikit-image only.

observation = Observation(model, pairs=((initial, final),), input_shape=(1, 28, 28))
found = get_attack("ntk", iterations=4000).run(observation, Knowledge(), generator)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attacks.interface.plugins import allow_code as allow_code
    from attacks.library import ATTACKS as ATTACKS
    from attacks.library import Attack as Attack
    from attacks.library import BestPublic as BestPublic
    from attacks.library import GradientMatchingAttack as GradientMatchingAttack
    from attacks.library import InputError as InputError
    from attacks.library import KKTAttack as KKTAttack
    from attacks.library import Knowledge as Knowledge
    from attacks.library import MeanImage as MeanImage
    from attacks.library import NTKAttack as NTKAttack
    from attacks.library import Observation as Observation
    from attacks.library import RandomPublic as RandomPublic
    from attacks.library import Reconstruction as Reconstruction
    from attacks.library import SpanAttack as SpanAttack
    from attacks.library import get_attack as get_attack
    from attacks.library import register as register
    from attacks.library import torch_generator as torch_generator
    from attacks.scoring.images import Pool as Pool
    from attacks.scoring.leakage import LeakageScore as LeakageScore
    from attacks.scoring.leakage import score as score

OWN_HOME = {  # of names that need no attack: asking for one of them does not import them all
    "InputError": "attacks.interface.errors",
    "Knowledge": "attacks.interface.knowledge",
    "LeakageScore": "attacks.scoring.leakage",
    "Observation": "attacks.interface.observation",
    "Pool": "attacks.scoring.images",
    "allow_code": "attacks.interface.plugins",
    "score": "attacks.scoring.leakage",
    "torch_generator": "attacks.interface.torch_tools",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: the help of the command line does not wait for torch."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name in OWN_HOME:
        return getattr(importlib.import_module(OWN_HOME[name]), name)
    library = importlib.import_module("attacks.library")
    if not hasattr(library, name):
        raise AttributeError(f"module 'attacks' has no attribute {name!r}")
    return getattr(library, name)
