"""A program that had a worker ends without a crash: https://github.com/temporalio/sdk-python/issues/300.

A thread of Temporal's that comes for Python's lock while the interpreter ends kills the process. Their last
calls are over within a moment after the worker has stopped.
"""

import atexit
import time
from functools import cache

LETS_GO = 0.2
"""So long the interpreter's end waits, in seconds."""


@cache
def end_quietly() -> None:
    """Have the end of this process wait for that moment."""
    atexit.register(time.sleep, LETS_GO)
