"""Dataset distillation: a few synthetic images that train in place of a data set (Loo et al. 2024, section 7)."""

from clients.distillation.base import METHODS, Distilled, DistillOptions
from clients.distillation.distill import distill

__all__ = ["METHODS", "DistillOptions", "Distilled", "distill"]
