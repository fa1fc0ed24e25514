"""Tensors in what a client remembers between rounds, which holds plain values only and travels as JSON."""

import base64

from safetensors.torch import load, save

from attacks.interface.observation import State


def as_text(state: State) -> str:
    """Tensors of any shape and type as base64 text of a safetensors file: 5.4 characters for a float32."""
    return base64.b64encode(save({name: value.detach().cpu().contiguous() for name, value in state.items()})).decode()


def from_text(text: str) -> State:
    """The inverse of `as_text`, bit by bit."""
    return load(base64.b64decode(text))
