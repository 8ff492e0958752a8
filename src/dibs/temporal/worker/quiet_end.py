"""A program that had a worker ends without a crash: https://github.com/temporalio/sdk-python/issues/300.

A thread of Temporal's that comes for Python's lock while the interpreter ends kills the process. Their last
calls are over within a moment after the worker has stopped.
"""

import atexit
import time
from functools import cache

from dibs.stores.temporal.client import rest

LETS_GO = 0.15
"""So long the interpreter's end waits at least, in seconds, beside the moment that all need."""


@cache
def end_quietly() -> None:
    """Have the end of this process wait for that."""
    atexit.register(_wait)


def _wait() -> None:
    time.sleep(LETS_GO)
    rest()
