"""Keeping commands at the server that has our stream, where several stand behind one address.

Pushes come from the server that was asked, and only over its own stream. So a connection to another one
is closed after use, and the next may lead to the right one; that is tried rarely if it doesn't help, as
nobody depends on pushes.
"""

import random
import time
from collections.abc import Sequence

from dibs.model import Command
from dibs.stores.http.reading import Answer
from dibs.stores.http.wire import SERVER_HEADER

SPREAD = 0.3
MOST_SPREAD = 5.0
"""Within so many seconds they come: at first, and where nobody lets them in."""


class Spread:
    """One client's pauses before it tries for a stream again: they grow, and differ from client to client.

    Those that one server has left behind should not all come to the next at once.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._due = 0.0

    def put_off(self) -> None:
        """It has failed once more, or has just broken."""
        longest = min(SPREAD * 2**self._failures, MOST_SPREAD)
        self._due = time.monotonic() + random.uniform(0, longest)  # noqa: S311  # nobody gains by a guess
        self._failures = min(self._failures + 1, 8)

    def succeed(self) -> None:
        """There is a stream."""
        self._failures = 0

    @property
    def left(self) -> float:
        """Seconds until it is time; 0 if it is."""
        return max(self._due - time.monotonic(), 0.0)


SOON = 1.0
SELDOM = 60.0
"""Seconds between two tries: at first, and after many."""


class Following:
    """Which connections to give up for that."""

    def __init__(self) -> None:
        self._pause = SOON
        self._not_before = 0.0

    def astray(self, commands: Sequence[Command], answer: Answer) -> bool:
        """These want pushes, another server has answered, and it is time to try to get away from it."""
        wanted = _server_of(commands)
        if not wanted or answer.headers.get(SERVER_HEADER, wanted) == wanted:
            self._pause = SOON if wanted else self._pause
            return False
        now = time.monotonic()
        if now < self._not_before:
            return False
        self._not_before = now + self._pause
        self._pause = min(2 * self._pause, SELDOM)
        return True


def _server_of(commands: Sequence[Command]) -> str:
    """The one with the stream that is their inbox, whose name begins with the server's."""
    for command in commands:
        inbox: str = getattr(command, "inbox", "")
        if inbox:
            return inbox.partition(".")[0]
    return ""
