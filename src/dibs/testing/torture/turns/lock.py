"""Turns on a lock; every second one is passed on within its process."""

from typing import Any

from dibs.testing.torture.turns.turns import Turns

COHORT = 4


class LockTurns(Turns):
    """Acquire, check and write, release."""

    def described(self, name: str) -> Any:
        number = int(name.rpartition("-")[2])
        cohort = None if number % 2 else COHORT
        return self.client.lock(self.name, cohort=cohort, **self.how)
