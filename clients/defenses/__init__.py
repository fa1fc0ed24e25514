"""Defenses: measures of clients to leak less. A scenario lists their names.

A new defense is a frozen dataclass that inherits `Defense`, with a `name`, options as fields and its hooks, decorated
with `register` and imported below.
"""

from clients.defenses import compression as compression  # each defense registers itself when imported
from clients.defenses import filters as filters
from clients.defenses import personal_layers as personal_layers
from clients.defenses import secure_aggregation as secure_aggregation
from clients.defenses import soteria as soteria
from clients.defenses import training_data as training_data
from clients.defenses.base import DEFENSES, Defense, DefenseContext, Encoding, FlowerMod, ServerHalf, TrainingSet
from clients.defenses.differential_privacy import dp_sgd as dp_sgd
from clients.defenses.differential_privacy import whole_update as whole_update

__all__ = ["DEFENSES", "Defense", "DefenseContext", "Encoding", "FlowerMod", "ServerHalf", "TrainingSet"]
