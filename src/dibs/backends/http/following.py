"""Keeping commands at the server that has our stream, where several stand behind one address.

Pushes come from the server that was asked, and only over its own stream. So a connection to another one
is closed after use, and the next may lead to the right one; that is tried rarely if it doesn't help, as
nobody depends on pushes.
"""

import time
from collections.abc import Sequence

from dibs.backends.http.reading import Answer
from dibs.backends.http.wire import SERVER_HEADER
from dibs.model import Command

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
