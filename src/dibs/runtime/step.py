"""Runs a coroutine that never suspends, by stepping it once."""

from collections.abc import Coroutine
from typing import Any


def step[T](coroutine: Coroutine[Any, Any, T]) -> T:
    """What the coroutine returns. One that suspends is closed, and `RuntimeError` raised.

    Over blocking ports there is nothing to suspend for, so the coroutine's first step is its last.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    coroutine.close()
    raise RuntimeError(
        "a coroutine suspended in a blocking call: it was given a port of the other world"
    )
