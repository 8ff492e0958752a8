"""A random fraction, without the standard library's `random`: importing that takes a shell command 5 ms."""

import os


def chance() -> float:
    """Anything from 0 up to 1."""
    return int.from_bytes(os.urandom(4)) / 2**32
