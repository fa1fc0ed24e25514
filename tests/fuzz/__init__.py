"""Broken input by the thousand, for everything that reads a file or a text of somebody else's.

    make fuzz COUNT=100000      # or: python -m tests.fuzz --count 100000 --seed 1 --kinds scenario,npz

Each input is a valid one, changed at random by a seeded generator. It has to end in a valid result or in one clear
error, within 10 seconds, without taking more than 1 GiB beyond the start. Whatever else happens is a finding; the input
is kept, and becomes a test beside what it broke.
"""
