"""Every attack, registered because it is imported here, and what `attacks` offers to those who run attacks."""

from attacks.base import ATTACKS as ATTACKS
from attacks.base import Attack as Attack
from attacks.base import Reconstruction as Reconstruction
from attacks.base import get_attack as get_attack
from attacks.base import register as register
from attacks.baselines import BestPublic as BestPublic
from attacks.baselines import MeanImage as MeanImage
from attacks.baselines import RandomPublic as RandomPublic
from attacks.gradient_matching.attack import GradientMatchingAttack as GradientMatchingAttack
from attacks.interface.errors import InputError as InputError
from attacks.interface.knowledge import Knowledge as Knowledge
from attacks.interface.observation import Observation as Observation
from attacks.interface.torch_tools import torch_generator as torch_generator
from attacks.kkt import KKTAttack as KKTAttack
from attacks.ntk.attack import NTKAttack as NTKAttack
from attacks.span.attack import SpanAttack as SpanAttack
