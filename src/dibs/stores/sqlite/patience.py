"""How a busy file is tried again: soon, at random moments, and not for ever."""

import os
import time
from collections.abc import Callable

from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.trouble import Busy, locked_out

FIRST_PAUSE = 0.0001
LONGEST_PAUSE = 0.004


def chance() -> float:
    """A random number from 0 up to 1."""
    return int.from_bytes(os.urandom(4)) / 2**32


def persist[R](connection: Connection, action: Callable[[], R], wanted: Callable[[], bool]) -> R:
    """Do something with a connection, again and again while the file is busy.

    The connection's lock is held during each try only. Raises `BackendUnavailable` when the file was
    busy for the whole of the site's patience, and `Busy` once nobody wants the result any more.
    """
    patience = connection.site.patience
    end = time.monotonic() + patience
    pause = FIRST_PAUSE
    while True:
        try:
            with connection.lock:
                return action()
        except Busy:
            if not wanted():
                raise
            if time.monotonic() >= end:
                raise locked_out(connection.site.path, patience) from None
        time.sleep(pause * (0.5 + chance()))
        pause = min(pause * 1.5, LONGEST_PAUSE)


def always() -> bool:
    """The result is wanted to the end."""
    return True
