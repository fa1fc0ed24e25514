import torch

from clients.defenses import DefenseContext, Encoding
from tests.clients.defenses.parts import config, make


def test_parameters_are_rounded_not_their_change():
    """Numbers of bfloat16 between 1 and 2 are 2⁻⁷ apart, of float16 2⁻¹⁰."""
    received = {"w": torch.tensor([1.0, 1.0, 1.0])}
    where = DefenseContext(config(), 1, 0, torch.nn.Linear(4, 2), {}, received)
    delta = {"w": torch.tensor([0.003, 0.005, 0.0004])}
    sent = {
        dtype: make("half_precision", dtype=dtype).protect_update(delta, where)[0] for dtype in ("bfloat16", "float16")
    }
    assert sent["bfloat16"]["w"].tolist() == [0, 2**-7, 0]
    assert sent["float16"]["w"].tolist() == [3 * 2**-10, 5 * 2**-10, 0]
    assert make("half_precision").encode(Encoding(), where).bytes(1000) == 2000
