"""Peak memory of Algorithm 2 (Loo et al. 2024, app. B): O(parameters + batch), however many candidates there are."""

from simulator.paper.gradient_memory import peak_in_new_process

CANDIDATES, BATCH = (100, 1_000, 10_000), 100


def print_table() -> None:
    """A line per number of candidates, each figure from a process of its own."""
    print("Peak memory of one gradient, 784-1024-1024-1")
    print(f"     M  Algorithm 2, {BATCH} at a time      all at once")
    for count in CANDIDATES:
        batched, at_once = peak_in_new_process(count, BATCH), peak_in_new_process(count, count)
        print(f"{count:6} {batched:22.0f} MiB {at_once:12.0f} MiB")
    print()
