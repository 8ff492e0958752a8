"""Waiting for what no event tells of."""

import time
from collections.abc import Callable


def wait_until[T](ready: Callable[[], T], what: str, *, within: float = 30.0) -> T:
    """Look again and again, every 10 ms, until there is something; give up in the end."""
    end = time.monotonic() + within
    while not (found := ready()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {within:g} s: {what}")
        time.sleep(0.01)
    return found
