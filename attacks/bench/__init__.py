"""How fast the attacks are here: `python -m attacks.bench`. Needs no data set and takes a few minutes of one core."""
