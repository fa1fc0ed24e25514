"""Small clients that train on a card, and what they return."""

from clients.config import ModelConfig
from clients.local_update import load_data, local_update, make_model
from tests.clients.defenses.parts import config

TRAINING = {
    "minibatches": {},
    "Adam": {"optimizer": "adam", "learning_rate": 0.001},
    "momentum and decay": {"momentum": 0.9, "weight_decay": 0.01},
    "linearized": {"dynamics": "linearized"},
    "squared loss": {"loss": "mse", "batch_size": None},
}
OPTIONS = {
    **{name: {"iterations": 3} for name in ("kip", "rkip", "rkip_finite")},
    "dp_sgd": {"noise_multiplier": 1.0},
    "augmentation": {"flip": True, "noise": 0.1},
}


def settings(*defenses, model=None, **training):
    made = config(*defenses, **training)
    return made.model_copy(update={"use_gpu": True, "model": model or ModelConfig(width=16)})


def client(made, **given):
    """What the client returns, and the device that it says it used."""
    received = make_model(made, load_data(made)).state_dict()
    found = local_update(made, received, 1, 0, run_mod=lambda mod, name, state: state, **given)
    return found.state, found.device
