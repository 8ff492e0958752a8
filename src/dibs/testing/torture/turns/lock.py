"""Turns on a lock."""

from typing import Any

from dibs.testing.torture.turns.turns import Turns


class LockTurns(Turns):
    """Acquire, check and write, release."""

    def described(self, name: str) -> Any:
        return self.client.lock(self.name, **self.how)
