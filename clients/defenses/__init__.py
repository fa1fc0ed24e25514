"""What clients do to leak less. A defense is one small file here; a scenario lists its name.

Adding one: a frozen dataclass that inherits `Defense`, with a `name`, options as fields and the hooks it needs, its
server half among them, decorated with `register` and imported below.
"""

from clients.defenses import augmentation as augmentation  # each defense registers itself when imported
from clients.defenses import clipping as clipping
from clients.defenses import distilled as distilled
from clients.defenses import mixup as mixup
from clients.defenses import noise as noise
from clients.defenses import personal_layers as personal_layers
from clients.defenses import prune_easiest as prune_easiest
from clients.defenses import secure_aggregation as secure_aggregation
from clients.defenses import soteria as soteria
from clients.defenses.base import DEFENSES, Defense, DefenseContext, Encoding, FlowerMod, ServerHalf, TrainingSet
from clients.defenses.compression import half_precision as half_precision
from clients.defenses.compression import power_sgd as power_sgd
from clients.defenses.compression import quantization as quantization
from clients.defenses.compression import sign_sgd as sign_sgd
from clients.defenses.compression import sparsification as sparsification
from clients.defenses.differential_privacy import central_dp as central_dp
from clients.defenses.differential_privacy import dp_sgd as dp_sgd
from clients.defenses.differential_privacy import local_dp as local_dp
from clients.defenses.filters import percentile as percentile
from clients.defenses.filters import svt as svt

__all__ = ["DEFENSES", "Defense", "DefenseContext", "Encoding", "FlowerMod", "ServerHalf", "TrainingSet"]
