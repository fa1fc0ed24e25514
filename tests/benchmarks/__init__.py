"""How fast the attacks are here: `python -m tests.benchmarks`. Needs no data set, takes a few minutes of one core."""
