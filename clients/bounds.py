"""What files of others may unpack to: the readers of archives and pictures ask before memory is taken.

A few kilobytes can stand for terabytes, so a reader compares what a file says of itself with the bytes that it has.
"""

FREE = 2**28  # bytes that anything may unpack to
RATIO = 200  # times the bytes of the file, beyond that: photographs become a tenth, drawings a hundredth
# Pictures may also be honest and too large for the memory of a client.
MOST_PIXELS = 2**22  # of one image: 2048 x 2048
MOST_BYTES = 2**32  # of images that are read together, as floats


def is_bomb(unpacked: int, packed: int) -> bool:
    """Return whether a file of `packed` bytes would take more memory than honest data of its size."""
    return unpacked > max(FREE, RATIO * packed)


def check_unpacked(unpacked: int, packed: int) -> None:
    """Raise ValueError if a file of `packed` bytes would take more memory than honest data of its size."""
    if is_bomb(unpacked, packed):
        raise ValueError(f"the file would unpack {packed:,} bytes to {unpacked:,}")
