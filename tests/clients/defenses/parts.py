"""What the tests of the defenses share."""

import torch
from torch import nn

from clients.chain import build_defense
from clients.config import ClientConfig, DataConfig, DefenseConfig, ModelConfig, PartitionConfig, TrainingConfig
from clients.defenses import DefenseContext


def make(name, **options):
    return build_defense(DefenseConfig.model_validate({"name": name, **options}))


def config(*defenses, rounds=1, images=8, **training):
    return ClientConfig(
        seed=0,
        clients=2,
        data=DataConfig(),
        partition=PartitionConfig(images=images),
        model=ModelConfig(width=32),
        training=TrainingConfig(**({"epochs": 2, "batch_size": 4} | training)),
        defenses=[DefenseConfig.model_validate(defense) for defense in defenses],
        rounds=rounds,
    )


def context(*defenses, model=None, memory=None, round=1, **training):
    return DefenseContext(
        config(*defenses, **training), round, 0, model or nn.Linear(4, 2), {} if memory is None else memory
    )


def update(seed=0, **shapes):
    generator = torch.Generator().manual_seed(seed)
    shapes = shapes or {"w": (200, 100), "b": (200,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def flat(delta):
    return torch.cat([value.flatten() for value in delta.values()]).double()
