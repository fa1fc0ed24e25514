"""The bound on what a file may unpack to: one rule at every door through which archives and pictures come.

A few kilobytes can stand for terabytes. Every reader compares what the file says of itself before memory is asked for.
"""

FREE = 2**28  # bytes that anything may unpack to
RATIO = 200  # times the bytes of the file, beyond that: photographs become a tenth, drawings a hundredth


def is_bomb(unpacked: int, packed: int) -> bool:
    """Return whether a file of `packed` bytes would take more memory than honest data of its size."""
    return unpacked > max(FREE, RATIO * packed)


def check_unpacked(unpacked: int, packed: int) -> None:
    """Raise ValueError if a file of `packed` bytes would take more memory than honest data of its size."""
    if is_bomb(unpacked, packed):
        raise ValueError(f"the file would unpack {packed:,} bytes to {unpacked:,}")
