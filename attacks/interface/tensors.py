"""Which tensors of a checkpoint something can be computed with; a file may hold others."""

import torch
from torch import Tensor

from attacks.interface.errors import InputError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


def check_tensor(tensor: Tensor, called: str, like: Tensor | None = None) -> None:
    """InputError for a tensor without values, of another layout than a dense one, or of a type that does not fit.

    called: how the error calls it. like: the model's own tensor in its place. Where that one holds floating-point
    numbers, integers do not fit; where it holds others, as num_batches_tracked does, its type, integers and means of
    them do. Its values are not read.
    """
    accepted = FLOATS if like is not None and like.is_floating_point() else (*FLOATS, *INTEGERS)
    own = like is not None and tensor.dtype == like.dtype
    if tensor.is_meta:
        found = "on the device 'meta', where tensors have no values"
    elif tensor.layout != torch.strided or tensor.is_nested:
        found = f"of the layout {'nested' if tensor.is_nested else str(tensor.layout).removeprefix('torch.')}"
    elif tensor.dtype not in accepted and not own:
        found = f"of the type {str(tensor.dtype).removeprefix('torch.')}"
    else:
        return
    wanted = "float16, bfloat16, float32 or float64" + ", or integers" * (len(accepted) > len(FLOATS))
    raise InputError(f"{called} is {found}: save dense tensors of {wanted}")
