"""Tickets: each lets a browser sign in once, so that whoever starts a server need not type a key."""

import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from hashlib import sha256

LIFETIME = 600.0
"""Seconds that a ticket is good for."""

MOST = 100
"""So many are remembered; the oldest is forgotten for another."""


class Tickets:
    """Those that one server has given out. No other knows of them, and they end with it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._good: dict[bytes, tuple[str, float]] = {}

    def issue(self, key_id: str) -> str:
        """A ticket for the owner of that key."""
        ticket = secrets.token_urlsafe(16)
        if len(self._good) >= MOST:
            del self._good[next(iter(self._good))]
        self._good[_hashed(ticket)] = key_id, self._now() + LIFETIME
        return ticket

    @contextmanager
    def redeemed(self, ticket: str) -> Generator[str | None]:
        """Whose key it stands for; None where it is no good, or no more.

        It is used up at once, and good again where what is then done with it fails.
        """
        hashed = _hashed(ticket)
        found = self._good.pop(hashed, None)
        if found is None or found[1] <= self._now():
            yield None
            return
        try:
            yield found[0]
        except BaseException:
            self._good[hashed] = found
            raise


def _hashed(ticket: str) -> bytes:
    return sha256(ticket.encode("utf-8", "surrogatepass")).digest()
