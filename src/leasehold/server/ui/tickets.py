"""Tickets: each lets a browser sign in once, so that whoever starts a server need not type a key."""

import secrets
from collections.abc import Callable
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

    def redeem(self, ticket: str) -> str | None:
        """Whose key it stands for; None where it is no good, or no more. After this it is none."""
        found = self._good.pop(_hashed(ticket), None)
        return found[0] if found and self._now() < found[1] else None


def _hashed(ticket: str) -> bytes:
    return sha256(ticket.encode("utf-8", "surrogatepass")).digest()
