"""The networks a federation can train."""

from clients.models.factory import MODELS, build_model, load_checkpoint, load_factory

__all__ = ["MODELS", "build_model", "load_checkpoint", "load_factory"]
