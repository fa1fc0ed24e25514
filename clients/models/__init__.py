"""The networks a federation can train."""

from clients.models.checkpoint import load_checkpoint, load_weights
from clients.models.factory import MODELS, build_model, load_factory

__all__ = ["MODELS", "build_model", "load_checkpoint", "load_factory", "load_weights"]
