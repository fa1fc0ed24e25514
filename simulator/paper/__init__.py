"""Experiments of Loo et al. (ICLR 2024) and on the constancy of the kernel, each called after its figure."""

import importlib
import pkgutil

from simulator.paper.base import EXPERIMENTS, Claim, Experiment, Job, Result, Strip, experiment, get_experiment

for module in pkgutil.iter_modules(__path__):  # each registers its experiments: a new one is a new file
    importlib.import_module(f"{__name__}.{module.name}")

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "Job", "Result", "Strip", "experiment", "get_experiment"]
