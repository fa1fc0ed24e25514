"""The plain loop of `ntk_recipes` is the published recipe; what its table says, on lines made by hand."""

import pytest
import torch

from tests.attacks.conftest import client, digits, mlp
from tests.benchmarks.ntk_recipes import Attacked, interval, make_run, print_table, scored


@pytest.mark.parametrize("kernel", ["", ", hybrid"])
def test_the_plain_loop_is_the_published_recipe(kernel):
    """From the same random numbers: double backward and the closed form end at the same candidates, in any order."""
    private = digits(3)
    attacked = Attacked(client(mlp(32), private), private, private, 0.3)
    plain, published = (make_run(name + kernel, attacked, 0)(25).flatten(1) for name in ("plain loop", "published"))
    assert plain.shape == (6, 64)
    assert float(torch.cdist(plain, published).amin(1).max()) < 1e-3


def test_scores_by_hand():
    """Two images of four pixels; 20 dB is a root mean square error of 0.1, an L2 distance of 0.2."""
    private = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 2, 2)
    assert scored(private, private.flip(0) + 0.09) == {"mean_l2": 0.18, "within_20_db": 2}
    assert scored(private, private + torch.tensor([0.05, 0.11]).view(2, 1, 1, 1))["within_20_db"] == 1


def test_differences_are_paired_by_seed(capsys):
    """t of two degrees of freedom is 4.303 at 97.5 %: of 1, 2, 3 the interval is 2 ± 4.303 / √3."""
    assert interval([1.0, 2.0, 3.0]) == "2.00 ± 2.48"
    common = {"client": "paper", "budget": 10.0, "within_20_db": 1, "seconds": 10.0, "iterations": 1000, "floor": 9.0}
    lines = [common | {"recipe": "default", "seed": seed, "mean_l2": 1.0 + seed} for seed in range(3)]
    lines += [common | {"recipe": "plain loop", "seed": seed, "mean_l2": 2.0 + seed} for seed in range(3)]
    print_table(lines)
    *_, last, floors = [line for line in capsys.readouterr().out.splitlines() if line]
    assert last == "| paper | plain loop | 3.00 ± 2.48 | 1.00 ± 0.00 | -1.00 ± 0.00 | 0.00 ± 0.00 | 1,000 | 10.0 |"
    assert floors == "floors: paper 9.00 ± 0.00"
