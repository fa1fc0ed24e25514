"""The memory of a gradient in batches, measured in processes of their own."""

import pytest

from simulator.paper.gradient_memory import peak_in_new_process


@pytest.mark.slow
def test_a_gradient_in_batches_does_not_hold_the_activations_of_all_candidates():
    """At once, the gradient of 2,000 candidates holds at least the two layers' 1,024 activations of all of them."""
    batched, at_once = peak_in_new_process(2_000, 50), peak_in_new_process(2_000, 2_000)
    activations = 2_000 * 2 * 1_024 * 4 / 2**20
    assert at_once > activations and batched < at_once - activations
