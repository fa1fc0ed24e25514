"""Dataset distillation: a few synthetic images that train in place of a data set (Loo et al. 2024, section 7)."""

from clients.distillation.methods import METHODS, Distilled, DistillOptions, distill

__all__ = ["METHODS", "DistillOptions", "Distilled", "distill"]
