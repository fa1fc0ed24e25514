"""Experiments of Loo et al. (ICLR 2024) and on the constancy of the kernel, each called after its figure."""

from simulator.paper import curves, finetuning, kernel_choice, kernel_regime, networks, training
from simulator.paper.base import EXPERIMENTS, Claim, Experiment, Job, Result, Strip, experiment, get_experiment

__all__ = [
    "EXPERIMENTS",
    "Claim",
    "Experiment",
    "Job",
    "Result",
    "Strip",
    "curves",
    "experiment",
    "finetuning",
    "get_experiment",
    "kernel_choice",
    "kernel_regime",
    "networks",
    "training",
]
