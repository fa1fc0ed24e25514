"""The networks a federation can train."""

from clients.models.checkpoint import load_checkpoint, load_weights
from clients.models.factory import MODELS, build_model, option_values, with_known_options

__all__ = ["MODELS", "build_model", "load_checkpoint", "load_weights", "option_values", "with_known_options"]
