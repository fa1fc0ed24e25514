"""Every random stream of fedspill is a generator seeded from what it is for, never a global one."""

import hashlib

import numpy as np
import torch


def derive_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A 63-bit seed from (seed, purpose, round, client); distinct inputs give unrelated streams."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{round}/{client}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def torch_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> torch.Generator:
    """A CPU generator: random numbers are drawn there and moved, so that a GPU run draws the same ones."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, round, client))


def numpy_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    return np.random.default_rng(derive_seed(seed, purpose, round, client))
