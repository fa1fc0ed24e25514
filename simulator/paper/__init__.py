"""Experiments of Loo et al. (ICLR 2024) and on the constancy of the kernel, each called after its figure."""

from simulator.paper import (
    curves,
    duals,
    kernel_choice,
    kernel_regime,
    kkt_comparison,
    minibatches,
    networks,
    one_step,
    predicted_points,
    rkip_equality,
    sphere,
    training,
)
from simulator.paper.base import EXPERIMENTS, Claim, Experiment, Job, Result, Strip, experiment, get_experiment

__all__ = [
    "EXPERIMENTS",
    "Claim",
    "Experiment",
    "Job",
    "Result",
    "Strip",
    "curves",
    "duals",
    "experiment",
    "get_experiment",
    "kernel_choice",
    "kernel_regime",
    "kkt_comparison",
    "minibatches",
    "networks",
    "one_step",
    "predicted_points",
    "rkip_equality",
    "sphere",
    "training",
]
